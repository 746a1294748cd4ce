"""`warmlog log dirs` shows a broker's data directories and their partitions; `warmlog log move` moves a partition.

`dirs --json` prints the same line of JSON as Kafka's kafka-log-dirs, without the two lines of text before it::

    {"version":1,"brokers":[{"broker":1,"logDirs":[{"logDir":"/a","error":null,"partitions":[
        {"partition":"flights-0","size":4096,"offsetLag":0,"isFuture":false}]}]}]}
"""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.terminal.options import client_options, print_result, run_admin
from warmlog.cli.terminal.output import counted, is_terminal, line, note, table
from warmlog.cli.terminal.paths import ANY_PATH
from warmlog.cli.terminal.tables import Cell, Count, Size

if TYPE_CHECKING:
    from warmlog import Admin, LogDirDescription, LogDirReplica

HEADINGS = ("directory", "error", "total bytes", "usable bytes", "partition", "size", "offset lag", "future")


@click.command()
@click.argument("topic", nargs=-1, metavar="[TOPIC]...", help="Only the partitions of these topics.")
@client_options
def dirs(topic: tuple[str, ...]) -> None:
    """Show the broker's data directories, the partitions in them, and those that are moving."""

    async def describe(admin: "Admin") -> "list[LogDirDescription]":
        found = await admin.describe_log_dirs(topic or None)
        listed = {replica.topic for directory in found for replica in directory.replicas}
        for name in topic:
            if name not in listed:
                await admin.describe_topic(name)  # raises if it does not exist
        return found

    found = run_admin(describe)
    print_result(document_of(found), lambda: _show(found))


def _show(directories: "list[LogDirDescription]") -> None:
    """Print a table of the directories, and one of their partitions; elsewhere than on a terminal, one of both."""
    if not is_terminal():
        table(HEADINGS, [row for directory in directories for row in _rows(directory)])
        return
    table(
        ("directory", "state", "partitions", "size", "free", "total"),
        [
            (
                each.path,
                each.error or "works",
                Count(len(each.replicas)),
                Size(sum(replica.size_bytes for replica in each.replicas)),
                Size(each.usable_bytes),
                Size(each.total_bytes),
            )
            for each in directories
        ],
    )
    rows = [
        (f"{replica.topic}-{replica.partition}", _state(replica), Size(replica.size_bytes), each.path)
        for each in directories
        for replica in each.replicas
    ]
    if rows:
        line()
        table(("partition", "state", "size", "directory"), rows)


def _state(replica: "LogDirReplica") -> str:
    if replica.is_future:
        return f"is moving here, {counted(replica.offset_lag, 'offset')} to go"
    if replica.offset_lag > 0:
        return f"works, {counted(replica.offset_lag, 'offset')} to go"
    return "offline" if replica.offset_lag < 0 else "works"


def document_of(directories: "list[LogDirDescription]") -> dict[str, object]:
    """Return the document that Kafka prints for the same."""
    brokers = []
    for broker, group in groupby(directories, key=lambda each: each.broker):
        log_dirs = []
        for directory in group:
            partitions = [
                {
                    "partition": f"{each.topic}-{each.partition}",
                    "size": each.size_bytes,
                    "offsetLag": each.offset_lag,
                    "isFuture": each.is_future,
                }
                for each in directory.replicas
            ]
            log_dirs.append({"logDir": directory.path, "error": directory.error, "partitions": partitions})
        brokers.append({"broker": broker, "logDirs": log_dirs})
    return {"version": 1, "brokers": brokers}


def _rows(directory: "LogDirDescription") -> list[tuple[Cell, ...]]:
    """Return a row for each partition, or one for a directory without any."""
    own = (directory.path, directory.error or "", directory.total_bytes, directory.usable_bytes)
    rows: list[tuple[Cell, ...]] = [
        (*own, f"{each.topic}-{each.partition}", each.size_bytes, each.offset_lag, "yes" if each.is_future else "no")
        for each in directory.replicas
    ]
    return rows or [(*own, "", "", "", "")]


@click.command()
@click.argument("partition", metavar="TOPIC-PARTITION", help="The partition, such as flights-3.")
@click.argument("directory", type=ANY_PATH, metavar="DIR", help="The data directory to move it to.")
@client_options
def move(partition: str, directory: Path) -> None:
    """Begin to move a partition to another data directory of the broker; it can be written and read meanwhile.

    `warmlog log dirs` shows the progress. Giving the directory where the partition is cancels a move.
    """
    topic, dash, number = partition.rpartition("-")
    if not (dash and topic and number.isdecimal()):
        raise click.BadParameter(
            f"{partition!r} is not TOPIC-PARTITION, such as flights-3", param_hint="TOPIC-PARTITION"
        )

    async def begin(admin: "Admin") -> "list[LogDirDescription]":
        before = await admin.describe_log_dirs([topic])
        await admin.move_partition(topic, int(number), directory)
        return before

    before = run_admin(begin)
    document = {"partition": partition, "logDir": str(directory)}
    print_result(document, lambda: note(f"{partition} {_outcome(before, (topic, int(number)), directory)}"))


def _outcome(before: "list[LogDirDescription]", partition: tuple[str, int], directory: Path) -> str:
    """Say what moving to `directory` does, given where the partition and its copy were `before`."""
    paths = {
        each.is_future: described.path
        for described in before
        for each in described.replicas
        if (each.topic, each.partition) == partition
    }
    home, target = paths.get(False), paths.get(True)
    if home is None or Path(home).resolve() != directory.resolve():
        return f"is moving to {directory}"
    if target is None:
        return f"is in {directory} already"
    return f"stays in {directory}: its move to {target} is cancelled"
