"""`warmlog group reset`: move the committed offsets of a group."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Group, run_admin, topic_names
from warmlog.cli.terminal.output import counted, json_line, note, table
from warmlog.cli.terminal.tables import Cell, Count
from warmlog.points import parse_target

if TYPE_CHECKING:
    from warmlog import Admin, OffsetReset

TopicPartition = tuple[str, int]

TIMES = "2013-07-01T00:00 (without UTC offset it is local time)"


@ends_cleanly
def reset(
    group: Group,
    to: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|OFFSET|-10m|TIME|+N|-N",
            help=f"Where to; a TIME is like {TIMES}; +N and -N shift what is committed.",
            show_default=False,
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Only this topic, also if nothing is committed for it. Repeatable.",
            autocompletion=topic_names,
        ),
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option(min=0, metavar="N", help="Only this partition of the --topic. Repeatable.")
    ] = None,
    executes: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Commit the new offsets, or only show them.")
    ] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Move the committed offsets of a group without members, or show where they would be.

    All partitions of the topics for which the group has committed offsets are moved, or those of --topic. Offsets
    outside of the log become its nearest end. skipped counts the records that the group will not read because of it,
    repeated those that it will read again. The new offsets are on disk when the command returns.
    """
    where = checked("--to", lambda text: parse_target(text, zone=None), to)
    topics = list(dict.fromkeys(topic or ()))
    if partition and len(topics) != 1:
        raise typer.BadParameter("a partition belongs to one topic: give one --topic, too", param_hint="--partition")

    async def move(admin: "Admin") -> "list[OffsetReset]":
        chosen = await _partitions(admin, topics, partition or []) if topics else None
        return list((await admin.reset_offsets(group, where, chosen, dry_run=not executes)).values())

    resets = run_admin(broker, move)
    if as_json:
        json_line({"group": group, "executed": executes, "partitions": [_document(each) for each in resets]})
        return
    table(("topic", "partition", "committed", "new offset", "skipped", "repeated"), [_row(each) for each in resets])
    if executes:
        note(f"committed the new offsets of group {group} in {counted(len(resets), 'partition')}")
    else:
        note("nothing was changed: add --execute to commit the new offsets")


async def _partitions(admin: "Admin", topics: list[str], numbers: list[int]) -> list[TopicPartition]:
    if numbers:
        return [(topics[0], number) for number in numbers]
    described = [await admin.describe_topic(name) for name in topics]
    return [(found.name, each.partition) for found in described for each in found.partitions]


def _row(reset: "OffsetReset") -> tuple[Cell, ...]:
    old: Cell = "" if reset.committed is None else reset.committed
    return reset.topic, reset.partition, old, reset.offset, Count(reset.skipped), Count(reset.repeated)


def _document(reset: "OffsetReset") -> dict[str, object]:
    return {**asdict(reset), "skipped": reset.skipped, "repeated": reset.repeated}
