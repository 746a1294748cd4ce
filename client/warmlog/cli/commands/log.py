"""`warmlog log`: look into, check and take over the files of a data directory."""

import typer

from warmlog.cli.commands import log_adopt, log_dirs, log_rebuild, log_verify
from warmlog.cli.dump import command as dump


def register(app: typer.Typer) -> None:
    """Adds the family to the program."""
    family = typer.Typer(no_args_is_help=True, help="Look into, check and take over the files of a data directory.")
    family.command("dump")(dump.dump)
    family.command("dirs")(log_dirs.dirs)
    family.command("move")(log_dirs.move)
    family.command("verify")(log_verify.verify)
    family.command("rebuild-index")(log_rebuild.rebuild_index)
    family.command("adopt")(log_adopt.adopt)
    app.add_typer(family, name="log")
