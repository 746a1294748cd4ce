"""The transactions that hold readers of committed records back: what commands say of them, and while they wait."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from warmlog.cli.commands.txn import open_ms
from warmlog.cli.terminal.options import connection
from warmlog.cli.terminal.output import escaped, line, note, table
from warmlog.cli.terminal.tables import Age, Cell, human_age
from warmlog.errors import WarmlogError

if TYPE_CHECKING:
    from warmlog import Admin, Consumer, PartitionDescription, TopicDescription, TransactionDescription

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
    """Print what holds which partition back, and for how long; ages are in milliseconds outside of terminals."""
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


CHECK_S = 2.0
"""The pause between two looks at whether open transactions hold the consumer back."""


class CommittedWatch:
    """Tells which transactions a consumer waits for: while it waits, and when it has come to its end.

    Each transaction is told once for a partition.
    """

    def __init__(self, broker: str) -> None:
        from warmlog import Admin

        self._admin = Admin(broker, **connection())
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._told: set[tuple[str, int, str]] = set()

    async def __aenter__(self) -> Self:
        await self._admin.start()
        return self

    def follow(self, consumer: "Consumer") -> None:
        """Begin to look where `consumer` waits."""
        self._consumer = consumer
        self._task = asyncio.create_task(self._watch(consumer), name="warmlog open transactions")

    async def _watch(self, consumer: "Consumer") -> None:
        before: dict[str, int] = {}
        while True:
            await asyncio.sleep(CHECK_S)
            positions = consumer.positions()
            if positions == before:
                with suppress(WarmlogError):  # the consumer has it, too, or its user may not describe the topics
                    await self._tell(positions, "waiting for the end of transactions")
            before = positions

    async def end(self) -> bool:
        """Tell what was not read as transactions are open, if nothing more is to be read; whether there is any."""
        assert self._consumer is not None
        with suppress(WarmlogError):
            return await self._tell(self._consumer.positions(), "not read, as transactions are open")
        return False

    async def _tell(self, read: Mapping[str, int], what: str) -> bool:
        names = sorted({each.rpartition("-")[0] for each in read})
        topics = [await self._admin.describe_topic(name) for name in names]
        held = await held_back(self._admin, topics)
        found = [each for each in held if each.offset <= read.get(f"{each.topic}-{each.partition}", -1)]
        news = [each for each in found if not _keys(each) <= self._told]
        self._told.update(*map(_keys, news))
        for each in news:
            note(f"{what}: {held_text(each)}")
        return bool(found)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._admin.close()


def _keys(held: Held) -> set[tuple[str, int, str]]:
    ids = [each.transactional_id for each in held.transactions]
    return {(held.topic, held.partition, each) for each in ids or [""]}
