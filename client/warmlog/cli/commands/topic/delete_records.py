"""`warmlog topic delete-records`: delete the oldest records of partitions.

Input file and output are those of kafka-delete-records::

    {"partitions": [{"topic": "flights", "partition": 0, "offset": 14000}], "version": 1}
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, run_admin
from warmlog.cli.terminal.output import json_line, line

if TYPE_CHECKING:
    from warmlog import ApiError

Key = tuple[str, int]
"""Topic and partition."""

FILE_OPTION = "--offset-json-file"
FILE_VERSION = 1


@ends_cleanly
def delete_records(
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="The topic's name.", show_default=False)
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="The partition.", show_default=False)] = None,
    offset: Annotated[
        int | None,
        typer.Option(min=-1, help="The first offset to keep; -1: delete all that can be read now.", show_default=False),
    ] = None,
    offset_json_file: Annotated[
        Path | None,
        typer.Option(
            FILE_OPTION,
            metavar="FILE",
            help="Offsets of many partitions, as JSON of kafka-delete-records.",
            dir_okay=False,
        ),
    ] = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Delete the records of a partition below an offset. The deletion is on disk when the command returns."""
    before = _asked(topic, partition, offset, offset_json_file)
    if not as_json:
        line("Executing records delete operation")
    results = run_admin(broker, lambda admin: admin.delete_records(before))
    if as_json:
        json_line([_document(key, result) for key, result in results.items()])
    else:
        line("Records delete operation completed:")
        for (name, number), result in results.items():
            what = f"low_watermark: {result}" if isinstance(result, int) else f"error: {result}"
            line(f"partition: {name}-{number}\t{what}")
    failed = [f"{name}-{number}" for (name, number), result in results.items() if not isinstance(result, int)]
    if failed:
        raise CommandFailed(f"no records were deleted from {', '.join(failed)}")


def _asked(topic: str | None, partition: int | None, offset: int | None, file: Path | None) -> dict[Key, int]:
    """Return the offsets from the file or the other three; a usage error for neither or both."""
    given = [option for option in (topic, partition, offset) if option is not None]
    if file is not None:
        if given:
            raise typer.BadParameter("leave out TOPIC, --partition and --offset with it", param_hint=FILE_OPTION)
        return checked(FILE_OPTION, parse_offsets, file.read_text("utf-8"))
    if topic is None or partition is None or offset is None:
        raise typer.BadParameter(f"give TOPIC, --partition and --offset, or {FILE_OPTION}")
    return {(topic, partition): offset}


def parse_offsets(text: str) -> dict[Key, int]:
    """Return the offsets in a file's `text`, by partition; ValueError if it is malformed or has one twice."""
    import msgspec

    class Row(msgspec.Struct):
        topic: str
        partition: int
        offset: int

    class Rows(msgspec.Struct):
        partitions: list[Row]
        version: int = FILE_VERSION

    try:
        rows = msgspec.json.decode(text, type=Rows)
    except msgspec.DecodeError as error:
        raise ValueError(f"the file is malformed: {error}") from None
    if rows.version != FILE_VERSION:
        raise ValueError(f"the file has version {rows.version}, expected {FILE_VERSION}")
    offsets: dict[Key, int] = {}
    for row in rows.partitions:
        if (row.topic, row.partition) in offsets:
            raise ValueError(f"partition {row.topic}-{row.partition} is in the file twice")
        offsets[row.topic, row.partition] = row.offset
    if not offsets:
        raise ValueError("the file names no partition")
    return offsets


def _document(key: Key, result: "int | ApiError") -> dict[str, object]:
    outcome = {"low_watermark": result} if isinstance(result, int) else {"error": str(result)}
    return {"topic": key[0], "partition": key[1], **outcome}
