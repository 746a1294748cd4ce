"""`warmlog group list`, `describe`, `members`, `reset`, `adopt` and `delete`."""

from collections.abc import Collection, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from warmlog.cli.terminal import options
from warmlog.cli.terminal.exits import CommandFailed, checked, confirm_deletion
from warmlog.cli.terminal.output import counted, escaped, facts, is_terminal, json_line, line, note, table
from warmlog.cli.terminal.paths import DIRECTORY
from warmlog.cli.terminal.tables import Age, Cell, Count, Instant, human_age, local_time

if TYPE_CHECKING:
    from warmlog import Admin, GroupDescription, GroupLag, MemberDescription, OffsetReset
    from warmlog_broker.tools.adoption.group_offsets import Key

TopicPartition = tuple[str, int]

PARTITION_HEADINGS = ("topic", "partition", "committed", "end", "lag", "behind", "member", "metadata")
MEMBER_HEADINGS = ("member", "client", "host", "epoch", "reads", "gives up", "last heartbeat")
TIMES = "2013-07-01T00:00 (without UTC offset it is local time)"


class TotalLag(NamedTuple):
    """All unread records of a group, and the age of the oldest; None if it is unknown."""

    records: int
    seconds: float | None


def total_lag(lags: "Collection[GroupLag]") -> TotalLag:
    """Return the sum over partitions; those whose figures are unknown count as none, but leave no age of 0."""
    seconds = [lag.seconds for lag in lags]
    known = [age for age in seconds if age is not None and (age or None not in seconds)]
    return TotalLag(sum(lag.records or 0 for lag in lags), max(known, default=None))


def age_cell(seconds: float | None) -> Cell:
    """Return a cell with the age; empty if it is unknown."""
    return "" if seconds is None else Age(round(seconds * 1000))


@click.command()
@options.client_options
def list_groups() -> None:
    """List all consumer groups: one name a line; on a terminal with state and number of members."""
    found = options.run_admin(lambda admin: admin.list_groups())

    def say() -> None:
        if is_terminal():
            table(("group", "state", "members"), [(each.name, each.state, Count(each.member_count)) for each in found])
        else:
            for each in found:
                line(escaped(each.name))

    options.print_result(
        [{"name": each.name, "state": each.state, "members": each.member_count} for each in found], say
    )


@click.command()
@options.group_argument
@options.client_options
def describe(group: str) -> None:
    """Show how far a group is behind in each partition, and which member reads it.

    Lag counts the records that are not read yet; behind is the age of the first of them. The exit code is 1 if a
    partition is offline.
    """

    async def ask(admin: "Admin") -> "tuple[GroupDescription, dict[TopicPartition, GroupLag]]":
        return await admin.describe_group(group), (await admin.group_lags([group]))[group]

    found, lags = options.run_admin(ask, warns=True)

    def say() -> None:
        facts([("group", found.name), *facts_of(found, lags).items()])
        has_metadata = any(lag.metadata for lag in lags.values())
        headings = PARTITION_HEADINGS if has_metadata else PARTITION_HEADINGS[:-1]
        rows = [row[: len(headings)] for row in partition_rows(found, lags)]
        if rows:
            line()
            table(headings, rows)

    options.print_result(_document(found, lags), say)
    errors = [str(lag.error) for lag in lags.values() if lag.error is not None]
    if errors:
        raise CommandFailed("; ".join(errors))


@click.command()
@options.group_argument
@options.client_options
def members(group: str) -> None:
    """Show the members of a group, and the partitions that each of them reads."""
    found = options.run_admin(lambda admin: admin.describe_group(group))
    options.print_result(_member_documents(found), lambda: table(MEMBER_HEADINGS, list(map(member_row, found.members))))


def member_row(member: "MemberDescription") -> tuple[Cell, ...]:
    return (
        member.instance_id or member.member_id,
        member.client_id,
        member.host,
        member.member_epoch,
        partitions_text(member.assigned),
        partitions_text(member.revoking),
        Instant(member.last_heartbeat_ms),
    )


def facts_of(found: "GroupDescription", lags: "dict[TopicPartition, GroupLag]") -> dict[str, str]:
    whole = total_lag(lags.values())
    behind = "" if whole.seconds is None else f", {human_age(round(whole.seconds * 1000))} behind"
    is_assigned = not found.members or found.group_epoch == found.target_epoch
    return {
        "state": found.state if is_assigned else f"{found.state}, a new assignment is due",
        "members": counted(len(found.members), "member"),
        "lag": f"{counted(whole.records, 'record')}{behind}",
        "assignor": found.assignor or "none",
        "epoch": str(found.group_epoch),
    }


def partition_rows(found: "GroupDescription", lags: "dict[TopicPartition, GroupLag]") -> list[tuple[Cell, ...]]:
    """Return a row under PARTITION_HEADINGS for each partition that the group has read or is to read."""
    readers = {tp: each.instance_id or each.member_id for each in found.members for tp in each.assigned}
    return [_row(tp, lags.get(tp), readers.get(tp, "")) for tp in sorted({*lags, *readers})]


def _row(tp: TopicPartition, lag: "GroupLag | None", reader: str) -> tuple[Cell, ...]:
    if lag is None:
        return (*tp, "", "", "", "", reader, "")
    end: Cell = "" if lag.high_watermark is None else lag.high_watermark
    records: Cell = "" if lag.records is None else Count(lag.records)
    return (*tp, lag.committed, end, records, age_cell(lag.seconds), reader, lag.metadata)


def partitions_text(partitions: Sequence[TopicPartition]) -> str:
    """Return partitions, which are sorted, in few words: "orders 0-3,5; flights 1"."""
    texts = []
    for topic, own in groupby(partitions, key=lambda tp: tp[0]):
        numbers = [number for _, number in own]
        runs = groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
        ends = [(run[0][1], run[-1][1]) for run in (list(run) for _, run in runs)]
        shown = (str(first) if first == last else f"{first}-{last}" for first, last in ends)
        texts.append(f"{topic} {','.join(shown)}")
    return "; ".join(texts)


def _document(found: "GroupDescription", lags: "dict[TopicPartition, GroupLag]") -> dict[str, Any]:
    whole = total_lag(lags.values())
    return {
        "name": found.name,
        "state": found.state,
        "group_epoch": found.group_epoch,
        "target_epoch": found.target_epoch,
        "assignor": found.assignor,
        "lag_records": whole.records,
        "lag_seconds": whole.seconds,
        "partitions": [
            {
                "topic": lag.topic,
                "partition": lag.partition,
                "committed": lag.committed,
                "log_start_offset": lag.log_start_offset,
                "high_watermark": lag.high_watermark,
                "lag_records": lag.records,
                "lag_seconds": lag.seconds,
                "metadata": lag.metadata,
                "error": None if lag.error is None else str(lag.error),
            }
            for lag in lags.values()
        ],
        "members": _member_documents(found),
    }


def _member_documents(found: "GroupDescription") -> list[dict[str, Any]]:
    from msgspec.structs import asdict

    documents = []
    for member in found.members:
        document = asdict(member) | {"instance_id": member.instance_id or None, "pattern": member.pattern or None}
        for name in ("assigned", "revoking", "target"):
            document[name] = [{"topic": topic, "partition": partition} for topic, partition in document[name]]
        documents.append(document)
    return documents


@click.command()
@options.group_argument
@click.option(
    "--to",
    required=True,
    metavar="earliest|latest|OFFSET|-10m|TIME|+N|-N",
    help=f"Where to; a TIME is like {TIMES}; +N and -N shift what is committed.",
)
@click.option(
    "--topic",
    multiple=True,
    metavar="TOPIC",
    shell_complete=options.topic_names,
    help="Only this topic, also if nothing is committed for it. Repeatable.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="Only this partition of the --topic. Repeatable.",
)
@click.option("--execute/--dry-run", "executes", help="Commit the new offsets, or only show them.")
@options.client_options
def reset(group: str, to: str, topic: tuple[str, ...], partition: tuple[int, ...], executes: bool) -> None:
    """Move the committed offsets of a group without members, or show where they would be.

    All partitions of the topics for which the group has committed offsets are moved, or those of --topic. Offsets
    outside of the log become its nearest end. skipped counts the records that the group will not read because of it,
    repeated those that it will read again. The new offsets are on disk when the command returns.
    """
    from warmlog.points import Point, PointKind, parse_target

    where = checked("--to", parse_target, to)
    if isinstance(where, Point) and where.kind is PointKind.TIME:
        note(f"the first record at or after {local_time(where.number)}")
    topics = list(dict.fromkeys(topic))
    if partition and len(topics) != 1:
        raise click.BadParameter("a partition belongs to one topic: give one --topic, too", param_hint="--partition")

    async def move(admin: "Admin") -> "list[OffsetReset]":
        chosen = await _partitions(admin, topics, partition) if topics else None
        return list((await admin.reset_offsets(group, where, chosen, dry_run=not executes)).values())

    resets = options.run_admin(move)
    if options.wants_json():
        from msgspec.structs import asdict

        documents = [{**asdict(each), "skipped": each.skipped, "repeated": each.repeated} for each in resets]
        json_line({"group": group, "executed": executes, "partitions": documents})
        return
    rows: list[tuple[Cell, ...]] = [
        (
            each.topic,
            each.partition,
            "" if each.committed is None else each.committed,
            each.offset,
            Count(each.skipped),
            Count(each.repeated),
            "" if each.first_record_ms is None else Instant(each.first_record_ms),
        )
        for each in resets
    ]
    table(("topic", "partition", "committed", "new offset", "skipped", "repeated", "its time"), rows)
    if executes:
        note(f"committed the new offsets of group {group} in {counted(len(resets), 'partition')}")
    else:
        note("nothing was changed: add --execute to commit the new offsets")


async def _partitions(admin: "Admin", topics: list[str], numbers: Sequence[int]) -> list[TopicPartition]:
    if numbers:
        return [(topics[0], number) for number in numbers]
    described = [await admin.describe_topic(name) for name in topics]
    return [(found.name, each.partition) for found in described for each in found.partitions]


@click.command()
@click.argument("kafka", nargs=-1, required=True, type=DIRECTORY, metavar="KAFKA_DIR...", help="Data directories.")
@click.option("--group", "-g", "groups", multiple=True, metavar="NAME", help="Only this group. Repeatable.")
@click.option("--execute/--dry-run", "executes", help="Commit the offsets, or only show them.")
@click.option(
    "--force", "is_forced", is_flag=True, help="Also those of groups that have committed here: set them back."
)
@options.client_options
def adopt(kafka: tuple[Path, ...], groups: tuple[str, ...], executes: bool, is_forced: bool) -> None:
    """Commit the offsets that groups have committed in a stopped Kafka, whose topics the broker has adopted.

    Partitions that the broker does not have are left out, and groups that have committed some of these offsets here:
    they have been adopted, or have read since. Offsets outside of the log become its nearest end. A group
    with members is refused. The offsets are on disk when the command returns.
    """
    from warmlog_broker.tools.adoption.group_offsets import committed_in

    found = {key: at for key, at in committed_in(kafka).items() if not groups or key[0] in groups}

    async def commit(admin: "Admin") -> "dict[Key, OffsetReset]":
        known = {each.name: len(each.partitions) for each in await admin.list_topics()}
        commits: dict[str, dict[tuple[str, int], int]] = {}
        for (group, topic, partition), offset in found.items():
            if partition < known.get(topic, 0):
                commits.setdefault(group, {})[topic, partition] = offset
        planned: dict[Key, OffsetReset] = {}
        for group, wanted in commits.items():
            resets = await admin.reset_offsets(group, wanted)
            planned |= {(group, *partition): each for partition, each in resets.items()}
            if any(each.committed is not None for each in resets.values()) and not is_forced:
                left_out.add(group)
            elif executes:
                await admin.reset_offsets(group, wanted, dry_run=False)
        return planned

    left_out: set[str] = set()
    planned = options.run_admin(commit)
    done = {key: each.offset for key, each in planned.items() if key[0] not in left_out}
    if options.wants_json():
        names = ("group", "topic", "partition", "offset")
        offsets = [dict(zip(names, (*key, at), strict=True)) for key, at in done.items()]
        json_line({"executed": executes, "offsets": offsets, "left_out": sorted(left_out)})
        return
    rows: list[tuple[Cell, ...]] = []
    for key, at in found.items():
        committed = planned[key].committed if key in planned else None
        here = done.get(key, "left out" if key in planned else "no such partition")
        rows.append((*key, at, "" if committed is None else committed, here))
    table(("group", "topic", "partition", "in Kafka", "committed here", "will be"), rows)
    if left_out:
        note(f"left out, since they have committed here: {', '.join(sorted(left_out))}; --force sets them back")
    what = f"{counted(len({group for group, *_ in done}), 'group')}, {counted(len(done), 'partition')}"
    note(f"committed: {what}" if executes else f"nothing was changed: add --execute to commit the offsets of {what}")


@click.command()
@options.groups_argument
@options.certain_option
@options.client_options
def delete(groups: tuple[str, ...], is_certain: bool) -> None:
    """Delete groups without members, and their committed offsets. Asks for confirmation, unless --yes is given.

    Nothing is deleted if one of the groups has members or does not exist.
    """
    names = list(dict.fromkeys(groups))

    async def check(admin: "Admin") -> None:
        for name in names:
            await admin.describe_group(name)

    options.run_admin(check)
    one = f"group {names[0]} and its committed offsets"
    several = f"{counted(len(names), 'group')} ({', '.join(names)}) and their committed offsets"
    confirm_deletion(names, one, several, is_certain=is_certain)
    options.run_admin(lambda admin: admin.delete_groups(names))
    documents = [{"name": name, "deleted": True} for name in names]

    def say() -> None:
        for name in names:
            note(f"deleted group {name}")

    options.print_result(documents[0] if len(names) == 1 else documents, say)
