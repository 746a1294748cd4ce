"""`warmlog topic delete-records`: gives up the oldest records of partitions.

A file says it for many partitions at once, as it does for kafka-delete-records, whose output this is too::

    {"partitions": [{"topic": "flights", "partition": 0, "offset": 14000}], "version": 1}
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, run_client
from warmlog.cli.terminal.output import json_line, line

if TYPE_CHECKING:
    from warmlog import ApiError

Place = tuple[str, int]

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
        typer.Option(min=-1, help="The first offset that stays; -1: all go that may be read now.", show_default=False),
    ] = None,
    offset_json_file: Annotated[
        Path | None,
        typer.Option(
            FILE_OPTION,
            metavar="FILE",
            help="Many partitions at once, as kafka-delete-records takes them.",
            dir_okay=False,
        ),
    ] = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Delete the oldest records of a partition: those below an offset. It is on disk when the command returns."""
    before = _asked(topic, partition, offset, offset_json_file)

    async def run() -> "dict[Place, int | ApiError]":
        from warmlog import Admin

        async with Admin(broker) as admin:
            return await admin.delete_records(before)

    if not as_json:
        line("Executing records delete operation")
    results = run_client(run)
    if as_json:
        json_line([_document(place, result) for place, result in results.items()])
    else:
        line("Records delete operation completed:")
        for (name, number), result in results.items():
            what = f"low_watermark: {result}" if isinstance(result, int) else f"error: {result}"
            line(f"partition: {name}-{number}\t{what}")
    failed = [f"{name}-{number}" for (name, number), result in results.items() if not isinstance(result, int)]
    if failed:
        raise CommandFailed(f"no records were deleted of {', '.join(failed)}")


def _asked(topic: str | None, partition: int | None, offset: int | None, file: Path | None) -> dict[Place, int]:
    """What to delete, from the file or from the three others; a usage error when it is neither or both."""
    given = [option for option in (topic, partition, offset) if option is not None]
    if file is not None:
        if given:
            raise typer.BadParameter("it says topic, partition and offset itself", param_hint=FILE_OPTION)
        return checked(FILE_OPTION, parse_offsets, file.read_text("utf-8"))
    if topic is None or partition is None or offset is None:
        raise typer.BadParameter(f"TOPIC, --partition and --offset are needed, or {FILE_OPTION}")
    return {(topic, partition): offset}


def parse_offsets(text: str) -> dict[Place, int]:
    """The offsets in a file's `text`, by partition; ValueError when it is not of the form, or says something twice."""
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
        raise ValueError(f"not what was expected: {error}") from None
    if rows.version != FILE_VERSION:
        raise ValueError(f"version {rows.version}, only {FILE_VERSION} is known")
    offsets: dict[Place, int] = {}
    for row in rows.partitions:
        if (row.topic, row.partition) in offsets:
            raise ValueError(f"partition {row.topic}-{row.partition} is in it twice")
        offsets[row.topic, row.partition] = row.offset
    if not offsets:
        raise ValueError("there is no partition in it")
    return offsets


def _document(place: Place, result: "int | ApiError") -> dict[str, object]:
    topic, partition = place
    document: dict[str, object] = {"topic": topic, "partition": partition}
    if isinstance(result, int):
        return document | {"low_watermark": result}
    return document | {"error": str(result)}
