"""The coordinators of transactions and groups, as the simulation has them: what the services do, without a loop."""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from present import present
from unit.broker.coordinator.group.simulation.checks import require
from unit.broker.coordinator.group.simulation.network import Then
from unit.broker.coordinator.group.topics import Topics
from unit.broker.coordinator.transaction.simulation.partition import Partition
from unit.broker.coordinator.transaction.simulation.truth import Token, Truth, Turn, turn_of
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record, State
from warmlog_broker.coordinator.group.decisions import offsets
from warmlog_broker.coordinator.group.decisions.state import Groups
from warmlog_broker.coordinator.group.decisions.state import Limits as GroupLimits
from warmlog_broker.coordinator.transaction.decisions import jobs
from warmlog_broker.coordinator.transaction.decisions import producers as decisions
from warmlog_broker.coordinator.transaction.decisions.records import Status
from warmlog_broker.coordinator.transaction.decisions.state import (
    Given,
    Incarnation,
    Job,
    NeedsProducerId,
    Outcome,
    TransactionalId,
    Transactions,
)
from warmlog_broker.storage.producer.verification import NO_GUARD
from warmlog_protocol import errors
from warmlog_protocol.batch import BatchHeader
from warmlog_protocol.messages.coordinators.groups import OffsetCommitRequest

S = TypeVar("S", bound="Counted")

CONFIG = BrokerConfig(
    transactional_id_expiration_ms=60_000, group_min_session_timeout_ms=1000, group_heartbeat_interval_ms=300
)
GROUP_LIMITS = GroupLimits(CONFIG)
FIRST_FREE_ID = 1000


class Counted(State, Protocol):
    """A state that counts what it holds."""

    held: Counter[str]


class Shard(Generic[S]):
    """One state and its log. A decision changes the state, and is told, when it is durable."""

    def __init__(self, make_state: Callable[[], S], changed: Callable[[str], None]) -> None:
        self.state = make_state()
        self._make_state = make_state
        self._changed = changed
        self._log: list[Record] = []
        self._pending: list[tuple[str, Sequence[Record], Then, Any]] = []

    def run(self, key: str, decide: Callable[[S], Decision[Any]], then: Then) -> None:
        """Decide about `key`, one decision after the other."""
        if any(each[0] == key for each in self._pending):
            self.make_durable()
        try:
            decision = decide(self.state)
        except errors.ApiError as error:
            then(error)
            return
        if decision.records:
            self._pending.append((key, decision.records, then, decision.result))
        else:
            then(decision.result)

    def make_durable(self) -> None:
        """Let everything that was decided become durable, in its order."""
        while self._pending:
            key, records, then, result = self._pending.pop(0)
            self._apply(key, records)
            then(result)

    def seed(self, key: str, records: Sequence[Record]) -> None:
        """Begin with these records."""
        self._apply(key, records)

    def _apply(self, key: str, records: Sequence[Record]) -> None:
        self._log += records
        for record in records:
            self.state.replay(record)
        self._changed(key)

    def reload(self, random: Random) -> None:
        """Crash and load: of what was not durable a part is in the log, and nobody was told."""
        for key, records, _, _ in self._pending[: random.randint(0, len(self._pending))]:
            self._apply(key, records)
        self._pending.clear()
        self._compact(random)
        self.check_replay()

    def check_replay(self) -> None:
        """Continue with what a replay of the log gives: it is the state."""
        loaded = self._make_state()
        for record in self._log:
            loaded.replay(record)
        require(loaded == self.state, "the state is not what a replay of the compacted log gives")
        require(loaded.held == self.state.held, "what the state holds is not what a replay of the compacted log gives")
        self.state = loaded

    def _compact(self, random: Random) -> None:
        """Compact the log up to some offset, with or without the tombstones."""
        end = random.randint(0, len(self._log))
        keeps_tombstones = random.random() < 0.5
        latest: dict[bytes, Record] = {}
        for record in self._log[:end]:
            latest.pop(record.key, None)
            latest[record.key] = record
        kept = [record for record in latest.values() if keeps_tombstones or record.value is not None]
        self._log = kept + self._log[end:]


@dataclass(slots=True)
class Ending:
    """How far the end of a transaction has been carried out."""

    done: set[tuple[Incarnation, object]] = field(default_factory=set)
    """What of it is durable."""
    is_completing: bool = False

    def completed(self, _: Any) -> None:
        """Go on with what was decided since, or again after an error."""
        self.is_completing = False


class Timer(NamedTuple):
    """The timer of an open transaction: when it began tells it from others."""

    name: str
    turn: Turn
    began_ms: int

    @classmethod
    def of(cls, found: TransactionalId | Job) -> "Timer":
        """Return that of the last transaction of this id."""
        return cls(found.transactional_id, found.turn, found.value.began_ms)


class Coordinator:
    """Both coordinators of one broker, and the partitions that they write to."""

    def __init__(self, random: Random, truth: Truth, topics: Topics, partitions: dict[int, Partition]) -> None:
        self.random = random
        self.truth = truth
        self.topics = topics
        self.partitions = partitions
        """By number; a deleted one is replaced by another with another id."""
        self.now_ms = 1_000_000
        self.ids = Shard(Transactions, self._changed)
        self.groups = Shard(Groups, lambda _: None)
        self.epoch = 0
        self.is_loading = False
        self.timers: dict[str, tuple[Timer, int]] = {}
        """That of the open transaction of each id, and when its time is over."""
        self._rung: deque[Timer] = deque(maxlen=30)
        """Timers that have rung, of which late copies may ring."""
        self._refused: list[Timer] = []
        """Timers that have rung, and for which nothing was decided yet."""
        self._endings: dict[str, Ending] = {}
        self._late_markers: deque[tuple[str, Turn, Partition, Outcome, int]] = deque(maxlen=30)
        self._verified: list[Callable[[], None]] = []
        """Batches that may be appended."""
        self._stalled: list[Callable[[], None]] = []
        self._last_id = FIRST_FREE_ID

    # --- requests ---------------------------------------------------------------------------------------------------

    def decide(
        self, then: Then, decide: Callable[..., Decision[Any]], name: str, *arguments: Any, **named: Any
    ) -> None:
        """Run a decision about a transactional id, again with a new producer id if it needs one."""
        if self.is_loading:
            then(errors.CoordinatorLoadInProgress(""))
            return

        def run(unused_id: int | None) -> None:
            given = Given(self.now_ms, CONFIG, unused_id, slot_expiration_ms=10_000)
            self.ids.run(name, lambda state: decide(state, given, name, *arguments, **named), then)

        try:
            run(None)
        except NeedsProducerId:
            self._last_id += 1
            run(self._last_id)

    def initialise(self, name: str, timeout_ms: int, expected: Incarnation, client: object, then: Then) -> None:
        """InitProducerId."""

        def told(result: Any) -> None:
            if expected == decisions.NOBODY and not isinstance(result, errors.ApiError):
                self.truth.owners[name] = client
            if isinstance(result, Incarnation):
                owner = self.truth.owners.setdefault(name, client)
                require(owner is client, "{}: a producer got its id again that was fenced by another", name)
            then(errors.ConcurrentTransactions("") if result is None else result)

        self.decide(told, decisions.initialise, name, timeout_ms, expected, "")

    def end(self, name: str, producer: Incarnation, commits: bool, keeps_epoch: bool, then: Then) -> None:
        """EndTransaction."""
        self.decide(then, decisions.end, name, producer, commits=commits, keeps_epoch=keeps_epoch)

    def enrol(self, name: str, producer: Incarnation, part: int | str, then: Then) -> None:
        """AddPartitionsToTxn with the number of a partition, or AddOffsetsToTxn with a group."""
        if isinstance(part, str):
            self.decide(then, decisions.enrol, name, producer, group=part)
        else:
            places = {self.partitions[part].enrolled: f"t{part}"}
            self.decide(then, decisions.enrol, name, producer, partitions=places)

    def commit_offsets(
        self, name: str, producer: Incarnation, request: OffsetCommitRequest, is_enrolled: bool, then: Then
    ) -> None:
        """TxnOffsetCommit."""

        def decide(groups: Groups, arrived_in: Turn) -> Decision[Any]:
            turn = decisions.check_open(self.ids.state, name, producer, request.group)
            if turn != arrived_in:
                raise errors.InvalidTxnState("the next transaction has begun")
            accepted, response = offsets.check_commit(
                groups, request, self.topics, now_ms=self.now_ms, limits=GROUP_LIMITS
            )
            records = offsets.add_pending(
                groups,
                request.group,
                *producer,
                accepted,
                coordinator_epoch=self.epoch,
                now_ms=self.now_ms,
                limits=GROUP_LIMITS,
            )
            return Decision(records, response)

        def enrolled(result: Any) -> None:
            if result is not None:
                then(result)
                return
            try:
                turn = decisions.check_open(self.ids.state, name, producer, request.group)
            except errors.ApiError as error:
                then(error)
                return
            self._admit(lambda: self.groups.run(request.group, lambda groups: decide(groups, turn), then))

        if is_enrolled:
            enrolled(None)
        else:
            self.enrol(name, producer, request.group, enrolled)

    def produce(
        self, name: str, number: int, header: BatchHeader, values: tuple[Token, ...], is_enrolled: bool, then: Then
    ) -> None:
        """Produce of one transactional batch: its partition is enrolled before it is appended."""
        partition = self.partitions[number]
        guard = partition.states.start_verification(
            header.producer_id,
            header.producer_epoch,
            self.now_ms,
            first_sequence=header.base_sequence if is_enrolled else 0,
        )
        producer = Incarnation(header.producer_id, header.producer_epoch)

        def append(turn: Turn = ()) -> None:
            if self.partitions[number] is not partition:
                then(errors.UnknownTopicId(""))
                return
            try:
                partition.append(header, values, guard, turn, then=lambda: then(None))
            except errors.ApiError as error:
                then(error)

        def enrolled(result: Any) -> None:
            if result is None:
                turn = turn_of(present(self.ids.state.get(name)), producer)
                self._admit(lambda: append(turn))
            else:
                then(result)

        if guard is NO_GUARD:
            append()
        elif is_enrolled:
            self.decide(enrolled, _verified, name, producer, partition.enrolled)
        else:
            self.enrol(name, producer, number, enrolled)

    def join(self, name: str, version: int, timeout_ms: int, then: Then) -> None:
        """JoinJob."""

        def told(result: Any) -> None:
            if not isinstance(result, errors.ApiError):
                self.truth.look_at_join(name, version, result)
            then(result)

        self.decide(told, jobs.join, name, version, timeout_ms, "")

    def keep(self, name: str, version: int, producer: Incarnation, then: Then) -> None:
        """JobHeartbeat."""
        if self.is_loading:
            then(errors.CoordinatorLoadInProgress(""))
            return
        try:
            jobs.check_member(self.ids.state, name, version, producer)
        except errors.ApiError as error:
            then(error)
            return
        require(producer not in self.truth.outcomes, "{} is kept, and was decided", producer)
        found = present(self.ids.state.get(name))
        self.timers[name] = Timer.of(found), self.now_ms + found.value.timeout_ms
        then(None)

    def commit_job(self, name: str, version: int, winners: Sequence[Incarnation], then: Then) -> None:
        """CommitJob."""

        def told(result: Any) -> None:
            if not isinstance(result, errors.ApiError):
                last = self.truth.last_version(name)
                require(version == last, "{}: version {} is told to be committed, {} is", name, version, last)
            then(result)

        self.decide(told, jobs.commit, name, version, winners, 0, "")

    def abort_members(self, name: str, version: int, members: Sequence[Incarnation], then: Then) -> None:
        """AbortJobMembers."""
        self.truth.may_be_aborted.update(members)
        self.decide(then, jobs.abort_members, name, version, members)

    def abort(self, name: str) -> None:
        """AbortTransaction, of an operator."""
        self.decide(lambda _: None, decisions.abort, name)

    # --- duties -----------------------------------------------------------------------------------------------------

    def _changed(self, name: str) -> None:
        found = self.ids.state.get(name)
        if found is None:
            self.truth.owners.pop(name, None)
        else:
            self.truth.look(found)
            self._follow(found)

    def _follow(self, found: TransactionalId | Job) -> None:
        name = found.transactional_id
        if found.value.status is Status.ONGOING:
            self.timers.setdefault(name, (Timer.of(found), self.now_ms + found.value.timeout_ms))
        else:
            self.timers.pop(name, None)
        if not found.outcomes:
            self._endings.pop(name, None)
        elif name not in self._endings:
            self._endings[name] = Ending()

    def _admit(self, append: Callable[[], None]) -> None:
        (self._stalled if self.random.random() < 0.1 else self._verified).append(append)

    def append_verified(self) -> None:
        """Append one of the batches, or commit some of the offsets, whose enrolment is durable."""
        if self._verified:
            self._verified.pop(self.random.randrange(len(self._verified)))()

    def append_stalled(self) -> None:
        """The same for one that took long."""
        if self._stalled:
            self._stalled.pop(self.random.randrange(len(self._stalled)))()

    def carry_out(self) -> None:
        """Write one marker, or the end of one group; when all are durable, complete the transaction."""
        if self.is_loading or not self._endings:
            return
        name = self.random.choice(list(self._endings))
        ending = self._endings[name]
        if ending.is_completing:
            return
        found = present(self.ids.state.get(name))
        outcomes = found.outcomes
        left = [(each, place) for each in outcomes for place in (*each.partitions, *each.groups)]
        left = [(each, place) for each, place in left if (each.marker, place) not in ending.done]
        if left:
            self._write(found, *self.random.choice(left), ending)
        else:
            ending.is_completing = True
            self.decide(ending.completed, decisions.complete, name, outcomes)

    def _write(
        self, found: TransactionalId | Job, outcome: Outcome, place: str | PartitionId, ending: "Ending"
    ) -> None:
        def written(result: Any) -> None:
            require(
                not isinstance(result, errors.InvalidTxnState), "{}: the next transaction began before the end", place
            )
            if result is None:
                ending.done.add((outcome.marker, place))

        if isinstance(place, str):
            self.groups.run(
                place,
                lambda groups: offsets.end_pending(
                    groups,
                    place,
                    *outcome.marker,
                    commits=outcome.commits,
                    keeps_epoch=outcome.keeps_epoch,
                    coordinator_epoch=self.epoch,
                    now_ms=self.now_ms,
                ),
                written,
            )
            return
        partition = next((each for each in self.partitions.values() if each.enrolled == place), None)
        if partition is None:
            written(None)
            return
        self._late_markers.append((found.transactional_id, found.turn, partition, outcome, self.epoch))
        self._mark(partition, outcome, self.epoch, written)

    @staticmethod
    def _mark(partition: Partition, outcome: Outcome, coordinator_epoch: int, then: Then) -> None:
        try:
            partition.mark(
                outcome.marker,
                commits=outcome.commits,
                keeps_epoch=outcome.keeps_epoch,
                coordinator_epoch=coordinator_epoch,
                then=lambda: then(None),
            )
        except errors.InvalidProducerEpoch:
            then(None)
        except errors.ApiError as error:
            then(error)

    def repeat_marker(self) -> None:
        """Let a late copy of a marker arrive, perhaps from a coordinator that is none any more.

        If it has the epoch of the batches, nothing tells it from one of the next transaction: none comes so late.
        """
        if not self._late_markers:
            return
        name, turn, *marker = self.random.choice(self._late_markers)
        outcome = marker[1]
        found = self.ids.state.get(name)
        if not outcome.keeps_epoch or (found is not None and found.is_ending and found.turn == turn):
            self._mark(*marker, lambda _: None)

    def fire_timers(self) -> None:
        """Let the time of open transactions run out, and at times a timer of an earlier one ring."""
        for name, (timer, due_ms) in list(self.timers.items()):
            if self.now_ms >= due_ms:
                del self.timers[name]
                self._rung.append(timer)
                self._refused.append(timer)
        rung, self._refused = self._refused, []
        for timer in rung:
            self._time_out(timer)
        if self._rung:
            timer = self.random.choice(self._rung)
            if self._is_late(timer):
                self._time_out(timer)

    def _is_late(self, timer: "Timer") -> bool:
        found = self.ids.state.get(timer.name)
        return found is not None and timer != Timer.of(found)

    def _time_out(self, timer: "Timer") -> None:
        is_late = self._is_late(timer)

        def told(result: Any) -> None:
            require(not (is_late and result is True), "{}: a late timer aborted another transaction", timer.name)
            if isinstance(result, errors.ApiError):
                self._refused.append(timer)

        self.decide(told, decisions.time_out, timer.name, timer.turn)

    def expire(self) -> None:
        """Forget ids that are not used."""
        for found in list(self.ids.state):
            name = found.transactional_id
            self.decide(lambda _: None, decisions.expire, name)

    def fail_over(self) -> None:
        """Load the logs again, perhaps after a while: what is open gets its full time, what is decided is finished."""
        self.epoch += 1
        if self.random.random() < 0.5:
            self._verified.clear()
        self._endings.clear()
        self.timers.clear()
        self.ids.reload(self.random)
        self.groups.reload(self.random)
        self.groups.state.start_timers(self.now_ms)
        for found in self.ids.state:
            self._follow(found)
        self.is_loading = self.random.random() < 0.5

    def check_at_rest(self) -> None:
        """After a while without faults nothing is open or ending, and no offset waits."""
        for found in self.ids.state:
            require(found.value.status is Status.EMPTY and not found.outcomes, "{} does not end", found)
        for group in self.groups.state:
            waits = [key for key, value in group.pending.items() if value.offsets]
            require(not waits, "offsets of {} wait for ever", waits)


def _verified(
    transactions: Transactions, _given: Given, name: str, producer: Incarnation, part: PartitionId
) -> Decision[None]:
    decisions.check_open(transactions, name, producer, part)
    return Decision((), None)
