"""Transactions as a service: requests, the timeouts of open transactions, and the ends of decided ones.

The state is kept in the internal topic `__transactions`, a shard for each of its partitions; `decisions` decides
about it. A decision is one durable record. After it the markers of all partitions and the offsets of all groups are
written, again and again until each is durable; then one more record says that the transactional id is free, and the
producer gets its response: transactions of one id never overlap. After a start this goes on where it was, and open
transactions get their full time again.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from warmlog_broker.coordinator.framework.decision import Decision, PartitionId
from warmlog_broker.coordinator.framework.shard import Coordinator, Shard, ShardSurroundings
from warmlog_broker.coordinator.surroundings import Surroundings
from warmlog_broker.coordinator.transaction.decisions import jobs, producers
from warmlog_broker.coordinator.transaction.decisions.records import End, Status
from warmlog_broker.coordinator.transaction.decisions.state import (
    Given,
    Incarnation,
    Job,
    NeedsProducerId,
    Outcome,
    Place,
    TransactionalId,
    Transactions,
    hanging,
)
from warmlog_broker.coordinator.transaction.markers import write_ends
from warmlog_broker.coordinator.transaction.ports import Markers, PendingOffsets
from warmlog_broker.replica.partition_state import Role
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.tasks import Tasks, in_turns
from warmlog_broker.runtime.timer_wheel import Timer
from warmlog_protocol import errors
from warmlog_protocol import messages as m

TOPIC = "__transactions"
IDS_A_TURN = 100
WAIT_S = 30.0
"""How long a request waits for the end of a transaction; after that the producer is told to come again."""
RETRY_S = 0.2
"""The pause before a change that the log did not take is decided again."""
EXPIRY_CHECK_S = 600.0
RECORDS_A_DECISION = 10_000
"""About the most that close outcomes: those of a job with thousands of members must fit into segments of the log."""

TransactionShard = Shard[Transactions]
P = ParamSpec("P")
R = TypeVar("R")

_log = logging.getLogger(__name__)


class TransactionCoordinator:
    """The transactional ids of one broker."""

    def __init__(self, around: Surroundings, groups: PendingOffsets, markers: Markers) -> None:
        self._topics = around.topics
        self._groups = groups
        self._producer_ids = around.producer_ids
        self._config = around.config
        self._may_hold = around.holdings.check
        self._timers = around.timers
        self.tasks = Tasks()
        self._deadlines: dict[str, tuple[TransactionShard, Timer]] = {}
        """The timers of open transactions."""
        self._timeouts: dict[asyncio.Task[None], TransactionShard] = {}
        """What aborts those whose timer rang."""
        self._endings: dict[str, tuple[TransactionShard, asyncio.Task[None]]] = {}
        """What carries out the decided transactions."""
        self._offsets_added: dict[str, tuple[Incarnation, int]] = {}
        """Of open transactions: the producer, and the sequence of its last accepted TxnOffsetCommit."""
        self._write_ends = partial(write_ends, markers=markers, groups=groups)
        self.ended: Counter[End] = Counter()
        """The transactions whose markers this process has written, by how they were decided."""
        self.shards = Coordinator(
            TOPIC,
            around.config.transaction_coordinator_partitions,
            around.topics,
            ShardSurroundings(Transactions, self, around.threads, now_ms),
        )
        around.holdings.add_source(lambda: (shard.state.held for shard in self.shards.active))

    def start(self) -> None:
        """Load what is there, finish what was decided, and begin the duties."""
        self.shards.start()
        self.tasks.start(self._abort_hanging(), "abort of hanging transactions")
        self.tasks.start(self._expire(), "expiry of transactional ids")

    def close(self) -> None:
        """Fail the requests that wait, and end all duties. Idempotent."""
        self.shards.close()
        self.tasks.cancel()

    # --- requests ---------------------------------------------------------------------------------------------------

    async def initialise(
        self, transactional_id: str, timeout_ms: int, expected: Incarnation, principal: str
    ) -> Incarnation:
        """Give the transactional id to a producer, as `decisions.initialise`, after the end of an open transaction."""

        while True:
            await self._wait_for_end(transactional_id)
            producer = await self._decide(producers.initialise, transactional_id, timeout_ms, expected, principal)
            if producer is not None:
                return producer

    def enrol_partition(self, request: m.EnrolPartitionRequest) -> Awaitable[None] | None:
        """Make a partition part of the producer's transaction, before its first batch is appended there.

        Return what is to be awaited for that; None if the partition is part of it already. It must be if the producer
        says so (`is_enrolled`), else InvalidTxnState. ConcurrentTransactions while the last transaction is ending.
        """
        name, producer = request.transactional_id, Incarnation(request.producer_id, request.producer_epoch)
        place = PartitionId(self._topics.get(request.topic).topic_id, request.partition)

        def decide(state: Transactions) -> Decision[None]:
            if request.is_enrolled:
                producers.check_open(state, name, producer, place)
                return Decision((), None)
            return producers.enrol(state, self._given(), name, producer, partitions={place: request.topic})

        return self.shards.run(name, decide)

    async def enrol(
        self,
        transactional_id: str,
        producer: Incarnation,
        *,
        partitions: Mapping[PartitionId, str] = producers.NO_PARTITIONS,
        group: str = "",
    ) -> None:
        """Make partitions or a group part of the producer's transaction, as `decisions.enrol`: before it writes."""
        await self._decide(producers.enrol, transactional_id, producer, partitions=partitions, group=group)

    async def commit_offsets(
        self,
        transactional_id: str,
        producer: Incarnation,
        request: m.OffsetCommitRequest,
        sequence: int,
        principal: str,
        *,
        is_enrolled: bool,
    ) -> m.OffsetCommitResponse:
        """Make the offsets part of the producer's transaction: they count when it commits.

        InvalidTxnState if the group is no part of the transaction although the producer says so (`is_enrolled`), and
        for a request with a number below the last one, unless that is 0: a copy that was delayed.
        """
        await self._wait_for_end(transactional_id)
        group = request.group
        if not is_enrolled:
            await self.enrol(transactional_id, producer, group=group)

        def turn() -> tuple[int, ...]:
            state = self.shards.state_of(transactional_id)
            return producers.check_open(state, transactional_id, producer, group)

        arrived_in = turn()
        shard = self.shards.find(transactional_id)
        assert shard is not None, "it has the open transaction"
        coordinator_epoch = shard.partition.leader_epoch

        def check() -> None:
            if turn() != arrived_in:
                raise errors.InvalidTxnState("a late request: its transaction has ended, and the next one has begun")
            owner, latest = self._offsets_added.get(transactional_id, (producer, 0))
            if owner == producer and 0 < sequence < latest:
                raise errors.InvalidTxnState(f"a late copy of a request: number {sequence}, after {latest}")
            self._offsets_added[transactional_id] = producer, sequence

        try:
            return await self._groups.add_pending(
                m.AddPendingOffsetsRequest(request, principal, *producer, coordinator_epoch), check
            )
        except errors.TransactionCoordinatorFenced as error:
            raise errors.NotCoordinator(f"another broker coordinates {transactional_id!r} now: {error}") from error

    async def end(
        self, transactional_id: str, producer: Incarnation, *, commits: bool, keeps_epoch: bool = False
    ) -> Incarnation:
        """Commit or abort the producer's transaction, and return the producer of the next one.

        On return every record of it can be read by committed readers, or by none. ConcurrentTransactions if a partition
        has taken no marker for WAIT_S: the decision stands.
        """
        await self._wait_for_end(transactional_id)
        following = await self._decide(
            producers.end, transactional_id, producer, commits=commits, keeps_epoch=keeps_epoch
        )
        await self._wait_for_end(transactional_id)
        try:
            self.shards.state_of(transactional_id)
        except errors.ApiError as error:
            raise errors.CoordinatorNotAvailable(
                f"the transaction of {transactional_id!r} is decided; its coordinator stopped before the end: retry"
            ) from error
        return following

    async def abort(self, transactional_id: str) -> None:
        """Abort the open transaction of a producer or a job that does not end it."""
        await self._wait_for_end(transactional_id)
        await self._decide(producers.abort, transactional_id)
        await self._wait_for_end(transactional_id)

    async def join_job(
        self, transactional_id: str, version: int, timeout_ms: int, principal: str
    ) -> Incarnation | None:
        """Return the producer of a new member, as `jobs.join`; None if the version is committed.

        A new member gives the job its full time again.
        """
        await self._wait_for_end(transactional_id)
        producer = await self._decide(jobs.join, transactional_id, version, timeout_ms, principal)
        if producer is not None:
            self._renew(transactional_id)
        return producer

    def keep_job(self, transactional_id: str, version: int, producer: Incarnation) -> None:
        """Give the job its full time again. Raises what `jobs.check_member` does."""
        jobs.check_member(self.shards.state_of(transactional_id), transactional_id, version, producer)
        self._renew(transactional_id)

    def _renew(self, transactional_id: str) -> None:
        if transactional_id in self._deadlines:
            shard, deadline = self._deadlines.pop(transactional_id)
            deadline.cancel()
            found = shard.state.get(transactional_id)
            assert found is not None
            self._watch_time(shard, found)

    async def commit_job(
        self, transactional_id: str, version: int, winners: Sequence[Incarnation], records: int, principal: str
    ) -> jobs.Committed:
        """Decide the job's transaction, as `jobs.commit`, and wait for the markers, but not longer than WAIT_S."""
        with suppress(errors.ConcurrentTransactions):  # a repeated request is answered also while that takes long
            await self._wait_for_end(transactional_id)
        committed = await self._decide(jobs.commit, transactional_id, version, winners, records, principal)
        with suppress(errors.ConcurrentTransactions):
            await self._wait_for_end(transactional_id)
        return committed

    async def abort_job_members(self, transactional_id: str, version: int, members: Sequence[Incarnation]) -> None:
        """Abort what these members have written, as `jobs.abort_members`."""
        await self._decide(jobs.abort_members, transactional_id, version, members)

    def transactions(self) -> list[TransactionalId | Job]:
        """Return all transactional ids. Raises what `Shard.state` does."""
        return [transaction for state in self.shards.states() for transaction in state]

    def _given(self, unused_id: int | None = None) -> Given:
        return Given(now_ms(), self._config, unused_id, self._may_hold)

    async def _decide(
        self,
        decide: Callable[Concatenate[Transactions, Given, str, P], Decision[R]],
        transactional_id: str,
        *arguments: P.args,
        **named: P.kwargs,
    ) -> R:
        """Run a decision about a transactional id, again with a new producer id if it needs one."""
        given = self._given()

        def run(state: Transactions) -> Decision[R]:
            return decide(state, given, transactional_id, *arguments, **named)

        while True:
            try:
                return await self.shards.carry_out(transactional_id, run)
            except NeedsProducerId:
                given = self._given(await self._producer_ids.give_out())

    async def _wait_for_end(self, transactional_id: str) -> None:
        """Return when nothing that was decided is left to carry out here; ConcurrentTransactions after WAIT_S."""
        try:
            async with asyncio.timeout(WAIT_S):
                while transactional_id in self._endings:
                    await asyncio.wait([self._endings[transactional_id][1]])
        except TimeoutError:
            raise errors.ConcurrentTransactions(
                f"the transaction of {transactional_id!r} is decided, and still ending after {WAIT_S:g} s: retry"
            ) from None

    # --- duties -----------------------------------------------------------------------------------------------------

    def loaded(self, shard: TransactionShard) -> None:
        """As `ShardWatcher`: go on with what is open or decided."""
        for transaction in shard.state:
            self._follow(shard, transaction)

    def unloaded(self, shard: TransactionShard) -> None:
        """As `ShardWatcher`: what is open or decided goes on after the next load."""
        for key, (owner, timer) in list(self._deadlines.items()):
            if owner is shard:
                timer.cancel()
                del self._deadlines[key]
        for aborting, owner in self._timeouts.items():
            if owner is shard:
                aborting.cancel()
        for key, (owner, task) in list(self._endings.items()):
            if owner is shard:
                task.cancel()
                del self._endings[key]

    def changed(self, shard: TransactionShard, key: str) -> None:
        """As `ShardWatcher`."""
        transaction = shard.state.get(key)
        if transaction is not None:
            self._follow(shard, transaction)

    def _follow(self, shard: TransactionShard, transaction: TransactionalId | Job) -> None:
        """Watch the time of an open transaction, and carry out what is decided."""
        key = transaction.transactional_id
        is_open = transaction.value.status is Status.ONGOING
        if is_open and key not in self._deadlines:
            self._watch_time(shard, transaction)
        elif not is_open and key in self._deadlines:
            self._deadlines.pop(key)[1].cancel()
        if transaction.outcomes and key not in self._endings:
            task = self.tasks.start(self._carry_out(shard, transaction), f"end of {key}")
            self._endings[key] = shard, task

    def _watch_time(self, shard: TransactionShard, transaction: TransactionalId | Job) -> None:
        key = transaction.transactional_id
        due_s = asyncio.get_running_loop().time() + transaction.value.timeout_ms / 1000
        self._deadlines[key] = shard, self._timers.schedule(due_s, partial(self._rang, key, transaction.turn))

    def _rang(self, transactional_id: str, turn: tuple[int, ...]) -> None:
        shard, _ = self._deadlines.pop(transactional_id)
        task = self.tasks.start(self._time_out(transactional_id, turn), "transaction timeout")
        self._timeouts[task] = shard
        task.add_done_callback(self._timeouts.pop)

    async def _time_out(self, transactional_id: str, turn: tuple[int, ...]) -> None:
        if await self._until_durable(lambda: self._decide(producers.time_out, transactional_id, turn)):
            _log.warning("transaction of %r aborted: it was open for longer than its timeout", transactional_id)

    async def _carry_out(self, shard: TransactionShard, transaction: TransactionalId | Job) -> None:
        """Write what is decided everywhere, then free the transactional id or the slots."""
        key = transaction.transactional_id
        self._offsets_added.pop(key, None)
        try:
            while outcomes := transaction.outcomes:
                left_open = await self._write_ends(outcomes, coordinator_epoch=shard.partition.leader_epoch)
                if transaction.outcomes == outcomes and transaction.is_ending:
                    self.ended[transaction.value.end] += 1
                for some in _in_parts(outcomes):
                    await self._until_durable(partial(self._decide, producers.complete, key, some, left_open=left_open))
        finally:
            if key in self._endings and self._endings[key][1] is asyncio.current_task():
                del self._endings[key]

    async def _until_durable(self, decide: Callable[[], Awaitable[R]]) -> R:
        """Run a decision that no request waits for until the log takes it."""
        while True:
            try:
                return await decide()
            except errors.ApiError:
                await asyncio.sleep(RETRY_S)

    async def _abort_hanging(self) -> None:
        """Once all is loaded, abort what `hanging` says, as after a restore.

        A broker without transactional ids leaves all as it is, and one that has only some of a cluster's: it cannot
        tell an open transaction that no id has from one of another broker's.
        """
        found: list[tuple[int, Outcome]] = []
        while self.shards.is_whole:
            try:
                found = list(hanging(self.transactions(), self._opened()))
                break
            except errors.ApiError:
                await asyncio.sleep(RETRY_S)
        if found:
            _log.warning(
                "%d open transactions that no transactional id has, as after a restore, are aborted", len(found)
            )
            for epoch in {epoch for epoch, _ in found}:
                some = [outcome for coordinator_epoch, outcome in found if coordinator_epoch == epoch]
                await self._write_ends(some, coordinator_epoch=epoch)

    def _opened(self) -> Iterator[tuple[Place, Incarnation, int]]:
        """Iterate over the open transactions of all partitions that this broker leads, and offsets that wait in groups.

        Each comes with the epoch of the last coordinator that has written something about its producer there.
        """
        for topic in self._topics:
            for number, partition in topic.local.items():
                is_led = partition.role is Role.LEADING and partition.allows.read
                for entry in partition.log.producers.in_transactions if is_led else ():
                    producer = Incarnation(entry.producer_id, entry.epoch)
                    yield PartitionId(topic.topic_id, number), producer, entry.coordinator_epoch
        for group, producer_id, epoch, coordinator_epoch in self._groups.pending():
            yield group, Incarnation(producer_id, epoch), coordinator_epoch

    async def _expire(self) -> None:
        """Forget transactional ids, and slots of jobs, that were not used for long."""
        while True:
            await asyncio.sleep(EXPIRY_CHECK_S)
            for shard in self.shards.active:
                async for each in in_turns(list(shard.state), IDS_A_TURN):
                    with suppress(errors.ApiError):
                        await self._decide(producers.expire, each.transactional_id)


def _in_parts(outcomes: Iterable[Outcome]) -> Iterator[list[Outcome]]:
    """Divide `outcomes`, so that each decision that closes some of them has about RECORDS_A_DECISION."""
    part: list[Outcome] = []
    count = 0
    for outcome in outcomes:
        part.append(outcome)
        count += 1 + len(outcome.partitions)
        if count >= RECORDS_A_DECISION:
            yield part
            part, count = [], 0
    if part:
        yield part
