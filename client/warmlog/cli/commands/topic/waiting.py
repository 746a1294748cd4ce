"""What `consume --committed` and `topic copy` say while they wait for the end of a transaction."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

from warmlog.cli.commands.topic.open_transactions import Held, held_back, held_text
from warmlog.cli.terminal.output import note
from warmlog.errors import WarmlogError

if TYPE_CHECKING:
    from warmlog import Consumer

CHECK_S = 2.0
"""The pause between two looks at whether open transactions hold the consumer back."""


class CommittedWatch:
    """Tells which transactions a consumer waits for: while it waits, and when it has come to its end.

    Each transaction is told once for a partition.
    """

    def __init__(self, broker: str, login: dict[str, Any]) -> None:
        from warmlog import Admin

        self._admin = Admin(broker, **login)
        self._task: asyncio.Task[None] | None = None
        self._told: set[tuple[str, int, str]] = set()

    async def __aenter__(self) -> Self:
        await self._admin.start()
        return self

    def follow(self, consumer: "Consumer") -> None:
        """Begin to look where `consumer` waits."""
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

    async def end(self, consumer: "Consumer") -> bool:
        """Tell what `consumer`, at its end, has not read as transactions are open; whether there is any."""
        with suppress(WarmlogError):
            return await self._tell(consumer.positions(), "not read, as transactions are open")
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

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._admin.close()


def _keys(held: Held) -> set[tuple[str, int, str]]:
    ids = [each.transactional_id for each in held.transactions]
    return {(held.topic, held.partition, each) for each in ids or [""]}
