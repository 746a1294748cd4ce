"""`warmlog group adopt`: commit what groups have committed in a Kafka."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.terminal.options import client_options, run_admin
from warmlog.cli.terminal.output import counted, json_line, note, table
from warmlog.cli.terminal.paths import DIRECTORY
from warmlog.cli.terminal.tables import Cell

if TYPE_CHECKING:
    from warmlog import Admin
    from warmlog_broker.tools.adoption.group_offsets import Key


@click.command()
@click.argument("kafka", nargs=-1, required=True, type=DIRECTORY, metavar="KAFKA_DIR...", help="Data directories.")
@click.option("--group", "-g", "groups", multiple=True, metavar="NAME", help="Only this group. Repeatable.")
@click.option("--execute/--dry-run", "executes", help="Commit the offsets, or only show them.")
@client_options
def adopt(kafka: tuple[Path, ...], groups: tuple[str, ...], executes: bool, broker: str, as_json: bool) -> None:
    """Commit the offsets that groups have committed in a stopped Kafka, whose topics the broker has adopted.

    Partitions that the broker does not have are left out. Offsets outside of the log become its nearest end. A group
    with members is refused. The offsets are on disk when the command returns.
    """
    from warmlog_broker.tools.adoption.group_offsets import committed_in

    found = {key: at for key, at in committed_in(kafka).items() if not groups or key[0] in groups}

    async def commit(admin: "Admin") -> "dict[Key, int]":
        known = {each.name: len(each.partitions) for each in await admin.list_topics()}
        commits: dict[str, dict[tuple[str, int], int]] = {}
        for (group, topic, partition), offset in found.items():
            if partition < known.get(topic, 0):
                commits.setdefault(group, {})[topic, partition] = offset
        done: dict[Key, int] = {}
        for group, wanted in commits.items():
            resets = await admin.reset_offsets(group, wanted, dry_run=not executes)
            done |= {(group, *partition): each.offset for partition, each in resets.items()}
        return done

    done = run_admin(broker, commit)
    if as_json:
        names = ("group", "topic", "partition", "offset")
        json_line(
            {"executed": executes, "offsets": [dict(zip(names, (*key, at), strict=True)) for key, at in done.items()]}
        )
        return
    rows: list[tuple[Cell, ...]] = [(*key, at, done.get(key, "no such partition")) for key, at in found.items()]
    table(("group", "topic", "partition", "in Kafka", "here"), rows)
    what = f"{counted(len({group for group, *_ in done}), 'group')}, {counted(len(done), 'partition')}"
    note(f"committed: {what}" if executes else f"nothing was changed: add --execute to commit the offsets of {what}")
