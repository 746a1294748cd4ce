"""`warmlog log dump`: print the files of a partition and of a data directory."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from warmlog.cli.dump.decoders import DecoderName
from warmlog.cli.terminal.exits import ends_cleanly
from warmlog.cli.terminal.output import remark, write

if TYPE_CHECKING:
    from warmlog.cli.dump.findings import Findings
    from warmlog.cli.dump.log_file import LogView

LINES_A_WRITE = 1000
DEFAULT_MAX_MESSAGE_BYTES = 5 * 1024 * 1024


Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE",
        exists=True,
        dir_okay=False,
        show_default=False,
        help=".log, .index, .timeindex, .txnindex, .snapshot, .checkpoint, checkpoint files, partition.metadata.",
    ),
]
MoreFiles = Annotated[
    str | None,
    typer.Option(
        "--files", metavar="A,B", help="More files, separated by commas as for Kafka's tool.", show_default=False
    ),
]
ShowsData = Annotated[bool, typer.Option("--print-data-log", help="Print keys and payloads, one line for each record.")]
IsDeep = Annotated[bool, typer.Option("--deep-iteration", help="Also print one line for each record.")]
IsCheckOnly = Annotated[
    bool, typer.Option("--verify-index-only", help="Compare indexes with their log without printing them.")
]
IsSanityOnly = Annotated[
    bool, typer.Option("--index-sanity-check", help="Only check an index as a broker does at its start.")
]
SkipsMetadata = Annotated[
    bool, typer.Option("--skip-record-metadata", help="Omit offset, timestamp and sizes from record lines.")
]
MaxBytes = Annotated[int | None, typer.Option(min=0, metavar="N", help="Read only the first N bytes of a .log file.")]
MaxMessageBytes = Annotated[
    int,
    typer.Option("--max-message-size", min=1, metavar="N", help="The largest batch to check an index entry against."),
]
KeyDecoder = Annotated[
    DecoderName | None, typer.Option(help="How to show keys (string); implies --print-data-log.", show_default=False)
]
ValueDecoder = Annotated[
    DecoderName | None,
    typer.Option(help="How to show payloads (string); implies --print-data-log.", show_default=False),
]


@ends_cleanly
def dump(
    file: Files = None,
    more_files: MoreFiles = None,
    shows_data: ShowsData = False,
    is_deep: IsDeep = False,
    is_check_only: IsCheckOnly = False,
    is_sanity_only: IsSanityOnly = False,
    skips_metadata: SkipsMetadata = False,
    max_bytes: MaxBytes = None,
    max_message_bytes: MaxMessageBytes = DEFAULT_MAX_MESSAGE_BYTES,
    key_decoder: KeyDecoder = None,
    value_decoder: ValueDecoder = None,
) -> None:
    """Print log segments and the other files of a partition, in the words of Kafka's DumpLogSegments.

    Records in directories of __groups and __transactions are decoded, with --print-data-log.
    Files are only read, and may be in use. Contradictions between them are reported on stderr.
    """
    from warmlog.cli.dump.decoders import decoder_named, decoder_of
    from warmlog.cli.dump.findings import Findings
    from warmlog.cli.dump.log_file import LogView

    is_decoder_named = key_decoder is not None or value_decoder is not None
    view = LogView(
        is_deep=is_deep or shows_data or is_decoder_named,
        shows_data=shows_data or is_decoder_named,
        skips_metadata=skips_metadata,
        max_bytes=max_bytes,
        decode=decoder_of(
            decoder_named(key_decoder or DecoderName.STRING), decoder_named(value_decoder or DecoderName.STRING)
        ),
    )
    how_to_check = IndexCheck(is_check_only, is_sanity_only, max_message_bytes)
    findings = Findings()
    try:
        for path in _all_files(file or [], more_files):
            own = view if is_decoder_named else _view_of(path, view)
            _print_lines(_lines_of(path, own, how_to_check, findings), heading=f"Dumping {path}")
    finally:
        for finding in findings.lines():
            remark(finding)


def _view_of(path: Path, view: "LogView") -> "LogView":
    """Return `view`, which decodes the records of a coordinator if the file is in a partition of its topic."""
    from warmlog.cli.dump.coordinator_records import decoder_of_directory

    decode = decoder_of_directory(path.resolve().parent.name)
    return view if decode is None else replace(view, decode=decode)


class IndexCheck(NamedTuple):
    """How to check index files."""

    is_check_only: bool
    is_sanity_only: bool
    max_message_bytes: int


def _all_files(named: list[Path], joined: str | None) -> list[Path]:
    """Return the arguments and then the files of --files; a usage error if there are none, or one is missing."""
    more = [Path(name.strip()) for name in (joined or "").split(",") if name.strip()]
    for path in more:
        if not path.is_file():
            raise typer.BadParameter(f"File {str(path)!r} does not exist.", param_hint="--files")
    if not named and not more:
        raise typer.BadParameter("name at least one file", param_hint="FILE")
    return named + more


def _lines_of(path: Path, view: "LogView", check: IndexCheck, findings: "Findings") -> Iterator[str]:
    """Return the lines to print, by the kind of file that the name says."""
    from warmlog.cli.dump import index_files, log_file, state_files

    if path.suffix in (".log", ".checkpoint"):
        return log_file.dump_log(path, view, findings)
    if path.suffix in (".index", ".timeindex") and check.is_sanity_only:
        return index_files.check_sanity(path)
    if path.suffix == ".index":
        return index_files.dump_offset_index(
            path, findings, is_check_only=check.is_check_only, max_message_bytes=check.max_message_bytes
        )
    if path.suffix == ".timeindex":
        return index_files.dump_time_index(path, findings, is_check_only=check.is_check_only)
    if path.suffix == ".txnindex":
        return index_files.dump_transaction_index(path)
    if path.suffix == ".snapshot":
        return state_files.dump_snapshot(path, findings)
    if path.name == "leader-epoch-checkpoint":
        return state_files.dump_epoch_checkpoint(path)
    if path.name.endswith("-offset-checkpoint"):
        return state_files.dump_offset_checkpoint(path)
    if path.name == "partition.metadata":
        return state_files.dump_partition_metadata(path)
    remark(f"Ignoring unknown file {path}")
    return iter(())


def _print_lines(lines: Iterable[str], *, heading: str) -> None:
    """Print `heading` and `lines`, many at a time; after an error also those that were read before it."""
    pending = [heading]
    try:
        for text in lines:
            pending.append(text)
            if len(pending) >= LINES_A_WRITE:
                _write_lines(pending)
    finally:
        _write_lines(pending)


def _write_lines(pending: list[str]) -> None:
    write("".join(f"{text}\n" for text in pending).encode("utf-8", errors="surrogateescape"))
    pending.clear()
