"""`warmlog restore`: restore a backup into new data directories."""

from pathlib import Path
from typing import Annotated

import typer

from warmlog.cli.terminal.exits import ends_cleanly
from warmlog.cli.terminal.options import AsJson
from warmlog.cli.terminal.output import counted, json_line, line
from warmlog.cli.terminal.status import Status
from warmlog.cli.terminal.tables import human_size


@ends_cleanly
def restore(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            exists=True,
            file_okay=False,
            show_default=False,
            help="A backup, or a directory of backups: then the newest one.",
        ),
    ],
    data_dir: Annotated[
        list[Path],
        typer.Option(
            metavar="DIR",
            file_okay=False,
            show_default=False,
            help="A new or empty directory for each data directory of the backup, in their order. Repeatable.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Restore a backup made by `warmlog backup`, and compare each file with its checksum.

    The backup is only read. Run it as the broker's user, or change the owner of the directories afterwards.
    """
    from warmlog_broker.tools.backup.restore import choose_backup
    from warmlog_broker.tools.backup.restore import restore as run

    status = Status()
    copied_bytes = 0

    def tell(name: str, count: int) -> None:
        nonlocal copied_bytes
        copied_bytes += count
        status.tell(f"restoring {name}: {human_size(copied_bytes)} so far")

    try:
        backup = choose_backup(directory)
        manifest = run(backup, data_dir, on_copied=tell)
    finally:
        status.clear()
    size_bytes = sum(entry.size_bytes for entry in manifest.files.values())
    if as_json:
        paths = [str(path) for path in data_dir]
        json_line({"backup": str(backup), "data_dirs": paths, "files": len(manifest.files), "size_bytes": size_bytes})
        return
    line(f"restored {backup}: {counted(len(manifest.files), 'file')}, {human_size(size_bytes)}")
