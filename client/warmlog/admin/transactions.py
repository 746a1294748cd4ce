"""The part of the admin client that manages transactions: which are open, of whom, and the end of one that hangs."""

from uuid import UUID

from msgspec import Struct, convert

from warmlog.admin.connected import Connected
from warmlog.errors import TransactionalIdNotFound
from warmlog.texts import checked_text
from warmlog_protocol import messages as m
from warmlog_transport.responses import TopicPartition

_ID = "the transactional id"


class EnrolledPartition(Struct, frozen=True):
    """A partition in which a transaction has records. `topic` is the name that it had when they were written."""

    topic: str
    partition: int
    topic_id: UUID


class TransactionDescription(Struct, frozen=True):
    """A transactional id, and its transaction."""

    transactional_id: str
    state: str
    """One of "empty" (none is open), "ongoing", "committing" and "aborting" (it is decided, and being carried out)."""
    producer_id: int
    """-1 for a job, which has one for each member."""
    producer_epoch: int
    timeout_ms: int
    """After so long the broker aborts it."""
    began_ms: int
    """When it began, in milliseconds since 1970; -1 if none is open."""
    partitions: list[EnrolledPartition]
    groups: list[str]
    """Consumer groups whose offsets it commits."""
    job: m.JobDescription | None

    def holds(self, topic: TopicPartition, topic_id: UUID) -> bool:
        """Whether it has records in this partition of the topic with this id."""
        return any((each.topic_id, each.partition) == (topic_id, topic[1]) for each in self.partitions)


class TransactionAdmin(Connected):
    """Manages transactions."""

    async def list_transactions(self, *, only_open: bool = False) -> list[TransactionDescription]:
        """All transactional ids that may be seen, in order: those of producers and those of jobs.

        With `only_open` those with a transaction that has not ended.
        """
        return await self._transactions(m.ListTransactionsRequest(only_open=only_open))

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """One transactional id. Raises TransactionalIdNotFound if it is not known."""
        found = await self._transactions(m.ListTransactionsRequest(checked_text(transactional_id, _ID)))
        if not found:
            raise TransactionalIdNotFound(f"transactional id {transactional_id!r} does not exist, or has expired")
        return found[0]

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of a producer or job that does not end it. Durable in all partitions on return.

        Its producer is told with TransactionAbortable. Raises TransactionalIdNotFound, and InvalidTxnState if no
        transaction is open, or if it is decided already.
        """
        request = m.AbortTransactionRequest(checked_text(transactional_id, _ID))
        await self.cluster.call(request, m.AbortTransactionResponse)

    async def _transactions(self, request: m.ListTransactionsRequest) -> list[TransactionDescription]:
        responses = await self.cluster.call_each(request, m.ListTransactionsResponse)
        found = sorted((one for each in responses for one in each.transactions), key=lambda one: one.transactional_id)
        return convert(found, list[TransactionDescription], from_attributes=True)
