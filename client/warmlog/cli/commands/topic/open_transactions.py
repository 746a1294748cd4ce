"""The transactions that hold readers of committed records back: as commands show them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from warmlog.cli.commands.txn import open_ms
from warmlog.cli.terminal.output import escaped, line, table
from warmlog.cli.terminal.tables import Age, Cell, human_age

if TYPE_CHECKING:
    from warmlog import Admin, PartitionDescription, TopicDescription, TransactionDescription

UNKNOWN = "a transaction that `warmlog txn list` does not show"


class Held(NamedTuple):
    """A partition that cannot be read to its end by readers of committed records."""

    topic: str
    partition: int
    offset: int
    """Where they wait."""
    transactions: "list[TransactionDescription]"
    """Those that have not ended in this partition, the oldest first; empty if the coordinator knows none."""


async def held_back(admin: "Admin", topics: "Sequence[TopicDescription]") -> list[Held]:
    """Return the partitions of `topics` that open transactions hold back, in order."""
    suspected = [topic for topic in topics if any(map(_may_be_held, topic.partitions))]
    if not suspected:
        return []
    # The offsets of one description are of different moments: only those of two show that readers wait.
    later = {topic.name: (await admin.describe_topic(topic.name)).partitions for topic in suspected}
    is_open = sorted(await admin.list_transactions(only_open=True), key=lambda each: each.began_ms)
    return [
        Held(
            topic.name,
            now.partition,
            now.last_stable_offset,
            [each for each in is_open if each.holds((topic.name, now.partition), topic.topic_id)],
        )
        for topic in suspected
        for before, now in zip(topic.partitions, later[topic.name], strict=False)
        if _may_be_held(before) and now.error is None and now.last_stable_offset < before.high_watermark
    ]


def _may_be_held(partition: "PartitionDescription") -> bool:
    return partition.error is None and partition.last_stable_offset < partition.high_watermark


def show_held(held: Sequence[Held]) -> None:
    """Print what holds which partition back, and for how long."""
    if held:
        line()
        table(
            ("partition", "committed end", "transaction", "state", "open for"),
            [row for each in held for row in _rows(each)],
        )


def _rows(held: Held) -> list[tuple[Cell, ...]]:
    place: tuple[Cell, ...] = (held.partition, held.offset)
    return [(*place, each.transactional_id, each.state, Age(open_ms(each) or 0)) for each in held.transactions] or [
        (*place, UNKNOWN, "", "")
    ]


def held_text(held: Held) -> str:
    """Return the same in one line."""
    names = [
        f"{escaped(each.transactional_id)} ({each.state}, open for {human_age(open_ms(each) or 0)})"
        for each in held.transactions
    ]
    return f"{held.topic}-{held.partition} from offset {held.offset} on: {', '.join(names) or UNKNOWN}"


def held_documents(held: Sequence[Held], partition: int) -> list[dict[str, Any]]:
    """Return the transactions that hold this partition back, for scripts."""
    return [
        {"transactional_id": each.transactional_id, "state": each.state, "open_ms": open_ms(each)}
        for one in held
        if one.partition == partition
        for each in one.transactions
    ]
