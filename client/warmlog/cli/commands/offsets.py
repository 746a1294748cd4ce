"""`warmlog offsets`: the first and last offsets of a topic's partitions, and those at a time."""

from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Topic, run_admin
from warmlog.cli.terminal.output import is_terminal, json_line, line, note, table
from warmlog.cli.terminal.tables import Instant
from warmlog.cli.terminal.times import nothing_after, parse_instant
from warmlog.times import milliseconds_of

if TYPE_CHECKING:
    from warmlog import OffsetAt


@ends_cleanly
def offsets(
    topic: Topic,
    at: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|-1h|TIME",
            help="A TIME is like 2013-07-01T00:00; without UTC offset it is local time.",
        ),
    ] = "latest",
    partition: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only this partition.", show_default=False)
    ] = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Show an offset of each partition.

    earliest is the first record that is kept, latest the end of the durable records, a TIME the first record at or
    after it, or the end if there is none. Plain output is topic:partition:offset, one a line, as Kafka's tool prints
    it. Offline partitions are left out, and then the command fails.
    """
    instant = checked("--at", parse_instant, at)
    partitions = None if partition is None else [partition]
    by_partition = run_admin(broker, lambda admin: admin.look_up_offsets(topic, instant, partitions), warns=True)
    results = [result for _, result in sorted(by_partition.items())]
    errors = [result for result in results if isinstance(result, Exception)]
    found = [result for result in results if not isinstance(result, Exception)]
    if as_json:
        json_line([_document(topic, offset) for offset in found])
    elif is_terminal():
        rows = [(offset.partition, offset.offset, Instant(offset.timestamp_ms)) for offset in found]
        table(("partition", "offset", "timestamp"), rows)
    else:
        for offset in found:
            line(f"{topic}:{offset.partition}:{offset.offset}")
    if not isinstance(instant, str) and found and all(offset.timestamp_ms < 0 for offset in found):
        note(nothing_after(milliseconds_of(instant)))
    if errors:
        raise CommandFailed("; ".join(map(str, errors)))


def _document(topic: str, at: "OffsetAt") -> dict[str, object]:
    return {
        "topic": topic,
        "partition": at.partition,
        "offset": at.offset,
        "timestamp_ms": at.timestamp_ms,
        "leader_epoch": at.leader_epoch,
    }
