"""`warmlog log rebuild-index`: make the indexes of a data directory anew from its logs."""

from pathlib import Path
from typing import Annotated

import typer

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
    with_snapshots: Annotated[bool, typer.Option("--snapshots", help="Make the producer snapshots anew, too.")] = False,
) -> None:
    """Make .index, .timeindex and .txnindex anew from the .log files, each replaced as a whole.

    A broker does so by itself for index files that it finds missing or wrong. The exit code is 1 when a log is damaged:
    its indexes are made anew around that.
    """
    from warmlog_broker.tools.rebuild import RebuildOptions, rebuild_directory
    from warmlog_broker.tools.verify import kind_of

    if kind_of(directory) is None:
        raise typer.BadParameter(f"{directory} is neither a data directory nor a partition's", param_hint="DIR")
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
