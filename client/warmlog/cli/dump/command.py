"""`warmlog log dump`: print the files of a partition and of a data directory."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.dump.view import DECODERS, View, decoder_of, decoder_of_directory
from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.output import remark, write_shown
from warmlog.cli.terminal.paths import FILE_OR_DIRECTORY

if TYPE_CHECKING:
    from warmlog.cli.dump.findings import Findings

LINES_A_WRITE = 1000
DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024


@click.command()
@click.argument(
    "file",
    type=FILE_OR_DIRECTORY,
    nargs=-1,
    metavar="[FILE|DIR]...",
    help="The directory of a partition, for its .log files; or .log, .index, .timeindex, .txnindex, .snapshot, "
    "checkpoint files, partition.metadata.",
)
@click.option(
    "--offset",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only the batch and the record with this offset; of a directory, from the segment that has it.",
)
@click.option("--files", "more_files", metavar="A,B", help="More files, separated by commas as for Kafka's tool.")
@click.option("--print-data-log", "shows_data", is_flag=True, help="Print keys and payloads, one line for each record.")
@click.option("--deep-iteration", "is_deep", is_flag=True, help="Also print one line for each record.")
@click.option(
    "--verify-index-only", "is_check_only", is_flag=True, help="Compare indexes with their log without printing them."
)
@click.option(
    "--index-sanity-check", "is_sanity_only", is_flag=True, help="Only check an index as a broker does at its start."
)
@click.option(
    "--skip-record-metadata", "skips_metadata", is_flag=True, help="Omit offset, timestamp and sizes from record lines."
)
@click.option(
    "--max-bytes", type=click.IntRange(min=0), metavar="N", help="Read only the first N bytes of a .log file."
)
@click.option(
    "--max-message-size",
    "max_message_bytes",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_MESSAGE_BYTES,
    metavar="N",
    help="The largest batch to check an index entry against.",
)
@click.option(
    "--key-decoder", type=click.Choice(list(DECODERS)), help="How to show keys (string); implies --print-data-log."
)
@click.option(
    "--value-decoder",
    type=click.Choice(list(DECODERS)),
    help="How to show payloads (string); implies --print-data-log.",
)
def dump(
    file: tuple[Path, ...],
    offset: int | None,
    more_files: str | None,
    shows_data: bool,
    is_deep: bool,
    is_check_only: bool,
    is_sanity_only: bool,
    skips_metadata: bool,
    max_bytes: int | None,
    max_message_bytes: int,
    key_decoder: str | None,
    value_decoder: str | None,
) -> None:
    """Print log segments and the other files of a partition, in the words of Kafka's DumpLogSegments.

    Records in directories of __groups and __transactions are decoded, with --print-data-log.
    Files are only read, and may be in use. Contradictions between them are reported on stderr.
    """
    from warmlog.cli.dump.findings import Findings

    is_decoder_named = key_decoder is not None or value_decoder is not None
    view = View(
        is_deep=is_deep or shows_data or is_decoder_named or offset is not None,
        offset=offset,
        shows_data=shows_data or is_decoder_named,
        skips_metadata=skips_metadata,
        max_bytes=max_bytes,
        decode=decoder_of(DECODERS[key_decoder or "string"], DECODERS[value_decoder or "string"]),
        is_check_only=is_check_only,
        is_sanity_only=is_sanity_only,
        max_message_bytes=max_message_bytes,
    )
    more = [Path(name.strip()) for name in (more_files or "").split(",") if name.strip()]
    for path in more:
        if not path.is_file():
            raise click.BadParameter(f"File {str(path)!r} does not exist.", param_hint="--files")
    paths = [path for given in (*file, *more) for path in (_segments(given, offset) if given.is_dir() else [given])]
    if not paths:
        raise click.BadParameter("name at least one file", param_hint="FILE")
    findings = Findings()
    try:
        for path in paths:
            of_coordinator = None if is_decoder_named else decoder_of_directory(path.resolve().parent.name)
            own = view if of_coordinator is None else view._replace(decode=of_coordinator)
            pending = [f"Dumping {path}"]
            try:
                for text in _lines_of(path, own, findings):
                    pending.append(text)
                    if len(pending) >= LINES_A_WRITE:
                        _write_lines(pending)
            finally:
                _write_lines(pending)
    finally:
        for finding in findings.lines():
            remark(finding)


def _segments(directory: Path, offset: int | None) -> list[Path]:
    """Return the .log files of a partition, or the one that would hold `offset`. CommandFailed if there is none."""
    from warmlog.cli.dump.log_file import base_offset_of

    logs = sorted(directory.glob("*.log"))
    if offset is not None:
        logs = [path for path in logs if base_offset_of(path) <= offset][-1:]
    if not logs:
        what = "" if offset is None else f" that may hold offset {offset}"
        raise CommandFailed(f"{directory} has no .log file{what}")
    return logs


def _lines_of(path: Path, view: View, findings: "Findings") -> Iterator[str]:
    """Return the lines to print, by the kind of file that the name says."""
    from warmlog.cli.dump import log_file, side_files

    if path.suffix == ".log":
        return log_file.dump_log(path, view, findings)
    if path.suffix in (".index", ".timeindex") and view.is_sanity_only:
        return side_files.check_sanity(path)
    if path.suffix == ".index":
        return side_files.dump_offset_index(path, view, findings)
    if path.suffix == ".timeindex":
        return side_files.dump_time_index(path, view, findings)
    return side_files.dump_other(path, findings)


def _write_lines(pending: list[str]) -> None:
    write_shown("".join(f"{text}\n" for text in pending).encode("utf-8", errors="surrogateescape"))
    pending.clear()
