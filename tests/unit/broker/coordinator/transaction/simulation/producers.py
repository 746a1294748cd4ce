"""Clients as the simulation has them: plain producers, and those that read, process and write with a group."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from unit.broker.coordinator.group.simulation.checks import require
from unit.broker.coordinator.group.simulation.network import Call, Network, Then
from unit.broker.coordinator.group.simulation.process import Process
from unit.broker.coordinator.transaction.simulation.coordinator import GROUP_LIMITS, Coordinator
from unit.broker.coordinator.transaction.simulation.partition import make_header
from unit.broker.coordinator.transaction.simulation.truth import Note, Token
from warmlog_broker.coordinator.group.decisions import membership, offsets
from warmlog_broker.coordinator.group.decisions.records import PartitionId as InputPartition
from warmlog_broker.coordinator.transaction.decisions.producers import NOBODY
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation
from warmlog_protocol.batch import BatchHeader
from warmlog_protocol.errors import (
    ApiError,
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    TransactionalIdNotFound,
)
from warmlog_protocol.messages.coordinators.groups import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    TopicPartitions,
)

GROUP = "g"
INPUT = "input"
STEADY = (0, 1, 2)
VOLATILE = 3
"""The number of the partition whose topic is deleted and recreated."""
TIMEOUTS_MS = (400, 2000, 10_000)


class Client:
    """Asks one thing at a time, again and again until it gets a response."""

    def __init__(self, network: Network, coordinator: Coordinator) -> None:
        self.network = network
        self.coordinator = coordinator
        self.random = network.random
        self.is_running = True
        self.is_final = False
        """It was told to give up."""
        self._asked: tuple[Call, Then] | None = None
        self._number = 0
        self._asked_ms = 0

    @property
    def is_waiting(self) -> bool:
        return self._asked is not None

    def ask(self, call: Call, then: Then) -> None:
        """Send a request."""
        self._number += 1
        number = self._number
        self._asked = call, then
        self._asked_ms = self.coordinator.now_ms

        def arrive(then: Then) -> None:
            if number == self._number or not self.has_only_timely_requests:
                call(then)

        def respond(result: Any) -> None:
            if self.is_running and number == self._number and self._asked is not None:
                self._asked = None
                then(result)

        self.network.send(arrive, respond)

    @property
    def has_only_timely_requests(self) -> bool:
        """Whether copies of requests do not come after later requests."""
        return False

    def ask_again(self) -> None:
        """Send the request again if the response takes long."""
        if self._asked is not None and self.coordinator.now_ms - self._asked_ms > self.network.patience_ms:
            self.ask(*self._asked)

    def step(self) -> None:
        """Go on with the work, unless it waits for a response."""
        if self.is_waiting:
            self.ask_again()
        else:
            self.work()

    def work(self) -> None:
        """Do the next thing."""
        raise NotImplementedError


@dataclass(slots=True, eq=False)
class Sent:
    """A batch on its way."""

    number: int
    header: BatchHeader
    values: tuple[Token, ...]
    sent_ms: int
    is_acknowledged: bool = False


class Writer(Client):
    """Sends idempotent batches to partitions, each until it is acknowledged, for one transaction after the other."""

    def __init__(self, network: Network, coordinator: Coordinator, name: str) -> None:
        super().__init__(network, coordinator)
        self.name = name
        """The transactional id."""
        self.is_version_1 = False
        """Whether it says what will be part of a transaction before it writes, and keeps its epoch.

        A late copy of its requests is not told from one of the next transaction: none comes so late.
        """
        self.producer = NOBODY
        self.sent: list[Sent] = []
        self.sequences: Counter[int] = Counter()
        """The next sequence for each partition."""
        self.has_failed = False

    @property
    def is_all_acknowledged(self) -> bool:
        return all(batch.is_acknowledged for batch in self.sent)

    def begin_epoch(self) -> None:
        self.sent = []
        self.sequences.clear()
        self.has_failed = False

    def write(self, number: int, values: tuple[Token, ...]) -> None:
        """Send a batch to partition `number`."""
        batch = Sent(number, make_header(self.producer, self.sequences[number], len(values)), values, 0)
        self.sequences[number] += len(values)
        self.sent.append(batch)
        self._send(batch)

    def write_again(self) -> None:
        """Send the batches again that are not acknowledged for long."""
        for batch in self.sent:
            if not batch.is_acknowledged and self.coordinator.now_ms - batch.sent_ms > self.network.patience_ms:
                self._send(batch)

    def _send(self, batch: Sent) -> None:
        batch.sent_ms = self.coordinator.now_ms

        def told(result: Any) -> None:
            if result is None:
                batch.is_acknowledged = True
            elif not result.retriable and batch in self.sent:
                self.has_failed = True

        def call(then: Then) -> None:
            if not self.is_version_1 or (batch in self.sent and not batch.is_acknowledged):
                self.coordinator.produce(self.name, batch.number, batch.header, batch.values, self.is_version_1, then)

        self.network.send(call, told)


class PlainProducer(Writer):
    """Writes one transaction after the other, as the client's producer does."""

    def __init__(self, network: Network, coordinator: Coordinator, name: str, serial: int) -> None:
        super().__init__(network, coordinator, name)
        self.serial = serial
        self.note: Note | None = None
        self.commit_count = 0
        self.is_version_1 = self.random.random() < 0.4
        self._timeout_ms = self.random.choice(TIMEOUTS_MS)
        self._must_initialise = True
        self._written = 0
        self._enrolled: set[int | str] = set()
        """What is part of the transaction: the numbers of partitions, and the group."""
        self._unsent: list[tuple[int, tuple[Token, ...]]] = []
        """Batches for partitions that are not part of it yet."""

    @property
    def has_only_timely_requests(self) -> bool:
        return self.is_version_1

    def work(self) -> None:
        if self._must_initialise:
            self._initialise()
        elif self.note is None:
            self.begin()
        elif self._unsent and not self.has_failed:
            self._enrol(self._unsent[0][0])
        else:
            self.write_again()
            if self.has_failed and self.random.random() < 0.3:
                self._leave_open()
            elif self.has_failed or self.random.random() < 0.02:
                self._end(commits=False)
            else:
                self.go_on(self.note)

    def begin(self) -> None:
        """Begin a transaction with its first batch."""
        self.note = Note()
        self.coordinator.truth.notes.append(self.note)
        self.write_some(self.note)

    def go_on(self, note: Note) -> None:
        """Write more, or commit."""
        if len(self.sent) < 5 and self.random.random() < 0.5:
            self.write_some(note)
        elif self.is_all_acknowledged:
            self._end(commits=True)

    def write_some(self, note: Note) -> None:
        """Write a batch of new records."""
        values = []
        for _ in range(self.random.randint(1, 3)):
            self._written += 1
            values.append(("plain", self.serial, self._written))
        self.write_values(note, tuple(values))

    def write(self, number: int, values: tuple[Token, ...]) -> None:
        if self.is_version_1 and number not in self._enrolled:
            self._unsent.append((number, values))
        else:
            super().write(number, values)

    def _enrol(self, part: int | str) -> None:
        producer = self.producer
        self.ask(
            lambda then: self.coordinator.enrol(self.name, producer, part, then),
            lambda result: self._was_enrolled(part, result),
        )

    def _was_enrolled(self, part: int | str, result: Any) -> None:
        if isinstance(result, ApiError):
            self.has_failed = self.has_failed or not result.retriable
            return
        self._enrolled.add(part)
        unsent, self._unsent = self._unsent, []
        for number, values in unsent:
            self.write(number, values)

    def write_values(self, note: Note, values: tuple[Token, ...]) -> None:
        """Write a batch to some partition."""
        number = self.random.choice(list(self.coordinator.partitions))
        note.values.update(dict.fromkeys(values, number))
        self.write(number, values)

    def _initialise(self) -> None:
        expected = self.producer
        self.ask(
            lambda then: self.coordinator.initialise(self.name, self._timeout_ms, expected, self, then),
            self._initialised,
        )

    def _initialised(self, result: Any) -> None:
        if isinstance(result, Incarnation):
            self._become(result)
        elif not result.retriable:
            self._give_up()

    def _become(self, producer: Incarnation) -> None:
        self._must_initialise = False
        self.producer = producer
        self.begin_epoch()

    def _end(self, *, commits: bool) -> None:
        assert self.note is not None
        self.note.is_commit_asked = self.note.is_commit_asked or commits
        producer = self.producer
        self.ask(
            lambda then: self.coordinator.end(self.name, producer, commits, self.is_version_1, then),
            lambda result: self._ended(result, commits=commits),
        )

    def _ended(self, result: Any, *, commits: bool) -> None:
        note = self.note
        assert note is not None
        if isinstance(result, Incarnation):
            note.is_committed = commits
            is_all_written = self.is_all_acknowledged and not self.has_failed and not self._unsent
            self.transaction_ended(is_committed=commits)
            if not self.is_version_1:
                self._become(result)
                return
            require(result == self.producer or not commits, "{} became {}", self.producer, result)
            self.sent = []
            if result != self.producer or not is_all_written:  # sequences would have gaps
                self._must_initialise = True
                self.begin_epoch()
            return
        if result.retriable:
            self._end(commits=commits)
            return
        is_known_loss = isinstance(result, InvalidTxnState)
        was_committed = self.is_version_1 or self.coordinator.truth.latest.get(self.producer)
        require(not (is_known_loss and commits and was_committed), "a commit that succeeded was refused: {}", result)
        if isinstance(result, (ProducerFenced, InvalidProducerIdMapping, TransactionalIdNotFound)):
            self._give_up()
        self._leave_open()

    def _leave_open(self) -> None:
        """Leave the abort to the next transaction, as after an abort without a response."""
        self.transaction_ended(is_committed=False)
        self._must_initialise = True
        self.begin_epoch()

    def transaction_ended(self, *, is_committed: bool) -> None:
        """Do what follows from an end. What is not known to be committed may be."""
        self.note = None
        self.commit_count += is_committed
        self._enrolled.clear()
        self._unsent.clear()

    def _give_up(self) -> None:
        self.is_final = True
        self.is_running = False


class Pair(PlainProducer):
    """A member of a group that writes what it reads, and commits its offsets with the transaction."""

    def __init__(self, network: Network, coordinator: Coordinator, name: str, serial: int) -> None:
        super().__init__(network, coordinator, name, serial)
        self.process = Process(GROUP, f"{name}-{serial}", "", "", 3000, 2000, never_revokes=False)
        self.process.topics = [INPUT]
        self._work: tuple[InputPartition, int] | None = None
        """The partition that it is working on, and the offset after the last record."""
        self._are_offsets_added = False

    def heartbeat(self) -> None:
        """Send a heartbeat and get its response at once: the simulation of groups has the rest."""
        process, now_ms = self.process, self.coordinator.now_ms
        process.check_session(now_ms)
        request = process.heartbeat(now_ms, with_owned=True)

        def told(result: Any) -> None:
            for partition in process.respond(process.request_number, result, now_ms):
                process.positions.pop(partition, None)
            if not isinstance(result, ApiError):
                groups = self.coordinator.groups.state
                groups.heard(GROUP, name, now_ms=now_ms, epoch=request.member_epoch, owned=request.owned)
            for partition in process.positions.keys() - process.owned:
                del process.positions[partition]

        name = process.member_id
        shard = self.coordinator.groups
        shard.run(
            GROUP,
            lambda groups: membership.heartbeat(groups, request, host="h", now_ms=now_ms, limits=GROUP_LIMITS),
            told,
        )
        shard.make_durable()
        if self.note is None:
            process.finish_revoking()

    def begin(self) -> None:
        mine = sorted(self.process.owned - self.process.revoking)
        if not mine:
            return
        partition = self.random.choice(mine)
        position = self.process.positions.get(partition)
        if position is None:
            self._fetch(partition)
            return
        self._work = partition, position + self.random.randint(1, 3)
        self._are_offsets_added = False
        super().begin()

    def write_some(self, note: Note) -> None:
        assert self._work is not None
        partition, end = self._work
        self._written += 1
        for offset in range(self.process.positions[partition], end):
            self.write_values(note, (("input", partition.number, offset, self.serial, self._written),))

    def go_on(self, note: Note) -> None:
        if self._are_offsets_added and self.is_all_acknowledged:
            self._end(commits=True)
        elif self.is_version_1 and GROUP not in self._enrolled:
            self._enrol(GROUP)
        elif not self._are_offsets_added:
            self._add_offsets()

    def write_values(self, note: Note, values: tuple[Token, ...]) -> None:
        number = self.random.choice(STEADY)
        note.values.update(dict.fromkeys(values, number))
        self.write(number, values)

    def _add_offsets(self) -> None:
        assert self._work is not None
        partition, end = self._work
        item = OffsetCommitPartition(partition.topic_id, "", partition.number, end)
        request = OffsetCommitRequest(GROUP, [item], self.process.member_id, self.process.epoch)
        producer = self.producer
        self.ask(
            lambda then: self.coordinator.commit_offsets(self.name, producer, request, self.is_version_1, then),
            self._offsets_added,
        )

    def _offsets_added(self, result: Any) -> None:
        if isinstance(result, ApiError):
            self.has_failed = self.has_failed or not result.retriable
        elif result.partitions[0].error_code:
            self.has_failed = True
        else:
            self._are_offsets_added = True

    def _fetch(self, partition: InputPartition) -> None:
        wanted = [TopicPartitions(partition.topic_id, "", [partition.number])]
        request = OffsetFetchRequest(GROUP, wanted, self.process.member_id, self.process.epoch)

        def told(result: Any) -> None:
            if not isinstance(result, ApiError) and partition in self.process.owned and self.note is None:
                self.process.positions[partition] = max(0, result.partitions[0].offset)

        epoch = self.process.epoch
        self.ask(
            lambda then: then(_or_error(lambda: offsets.fetch_offsets(self.coordinator.groups.state, request))),
            lambda result: told(result) if epoch == self.process.epoch else None,
        )

    def transaction_ended(self, *, is_committed: bool) -> None:
        super().transaction_ended(is_committed=is_committed)
        assert self._work is not None
        partition, end = self._work
        if is_committed and partition in self.process.positions:
            self.process.positions[partition] = end
        else:
            self.process.positions.pop(partition, None)


def _or_error(work: Any) -> Any:
    try:
        return work()
    except ApiError as error:
        return error
