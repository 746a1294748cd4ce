"""`warmlog group list`, `warmlog group describe` and `warmlog group members`."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from warmlog.cli.commands.group.lag import age_cell, lag_document, total_lag
from warmlog.cli.terminal.exits import CommandFailed, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Group, run_admin
from warmlog.cli.terminal.output import counted, escaped, facts, is_terminal, json_line, line, table
from warmlog.cli.terminal.tables import Cell, Count, Instant, human_age

if TYPE_CHECKING:
    from warmlog import Admin, GroupDescription, GroupLag, MemberDescription

TopicPartition = tuple[str, int]


@ends_cleanly
def list_groups(broker: Broker = DEFAULT_BROKER, as_json: AsJson = False) -> None:
    """List all consumer groups: one name a line; on a terminal with state and number of members."""
    found = run_admin(broker, lambda admin: admin.list_groups())
    if as_json:
        json_line([{"name": each.name, "state": each.state, "members": each.member_count} for each in found])
    elif is_terminal():
        table(("group", "state", "members"), [(each.name, each.state, Count(each.member_count)) for each in found])
    else:
        for each in found:
            line(escaped(each.name))


@ends_cleanly
def describe(group: Group, broker: Broker = DEFAULT_BROKER, as_json: AsJson = False) -> None:
    """Show how far a group is behind in each partition, and which member reads it.

    Lag counts the records that are not read yet; behind is the age of the first of them, in milliseconds outside of
    terminals. The exit code is 1 if a partition is offline.
    """

    async def ask(admin: "Admin") -> "tuple[GroupDescription, dict[TopicPartition, GroupLag]]":
        return await admin.describe_group(group), (await admin.group_lags([group]))[group]

    found, lags = run_admin(broker, ask, warns=True)
    if as_json:
        json_line(_document(found, lags))
    else:
        _show(found, lags)
    errors = [str(lag.error) for lag in lags.values() if lag.error is not None]
    if errors:
        raise CommandFailed("; ".join(errors))


@ends_cleanly
def members(group: Group, broker: Broker = DEFAULT_BROKER, as_json: AsJson = False) -> None:
    """Show the members of a group, and the partitions that each of them reads."""
    found = run_admin(broker, lambda admin: admin.describe_group(group))
    if as_json:
        json_line([_member_document(member) for member in found.members])
        return
    rows: list[tuple[Cell, ...]] = [
        (
            member.instance_id or member.member_id,
            member.client_id,
            member.host,
            member.member_epoch,
            partitions_text(member.assigned),
            partitions_text(member.revoking),
            Instant(member.last_heartbeat_ms),
        )
        for member in found.members
    ]
    table(("member", "client", "host", "epoch", "reads", "gives up", "last heartbeat"), rows)


def _show(found: "GroupDescription", lags: "dict[TopicPartition, GroupLag]") -> None:
    whole = total_lag(lags.values())
    behind = "" if whole.seconds is None else f", {human_age(round(whole.seconds * 1000))} behind"
    state = found.state if found.group_epoch == found.target_epoch else f"{found.state}, a new assignment is due"
    facts(
        [
            ("group", found.name),
            ("state", state),
            ("members", counted(len(found.members), "member")),
            ("lag", f"{counted(whole.records, 'record')}{behind}"),
            ("assignor", found.assignor or "none"),
            ("epoch", str(found.group_epoch)),
        ]
    )
    readers = {tp: each.instance_id or each.member_id for each in found.members for tp in each.assigned}
    headings = ["topic", "partition", "committed", "end", "lag", "behind", "member"]
    if any(lag.metadata for lag in lags.values()):
        headings.append("metadata")
    rows = [_row(tp, lags.get(tp), readers.get(tp, ""))[: len(headings)] for tp in sorted({*lags, *readers})]
    if rows:
        line()
        table(headings, rows)


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
        texts.append(f"{topic} {','.join(_run([number for _, number in run]) for _, run in runs)}")
    return "; ".join(texts)


def _run(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


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
        "partitions": [lag_document(lag) for lag in lags.values()],
        "members": [_member_document(member) for member in found.members],
    }


def _member_document(member: "MemberDescription") -> dict[str, Any]:
    return {
        **asdict(member),
        "instance_id": member.instance_id or None,
        "pattern": member.pattern or None,
        "assigned": _tp_documents(member.assigned),
        "revoking": _tp_documents(member.revoking),
        "target": _tp_documents(member.target),
    }


def _tp_documents(partitions: Sequence[TopicPartition]) -> list[dict[str, object]]:
    return [{"topic": topic, "partition": partition} for topic, partition in partitions]
