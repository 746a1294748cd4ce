"""`warmlog log rebuild-index`: rebuild the indexes of a data directory from its logs."""

from pathlib import Path
from typing import Annotated

import typer

from warmlog.cli.commands.log.verify import check_directories
from warmlog.cli.terminal.exits import FAILED, ends_cleanly
from warmlog.cli.terminal.output import counted, line, note


@ends_cleanly
def rebuild_index(
    directory: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            exists=True,
            file_okay=False,
            show_default=False,
            help="A data directory, or the directory of a partition, that no broker uses.",
        ),
    ],
    index_interval_bytes: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Bytes between entries; the topic's index.interval.bytes if not given."),
    ] = None,
    with_snapshots: Annotated[bool, typer.Option("--snapshots", help="Rebuild the producer snapshots too.")] = False,
) -> None:
    """Rebuild .index, .timeindex and .txnindex files from the .log files; each is replaced atomically.

    A broker rebuilds missing or damaged index files by itself. The exit code is 1 if a log is damaged: its indexes then
    leave out the damage.
    """
    from warmlog_broker.tools.rebuild import RebuildOptions, rebuild_directory

    check_directories([directory])
    results = rebuild_directory(directory, RebuildOptions(index_interval_bytes, with_snapshots))
    for path, result in results.items():
        for remark in result.remarks:
            note(remark)
        damaged = f", damaged: {', '.join(log.name for log in result.damaged)}" if result.damaged else ""
        line(
            f"{path}: {counted(result.segments, 'segment')}, {counted(result.batches, 'batch', 'batches')}, "
            f"{counted(len(result.written), 'file')} written{damaged}"
        )
    if any(result.damaged for result in results.values()):
        raise typer.Exit(FAILED)
