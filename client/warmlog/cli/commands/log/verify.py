"""`warmlog log verify`: check the files of data directories, batch by batch, without changing them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import FAILED, ends_cleanly
from warmlog.cli.terminal.options import AsJson
from warmlog.cli.terminal.output import counted, json_line, line, note
from warmlog.cli.terminal.status import Status
from warmlog.cli.terminal.tables import human_size

if TYPE_CHECKING:
    from warmlog_broker.storage.verify.report import Report


@ends_cleanly
def verify(
    directory: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR",
            exists=True,
            file_okay=False,
            show_default=False,
            help="A data directory of warmlog or Kafka, or the directory of a partition.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
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
    if as_json:
        json_line(_document(report))
    else:
        _print(report)
    if not report.is_clean:
        raise typer.Exit(FAILED)


def check_directories(paths: Sequence[Path]) -> None:
    """Raise a usage error unless each path is a data directory or a partition's directory."""
    from warmlog_broker.tools.verify import kind_of

    for path in paths:
        if kind_of(path) is None:
            raise typer.BadParameter(f"{path} is not a data directory or that of a partition", param_hint="DIR")


def _print(report: "Report") -> None:
    for finding in report.findings:
        line(str(finding))
    for path, count in sorted(report.suppressed.items()):
        line(f"{path}: and {count} more")
    for text in report.notes:
        note(text)
    line(_summary(report))


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


def _document(report: "Report") -> dict[str, object]:
    return {
        "findings": report.findings,
        "suppressed": dict(report.suppressed),
        "notes": report.notes,
        "counts": report.counts,
    }
