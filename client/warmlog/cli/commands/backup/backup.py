"""`warmlog backup`: back up the data directories of a broker, which may be running."""

import time
from pathlib import Path
from typing import Annotated

import typer

from warmlog.cli.terminal.exits import ends_cleanly
from warmlog.cli.terminal.options import AsJson
from warmlog.cli.terminal.output import counted, json_line, line
from warmlog.cli.terminal.status import Status
from warmlog.cli.terminal.tables import human_size


@ends_cleanly
def backup(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            file_okay=False,
            show_default=False,
            help="The directory of backups; each gets its own in it.",
        ),
    ],
    data_dir: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            exists=True,
            file_okay=False,
            show_default=False,
            help="The broker's data directory; the first, if it has several: the others are backed up too.",
        ),
    ],
    keep: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Afterwards remove all but the newest N.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Back up all data of a broker on this machine, while it runs or not.

    Files that did not change since the last backup in DIR are linked to it, and those that are never written again to
    the data directory, if it is on the same file system. Otherwise they are copied.
    """
    from warmlog_broker.tools.backup.backup import back_up

    status = Status()
    copied_bytes = 0

    def tell(name: str, count: int) -> None:
        nonlocal copied_bytes
        copied_bytes += count
        status.tell(f"copying {name}: {human_size(copied_bytes)} so far")

    try:
        made = back_up(data_dir, directory, now_ms=time.time_ns() // 1_000_000, keep=keep, on_copied=tell)
    finally:
        status.clear()
    if as_json:
        json_line({**made._asdict(), "path": str(made.path), "removed": [str(path) for path in made.removed]})
        return
    line(
        f"{made.path}: {counted(made.partitions, 'partition')}, {counted(made.files, 'file')}, "
        f"{human_size(made.size_bytes)}: {human_size(made.copied_bytes)} copied, {human_size(made.linked_bytes)} linked"
    )
    for path in made.removed:
        line(f"removed {path}")
