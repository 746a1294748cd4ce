"""A decided transaction that is being carried out, and the transaction that may follow it at once."""

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from msgspec.structs import replace

from warmlog_broker.coordinator.framework.shard import Shard
from warmlog_broker.coordinator.transaction.decisions.records import Status
from warmlog_broker.coordinator.transaction.decisions.state import Enrolled, Job, Producer, Transaction, Transactions

LINGER_S = 0.05


class Ending:
    """A decided transaction that is being carried out.

    Its last record says that the transactional id is free. A producer that goes on at once need not wait for it: for
    LINGER_S after the markers are durable it may write to partitions of the ended transaction, and the next record,
    which may be the decision about it already, says that its next transaction is open there. Should that record be
    lost, the next coordinator finds it out: it repeats the markers, and a partition with an open transaction of their
    epoch refuses them.
    """

    def __init__(self, shard: Shard[Transactions], transaction: Transaction | Job) -> None:
        self.shard = shard
        self._transaction = transaction
        self.marked = asyncio.Event()
        """Set when everything is durable except that the transactional id is free; or with `is_interrupted`."""
        self.is_interrupted = False
        """Whether this broker has stopped to carry it out."""
        self.task: asyncio.Task[None] | None = None
        self.is_superseded = False
        """Whether the next transaction is being decided already."""
        self._lingers = False
        self._begun: set[Enrolled] = set()
        self._is_over = asyncio.Event()

    @property
    def seen(self) -> Transaction | Job:
        """The transaction as the last record will have it, once everything else is durable."""
        found = self._transaction
        if not self._lingers or not isinstance(found, Transaction):
            return found
        value = replace(found.value, status=Status.ONGOING if self._begun else Status.EMPTY, began_ms=-1)
        return Transaction(found.transactional_id, value, {each: found.partitions[each] for each in self._begun})

    def claim(self, producer: Producer, enrolled: Enrolled) -> bool:
        """Make a partition part of the producer's next transaction, if that may begin before the record is written."""
        if not self._lingers or producer != self._transaction.turn or enrolled not in self._transaction.partitions:
            return False
        self._begun.add(enrolled)
        return True

    async def linger(self) -> set[Enrolled]:
        """Return the partitions of the next transaction, after LINGER_S or when something waits for it."""
        self._lingers = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._is_over.wait()
        self._lingers = False
        return self._begun

    def hurry(self) -> None:
        """Write the last record now."""
        self._is_over.set()

    def has_begun(self, producer: Producer) -> bool:
        """Return whether the next transaction, of this producer, has begun before the last record is written."""
        return self._lingers and bool(self._begun) and producer == self._transaction.turn

    @contextmanager
    def superseded(self) -> Iterator[Collection[Enrolled]]:
        """Write no last record until the block has ended, which decides the next transaction: return its partitions."""
        self._lingers = False
        self.is_superseded = True
        try:
            yield self._begun
        finally:
            self._is_over.set()
