"""`warmlog topic delete-records`: delete the oldest records of partitions.

The file, and the output outside of terminals, are those of kafka-delete-records::

    {"partitions": [{"topic": "flights", "partition": 0, "offset": 14000}], "version": 1}
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.terminal.exits import CommandFailed, checked, confirm, must_ask
from warmlog.cli.terminal.options import certain_option, client_options, print_result, run_admin, topic_names
from warmlog.cli.terminal.output import counted, is_terminal, line, note, table
from warmlog.cli.terminal.paths import NEW_FILE

if TYPE_CHECKING:
    from warmlog import Admin, ApiError, OffsetAt

Key = tuple[str, int]
"""Topic and partition."""
Offsets = dict[Key, int]
"""The first offset to keep of each partition."""

FILE_OPTION = "--offset-json-file"
FILE_VERSION = 1
EVERYTHING = -1
"""As an offset: delete all that can be read."""


@click.command()
@click.argument("topic", required=False, metavar="[TOPIC]", shell_complete=topic_names, help="The topic's name.")
@click.option("--partition", type=click.IntRange(min=0), help="The partition; all of them if not given.")
@click.option(
    "--offset",
    type=click.IntRange(min=EVERYTHING),
    help="The first offset to keep; -1: delete all that can be read now.",
)
@click.option("--before", metavar="TIME", help="Delete the records before the first one at or after TIME.")
@click.option(
    FILE_OPTION,
    "offset_json_file",
    type=NEW_FILE,
    metavar="FILE",
    help="Offsets of many partitions, as JSON of kafka-delete-records.",
)
@certain_option
@client_options
def delete_records(
    topic: str | None,
    partition: int | None,
    offset: int | None,
    before: str | None,
    offset_json_file: Path | None,
    is_certain: bool,
) -> None:
    """Delete the oldest records of a topic. Asks for confirmation, unless --yes is given.

    Give --offset or --before, or a file. The deletion is on disk when the command returns.
    """
    find = _finder(topic, partition, offset, before, offset_json_file)
    wanted = run_admin(find)
    if must_ask(is_certain=is_certain):
        _confirm(wanted)
    if offset_json_file is not None:
        note("executing records delete operation")
    results = run_admin(lambda admin: admin.delete_records(wanted))
    print_result([_document(key, result) for key, result in results.items()], lambda: _print(results))
    failed = [f"{name}-{number}" for (name, number), result in results.items() if not isinstance(result, int)]
    if failed:
        raise CommandFailed(f"no records were deleted from {', '.join(failed)}")


def _finder(
    topic: str | None, partition: int | None, offset: int | None, before: str | None, file: Path | None
) -> "Callable[[Admin], Awaitable[Offsets]]":
    """Return the lookup for the options; a usage error unless they are of exactly one of the three ways."""
    known: Offsets = {}
    before_ms = None
    if file is not None:
        if any(option is not None for option in (topic, partition, offset, before)):
            raise click.BadParameter(
                "leave out TOPIC, --partition, --offset and --before with it", param_hint=FILE_OPTION
            )
        known = checked(FILE_OPTION, parse_offsets, file.read_text("utf-8"))
    elif topic is None or (offset is None) == (before is None):
        raise click.BadParameter(f"give TOPIC and either --offset or --before, or {FILE_OPTION}")
    elif before is not None:
        from warmlog.cli.terminal.times import parse_time_ms

        before_ms = checked("--before", parse_time_ms, before)
    elif partition is None and offset != EVERYTHING:
        raise click.BadParameter(
            f"an offset counts in one partition: give --partition, too, or --offset {EVERYTHING} for all records",
            param_hint="--offset",
        )

    async def find(admin: "Admin") -> Offsets:
        if topic is None:
            return known
        numbers = None if partition is None else [partition]
        if before_ms is not None:
            found = await admin.list_offsets(topic, before_ms, numbers)
            return {(topic, number): at.offset for number, at in found.items()}
        assert offset is not None
        return {(topic, number): offset for number in numbers or await admin.look_up_offsets(topic, "earliest")}

    return find


def _confirm(wanted: Offsets) -> None:
    """Ask whether so many records are to be deleted; CommandFailed unless the user agrees."""

    async def count(admin: "Admin") -> int:
        names = {name for name, _ in wanted}
        starts = {name: await admin.look_up_offsets(name, "earliest") for name in names}
        ends = {name: await admin.look_up_offsets(name, "latest") for name in names}
        return sum(
            _deletable(starts[name].get(number), ends[name].get(number), offset)
            for (name, number), offset in wanted.items()
        )

    records = run_admin(count)
    names = ", ".join(sorted({name for name, _ in wanted}))
    question = f"Delete {counted(records, 'record')} of {names} in {counted(len(wanted), 'partition')}?"
    confirm(question, "no records were deleted", is_certain=False)


def _deletable(start: "OffsetAt | ApiError | None", end: "OffsetAt | ApiError | None", offset: int) -> int:
    """Return how many offsets of a partition are deleted; 0 if its offsets are unknown: the deletion says why."""
    if start is None or end is None or isinstance(start, Exception) or isinstance(end, Exception):
        return 0
    return max(min(end.offset, end.offset if offset == EVERYTHING else offset) - start.offset, 0)


def _print(results: "dict[Key, int | ApiError]") -> None:
    if is_terminal():
        rows = [(*key, result if isinstance(result, int) else f"error: {result}") for key, result in results.items()]
        table(("topic", "partition", "first offset"), rows)
        return
    for (name, number), result in results.items():
        what = f"low_watermark: {result}" if isinstance(result, int) else f"error: {result}"
        line(f"partition: {name}-{number}\t{what}")


def parse_offsets(text: str) -> Offsets:
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
    offsets: Offsets = {}
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
