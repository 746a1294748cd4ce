"""`warmlog log dirs`: which data directories a broker has, and what lies in them. `warmlog log move`: to another one.

`dirs --json` prints the one line of JSON that Kafka's kafka-log-dirs prints, without the two lines of text before it::

    {"version":1,"brokers":[{"broker":1,"logDirs":[{"logDir":"/a","error":null,"partitions":[
        {"partition":"flights-0","size":4096,"offsetLag":0,"isFuture":false}]}]}]}
"""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, run_client
from warmlog.cli.terminal.output import Cell, json_line, note, table

if TYPE_CHECKING:
    from warmlog import LogDirDescription

HEADINGS = ("directory", "error", "total bytes", "usable bytes", "partition", "size", "offset lag", "future")


@ends_cleanly
def dirs(
    topic: Annotated[
        list[str] | None,
        typer.Argument(metavar="TOPIC", help="Only the partitions of these topics.", show_default=False),
    ] = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Show the broker's data directories, what lies in them, and what is on its way from one to another."""

    async def run() -> "list[LogDirDescription]":
        from warmlog import Admin

        async with Admin(broker) as admin:
            found = await admin.describe_log_dirs(topic or None)
            listed = {replica.topic for directory in found for replica in directory.replicas}
            for name in topic or ():
                if name not in listed:
                    await admin.describe_topic(name)  # raises when there is none
            return found

    found = run_client(run)
    if as_json:
        json_line(document(found))
    else:
        table(HEADINGS, [row for directory in found for row in _rows(directory)])


def document(directories: "list[LogDirDescription]") -> dict[str, object]:
    """What Kafka prints for the same."""
    brokers = [
        {"broker": broker, "logDirs": [_log_dir(each) for each in group]}
        for broker, group in groupby(directories, key=lambda each: each.broker)
    ]
    return {"version": 1, "brokers": brokers}


def _log_dir(directory: "LogDirDescription") -> dict[str, object]:
    partitions = [
        {
            "partition": f"{each.topic}-{each.partition}",
            "size": each.size_bytes,
            "offsetLag": each.offset_lag,
            "isFuture": each.is_future,
        }
        for each in directory.replicas
    ]
    return {"logDir": directory.path, "error": directory.error, "partitions": partitions}


def _rows(directory: "LogDirDescription") -> list[tuple[Cell, ...]]:
    """A row for each partition, or one for a directory without any."""
    own = (directory.path, directory.error or "", directory.total_bytes, directory.usable_bytes)
    rows: list[tuple[Cell, ...]] = [
        (*own, f"{each.topic}-{each.partition}", each.size_bytes, each.offset_lag, "yes" if each.is_future else "no")
        for each in directory.replicas
    ]
    return rows or [(*own, "", "", "", "")]


@ends_cleanly
def move(
    partition: Annotated[
        str, typer.Argument(metavar="TOPIC-PARTITION", help="The partition, such as flights-3.", show_default=False)
    ],
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The data directory to move it to.", show_default=False),
    ],
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Begin to move a partition to another data directory of the broker, while it is written and read.

    `warmlog log dirs` shows how far it is. The directory where the partition lies calls a move off.
    """
    topic, dash, number = partition.rpartition("-")
    if not (dash and topic and number.isdecimal()):
        raise typer.BadParameter(
            f"{partition!r} is not TOPIC-PARTITION, such as flights-3", param_hint="TOPIC-PARTITION"
        )

    async def run() -> "list[LogDirDescription]":
        from warmlog import Admin

        async with Admin(broker) as admin:
            before = await admin.describe_log_dirs([topic])
            await admin.move_partition(topic, int(number), directory)
            return before

    before = run_client(run)
    if as_json:
        json_line({"partition": partition, "logDir": str(directory)})
    else:
        note(f"{partition} {_outcome(before, (topic, int(number)), directory)}")


def _outcome(before: "list[LogDirDescription]", partition: tuple[str, int], directory: Path) -> str:
    """What asking for `directory` comes to, by where the partition and its copies were `before`."""
    places = {
        each.is_future: described.path
        for described in before
        for each in described.replicas
        if (each.topic, each.partition) == partition
    }
    home, target = places.get(False), places.get(True)
    if home is None or Path(home).resolve() != directory.resolve():
        return f"is on its way to {directory}"
    if target is None:
        return f"lies in {directory} already"
    return f"stays in {directory}: its move to {target} is called off"
