"""`warmlog log verify` and `rebuild-index`: check the files of data directories, and rebuild indexes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.exceptions import Exit

from warmlog.cli.terminal.exits import FAILED
from warmlog.cli.terminal.options import json_option, print_result
from warmlog.cli.terminal.output import counted, line, note
from warmlog.cli.terminal.paths import DIRECTORY
from warmlog.cli.terminal.status import Status
from warmlog.cli.terminal.tables import human_size

if TYPE_CHECKING:
    from warmlog_broker.storage.verify.report import Report


@click.command()
@click.argument(
    "directory",
    type=DIRECTORY,
    nargs=-1,
    required=True,
    metavar="DIR...",
    help="A data directory of warmlog or Kafka, or the directory of a partition.",
)
@json_option
def verify(directory: tuple[Path, ...]) -> None:
    """Check every batch, index entry and other file of a partition.

    Files are only read, and a broker may be using them. The exit code is 1 if anything is wrong.
    """
    from warmlog_broker.storage.verify.report import Report
    from warmlog_broker.tools.verify import verify_directory

    check_directories(directory)
    report = Report()
    status = Status()
    report.on_progress = lambda report: status.tell(_summary(report)) if status.is_due else None
    try:
        for path in directory:
            verify_directory(path, report)
    finally:
        status.clear()

    def say() -> None:
        for finding in report.findings:
            line(str(finding))
        for name, count in sorted(report.suppressed.items()):
            line(f"{name}: and {count} more")
        for text in report.notes:
            note(text)
        line(_summary(report))

    suppressed = dict(report.suppressed)
    document = {"findings": report.findings, "suppressed": suppressed, "notes": report.notes, "counts": report.counts}
    print_result(document, say)
    if not report.is_clean:
        raise Exit(FAILED)


def check_directories(paths: Sequence[Path]) -> None:
    """Raise a usage error unless each path is a data directory or a partition's directory."""
    from warmlog_broker.tools.verify import kind_of

    for path in paths:
        if kind_of(path) is None:
            raise click.BadParameter(f"{path} is not a data directory or that of a partition", param_hint="DIR")


def _summary(report: "Report") -> str:
    counts, findings = report.counts, report.finding_count
    parts = [
        counted(counts.partitions, "partition"),
        counted(counts.segments, "segment"),
        counted(counts.batches, "batch", "batches"),
        counted(counts.records, "record"),
        human_size(counts.log_bytes),
        counted(counts.index_entries, "index entry", "index entries"),
        counted(counts.snapshots, "snapshot"),
    ]
    if counts.offset_gaps:
        parts.append(f"{counted(counts.offset_gaps, 'gap')} between offsets")
    return f"{', '.join(parts)}: {counted(findings, 'finding')}"


@click.command()
@click.argument(
    "directory",
    type=DIRECTORY,
    metavar="DIR",
    help="A data directory, or the directory of a partition, that no broker uses.",
)
@click.option(
    "--index-interval-bytes",
    type=click.IntRange(min=0),
    metavar="N",
    help="Bytes between entries; the topic's index.interval.bytes if not given.",
)
@click.option("--snapshots", "with_snapshots", is_flag=True, help="Rebuild the producer snapshots too.")
def rebuild_index(directory: Path, index_interval_bytes: int | None, with_snapshots: bool) -> None:
    """Rebuild .index, .timeindex and .txnindex files from the .log files; each is replaced atomically.

    A broker rebuilds missing or damaged index files by itself. The exit code is 1 if a log is damaged: its indexes then
    leave out the damage.
    """
    from warmlog_broker.tools.verify import rebuild_directory

    check_directories([directory])
    results = rebuild_directory(directory, index_interval_bytes=index_interval_bytes, with_snapshots=with_snapshots)
    for path, result in results.items():
        for remark in result.remarks:
            note(remark)
        damaged = f", damaged: {', '.join(log.name for log in result.damaged)}" if result.damaged else ""
        line(
            f"{path}: {counted(result.segments, 'segment')}, {counted(result.batches, 'batch', 'batches')}, "
            f"{counted(len(result.written), 'file')} written{damaged}"
        )
    if any(result.damaged for result in results.values()):
        raise Exit(FAILED)
