"""The ways to read a consumer, one after another: each continues where the one before has stopped."""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing, suppress
from random import Random

from warmlog import Consumer

ALL = ("records", "batch", "arrow", "table")
READ_S = 0.2
"""How long a read waits."""


class Ways:
    """A choice of ways to read a consumer."""

    def __init__(self, consumer: Consumer, luck: Random, kinds: Sequence[str] = ALL) -> None:
        self._kinds = kinds
        self._consumer = consumer
        self._luck = luck

    async def read(self) -> list[tuple[int, bytes | None]]:
        """Return partitions and values of what comes next; nothing if nothing does for READ_S."""
        found: list[tuple[int, bytes | None]] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                match self._luck.choice(self._kinds):
                    case "records":
                        async with aclosing(self._consumer.records()) as records:
                            for _ in range(self._luck.randint(1, 9)):
                                record = await anext(records)
                                found.append((record.partition, record.value))
                    case "batch":
                        async with aclosing(self._consumer.batches()) as batches:
                            found += [(record.partition, record.value) for record in await anext(batches)]
                    case "arrow":
                        async with aclosing(self._consumer.arrow(columns=["partition", "value"])) as tables:
                            found += zip(*(await anext(tables)).to_pydict().values(), strict=True)
                    case "table":
                        table = await self._consumer.to_arrow(columns=["partition", "value"])
                        found += zip(*table.to_pydict().values(), strict=True)
        return found
