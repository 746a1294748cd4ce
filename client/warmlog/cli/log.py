"""`warmlog log`: look into the files of a data directory."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.dump.decoders import DecoderName
from warmlog.cli.exits import ends_cleanly
from warmlog.cli.output import remark, write

if TYPE_CHECKING:
    from warmlog.cli.dump.findings import Findings
    from warmlog.cli.dump.log_file import LogView

LINES_A_WRITE = 1000


def register(app: typer.Typer) -> None:
    """Adds the family to the program."""
    family = typer.Typer(no_args_is_help=True, help="Look into the files of a data directory.")
    family.command("dump")(dump)
    app.add_typer(family, name="log")


@ends_cleanly
def dump(
    file: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            show_default=False,
            help=".log, .index, .timeindex, .snapshot, the checkpoint files and partition.metadata.",
        ),
    ],
    shows_data: Annotated[
        bool, typer.Option("--print-data-log", help="Print keys and payloads; one line a record.")
    ] = False,
    is_deep: Annotated[bool, typer.Option("--deep-iteration", help="Print one line a record, too.")] = False,
    is_check_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Compare indexes with their log, without printing them.")
    ] = False,
    is_sanity_only: Annotated[
        bool, typer.Option("--index-sanity-check", help="Only check an index as a broker's start does.")
    ] = False,
    max_bytes: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Read only the first N bytes of a .log file.")
    ] = None,
    key_decoder: Annotated[
        DecoderName | None, typer.Option(help="How to show keys; implies --print-data-log.", show_default=False)
    ] = None,
    value_decoder: Annotated[
        DecoderName | None, typer.Option(help="How to show payloads; implies --print-data-log.", show_default=False)
    ] = None,
) -> None:
    """Print log segments and the files beside them, in the words of Kafka's DumpLogSegments.

    Files are only read, and may be in use. What does not fit together is told on stderr.
    """
    from warmlog.cli.dump.decoders import decoder_named
    from warmlog.cli.dump.findings import Findings
    from warmlog.cli.dump.log_file import LogView

    is_decoder_named = key_decoder is not None or value_decoder is not None
    view = LogView(
        is_deep=is_deep or shows_data or is_decoder_named,
        shows_data=shows_data or is_decoder_named,
        max_bytes=max_bytes,
        decode_key=decoder_named(key_decoder or DecoderName.STRING),
        decode_value=decoder_named(value_decoder or DecoderName.STRING),
    )
    findings = Findings()
    try:
        for path in file:
            lines = _lines_of(path, view, findings, is_check_only=is_check_only, is_sanity_only=is_sanity_only)
            _print_lines(lines, heading=f"Dumping {path}")
    finally:
        for finding in findings.lines():
            remark(finding)


def _lines_of(
    path: Path, view: "LogView", findings: "Findings", *, is_check_only: bool, is_sanity_only: bool
) -> Iterator[str]:
    """What to print of the file, by its name."""
    from warmlog.cli.dump import index_files, log_file, state_files

    if path.suffix == ".log":
        return log_file.dump_log(path, view, findings)
    if path.suffix in (".index", ".timeindex") and is_sanity_only:
        return index_files.check_sanity(path)
    if path.suffix == ".index":
        return index_files.dump_offset_index(path, findings, is_check_only=is_check_only)
    if path.suffix == ".timeindex":
        return index_files.dump_time_index(path, findings, is_check_only=is_check_only)
    if path.suffix == ".snapshot":
        return state_files.dump_snapshot(path)
    if path.name == "leader-epoch-checkpoint":
        return state_files.dump_epoch_checkpoint(path)
    if path.name.endswith("-offset-checkpoint"):
        return state_files.dump_offset_checkpoint(path)
    if path.name == "partition.metadata":
        return state_files.dump_partition_metadata(path)
    remark(f"Ignoring unknown file {path}")
    return iter(())


def _print_lines(lines: Iterable[str], *, heading: str) -> None:
    """Prints `heading` and `lines`, many at a time; what was read before an error is printed, too."""
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
