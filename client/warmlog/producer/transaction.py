"""The transactions of one producer: what is sent between begin and commit is visible as a whole or not at all."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, Self, TypeVar

from warmlog import errors
from warmlog.producer.accumulator import Accumulator
from warmlog.producer.options import ProducerOptions
from warmlog.producer.sender import Sender
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster, is_interruption

W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)

_log = logging.getLogger("warmlog")

ABORT_S = 5.0
"""How long an abort is waited for. Without a response by then, it is repeated in the background."""
INTERRUPTED_ABORT_S = 0.5
"""The same where Ctrl-C or a cancellation ends the block."""
RETRY_S = 1.0
"""The pause in the background, after a request that was repeated for its timeout."""


class TransactionalId:
    """The transactional id of a producer that runs."""

    def __init__(
        self,
        options: ProducerOptions,
        cluster: Cluster,
        accumulator: Accumulator,
        sender: Sender,
        flush: Callable[[], Awaitable[None]],
    ) -> None:
        assert options.transactional_id is not None
        self._id = options.transactional_id
        self._timeout_ms = options.transaction_timeout_ms
        self._cluster = cluster
        self._accumulator = accumulator
        self._sender = sender
        self._flush = flush
        self._fenced: errors.ProducerFenced | None = None
        self._adding = asyncio.Lock()
        """Offsets are added one after another, and numbered, so that a repeated request cannot undo a later one."""
        self._added = 0
        self._must_initialise = True
        """Whether it is not certain which epoch is in force, and whether a transaction is open."""
        self._settling: asyncio.Task[None] | None = None
        """Makes it certain."""
        self.ending = asyncio.Lock()
        """Held while a block ends: `close` waits for that."""
        self.is_open = False
        self.takes_records = False
        """Whether it is open and does not end yet."""
        self.count = 0
        """Of the transactions that have begun."""

    async def initialise(self) -> None:
        """Become the producer of the transactional id, and fence the one before. Raises ProducerFenced."""
        request = m.InitProducerIdRequest(self._id, self._timeout_ms, *self._sender.producer)
        try:
            given = await self._cluster.call(request, m.InitProducerIdResponse)
        except errors.ProducerFenced as error:
            self._fenced = error
            raise
        self._continue_as(given.producer_id, given.producer_epoch)

    async def begin(self) -> None:
        """Begin a transaction. Raises ProducerFenced if another producer uses the transactional id."""
        if self._fenced is not None:
            raise errors.ProducerFenced(str(self._fenced))
        if self.is_open:
            raise errors.ClientError("a transaction of this producer is open: one ends before the next begins")
        self.is_open = True
        self.stop()
        try:
            if self._must_initialise:
                await self.initialise()
        except BaseException as error:
            self.is_open = False
            if isinstance(error, (errors.WarmlogError, asyncio.CancelledError)):
                self._settle_later()
            raise
        self._sender.has_sent = False
        self._accumulator.first_error = None
        self.count += 1
        self.takes_records = True

    async def commit(self) -> None:
        """Wait until everything is acknowledged, and commit. If that is not possible, abort and raise why."""
        self._check_not_closed()
        self.takes_records = False
        try:
            await self._flush()
            if self._accumulator.first_error is not None:
                raise self._accumulator.first_error.with_traceback(None)
        except BaseException as error:
            await self.abort(_abort_limit_s(error))
            raise
        try:
            await self._end(commits=True)
        finally:
            self.is_open = False

    async def abort(self, timeout_s: float = ABORT_S) -> None:
        """Discard what is not sent and abort. What goes wrong is logged: `_settle` or the next transaction aborts."""
        self.takes_records = False
        error = errors.TransactionAborted("the transaction was aborted")
        self._sender.fail_all(error)
        self._accumulator.take_unseen_error()
        try:
            async with asyncio.timeout(timeout_s):
                await self._end(commits=False)
        except (errors.WarmlogError, TimeoutError) as problem:
            if not isinstance(problem, errors.ProducerFenced):
                why = problem if str(problem) else f"no response within {timeout_s:g} s"
                _log.warning("transactional id %r: the abort is repeated until it is closed: %s", self._id, why)
        finally:
            self.is_open = False

    async def close(self, timeout_s: float) -> None:
        """Abort the open transaction; if it ends already, wait until it has ended."""
        if self.takes_records:
            await self.abort(timeout_s)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self.ending:
                pass

    def doom(self, error: BaseException) -> None:
        """Have the transaction aborted at its end, because of `error`."""
        reason = (
            error
            if isinstance(error, errors.WarmlogError)
            else errors.TransactionAborted(f"offsets were not added: {error!r}")
        )
        self._accumulator.first_error = self._accumulator.first_error or reason

    async def add_offsets(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        """Make offsets part of the open transaction."""
        self._check_not_closed()
        self._sender.has_sent = True
        producer = self._sender.producer  # of this transaction: the next one may be open after the wait
        async with self._adding:
            self._added += 1
            added = m.TxnOffsetCommitRequest(
                self._id,
                *producer,
                request.group,
                request.partitions,
                request.member_id,
                request.member_epoch,
                request.instance_id,
                self._added,
            )
            return await self._cluster.call(added, m.OffsetCommitResponse)

    def _check_not_closed(self) -> None:
        """Raise ClientClosed if the producer was closed within the transaction, which has aborted it."""
        if not self.takes_records:
            raise errors.ClientClosed("the producer was closed within the transaction, which is aborted")

    async def _end(self, *, commits: bool) -> None:
        if not self._sender.has_sent:
            self._accumulator.first_error = None
            return
        request = m.EndTransactionRequest(self._id, *self._sender.producer, commits)
        self._must_initialise = True
        try:
            following = await self._cluster.call(request, m.EndTransactionResponse)
        except errors.ProducerFenced as error:
            self._fenced = error
            raise
        except (errors.WarmlogError, asyncio.CancelledError):
            self._settle_later()
            raise
        self._continue_as(following.producer_id, following.producer_epoch)

    def stop(self) -> None:
        """End what runs in the background."""
        if self._settling is not None:
            self._settling.cancel()

    def _settle_later(self) -> None:
        if self._fenced is None:
            self._settling = asyncio.create_task(self._settle(), name="warmlog abort")

    async def _settle(self) -> None:
        """Abort what may be open: a consumer that goes back to what is committed waits for that."""
        while True:
            try:
                await self.initialise()
            except (errors.BrokerUnavailable, errors.ApiError) as error:
                if errors.may_pass(error):
                    await asyncio.sleep(RETRY_S)
                    continue
            except errors.WarmlogError:
                pass
            return

    def _continue_as(self, producer_id: int, epoch: int) -> None:
        self._must_initialise = False
        self._sender.producer = producer_id, epoch
        self._accumulator.begin_epoch()


class GroupConsumer(Protocol[W_contra]):
    """A consumer of a group; what it can commit is of type W."""

    async def _commit_within(self, transaction: "Transaction", what: W_contra | None, metadata: str) -> None: ...


class Transaction:
    """One transaction, from the beginning to the end of an `async with` block: see `Producer.transaction`."""

    def __init__(self, transactional_id: TransactionalId, accept: Callable[[bool], None]) -> None:
        """`accept` is called with whether the producer takes records now."""
        self._transactional_id = transactional_id
        self._accept = accept
        self._is_open = False

    async def commit_offsets(self, consumer: GroupConsumer[W], what: W | None = None, *, metadata: str = "") -> None:
        """Commit for the consumer's group together with the records of this transaction, or not at all.

        `what` and `metadata` are those of `Consumer.commit`, and it raises the same errors. The consumer needs
        commit="manual". If the transaction is aborted, `Consumer.seek_to_committed` goes back to what was read for it.
        Without `what`, StaleMemberEpoch if a partition was given up after something of it was delivered that is not
        committed: its next owner handles that again.
        An error, or a cancelled call, aborts the transaction at the end of the block, also if it is caught: the records
        must not be committed without the offsets.
        """
        try:
            await consumer._commit_within(self, what, metadata)
        except BaseException as error:
            self._doom(error)
            raise

    def _doom(self, error: BaseException) -> None:
        """Have the transaction aborted at the end of the block, because of `error`."""
        if self._is_open:
            self._transactional_id.doom(error)

    async def add_offsets(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        """As `OffsetTransaction`, for `commit_offsets`. ClientError after the end of the block."""
        if not self._is_open:
            raise errors.ClientError("this transaction has ended, or has not begun")
        return await self._transactional_id.add_offsets(request)

    async def __aenter__(self) -> Self:
        await self._transactional_id.begin()
        self._accept(True)
        self._is_open = True
        return self

    async def __aexit__(self, _: object, error: BaseException | None, trace: object) -> None:
        self._accept(False)
        self._is_open = False
        async with self._transactional_id.ending:
            if error is None:
                await self._transactional_id.commit()
            else:
                await self._transactional_id.abort(_abort_limit_s(error))


def _abort_limit_s(error: BaseException) -> float:
    return INTERRUPTED_ABORT_S if is_interruption(error) else ABORT_S
