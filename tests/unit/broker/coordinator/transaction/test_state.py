"""The state of transactions is what a replay of the log results in, also after compaction."""

from typing import TypeVar

import msgspec
import pytest

from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record
from warmlog_broker.coordinator.framework.shard import SEGMENT_BYTES
from warmlog_broker.coordinator.transaction.decisions import records
from warmlog_broker.coordinator.transaction.decisions.jobs import commit, join
from warmlog_broker.coordinator.transaction.decisions.producers import (
    NOBODY,
    check_open,
    complete,
    end,
    enrol,
    initialise,
)
from warmlog_broker.coordinator.transaction.decisions.producers import expire as decide_expiry
from warmlog_broker.coordinator.transaction.decisions.state import (
    MAX_NAME_BYTES,
    MAX_PARTS,
    Given,
    Incarnation,
    Job,
    Outcome,
    TransactionalId,
    Transactions,
    hanging,
)
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import (
    InvalidProducerIdMapping,
    InvalidTxnState,
    ProducerFenced,
    TransactionAbortable,
)

SLOTS_MS = Given(0).slot_expiration_ms
NAME = "name"
PLACE = PartitionId(b"t" * 16, 0)
R = TypeVar("R")


class Machine:
    """Decides, and applies what was decided."""

    def __init__(self) -> None:
        self.state = Transactions()
        self.log: list[Record] = []

    def decided(self, decision: Decision[R]) -> R:
        for record in decision.records:
            self.state.replay(record)
        self.log += decision.records
        return decision.result

    def compacted(self) -> Transactions:
        """Return the state that a replay of the last record of each key results in."""
        latest: dict[bytes, Record] = {}
        for record in self.log:
            latest.pop(record.key, None)
            latest[record.key] = record
        state = Transactions()
        for record in latest.values():
            state.replay(record)
        return state

    def enrol(self, producer: Incarnation, group: str = "") -> None:
        self.decided(enrol(self.state, Given(2), NAME, producer, partitions={PLACE: "t"}, group=group))

    def join(self, version: int, fresh_id: int | None = None) -> Incarnation:
        joined = join(self.state, Given(1, unused_id=fresh_id), NAME, version, 1000, "")
        producer = self.decided(joined)
        assert producer is not None
        return producer


def a_plain_producer_commits(machine: Machine) -> None:
    begun = initialise(machine.state, Given(1, unused_id=7), NAME, 1000, NOBODY, "")
    producer = machine.decided(begun)
    assert producer is not None
    machine.enrol(producer, group="g")
    machine.decided(end(machine.state, Given(3), NAME, producer, commits=True))


def test_a_transaction_that_began_before_the_last_record_of_the_one_before_is_aborted() -> None:
    machine = Machine()
    a_plain_producer_commits(machine)
    (found,) = machine.state
    assert isinstance(found, TransactionalId)
    marker = found.producer
    decision = complete(machine.state, Given(9), NAME, found.outcomes, left_open=[PLACE])
    machine.decided(decision)
    assert found.outcomes == [Outcome(Incarnation(marker.producer_id, marker.epoch + 1), False, (PLACE,), ())]
    with pytest.raises(TransactionAbortable):
        end(machine.state, Given(10), NAME, marker, commits=True)
    machine.decided(complete(machine.state, Given(11), NAME, found.outcomes))
    assert found.value.status is records.Status.EMPTY
    assert machine.compacted() == machine.state


def test_a_job_that_rests_keeps_its_last_version_and_no_slots() -> None:
    machine = Machine()
    for fresh_id in range(7, 27):
        machine.join(1, fresh_id)
    winner = Incarnation(7, 0)
    machine.enrol(winner)
    machine.decided(commit(machine.state, Given(3), NAME, 1, [winner], 1, ""))

    def expire(rests_ms: int) -> None:
        machine.decided(decide_expiry(machine.state, Given(4 + rests_ms), NAME))

    expire(SLOTS_MS)
    job = machine.state.get(NAME)
    assert isinstance(job, Job)
    assert len(job.members) == 20, "markers are not written yet"
    machine.decided(complete(machine.state, Given(4), NAME, job.outcomes))
    expire(SLOTS_MS - 1)
    assert len(job.members) == 20
    expire(SLOTS_MS)
    assert not job.members
    assert machine.compacted() == machine.state
    repeated = commit(machine.state, Given(5), NAME, 1, [winner], 1, "")
    assert repeated.result == (True, 1)
    with pytest.raises(InvalidProducerIdMapping):
        machine.enrol(winner)
    assert machine.join(2, 27) == Incarnation(27, 0)


def test_a_transaction_has_at_most_as_many_partitions_and_groups_as_one_decision_can_close() -> None:
    machine = Machine()
    name = "n" * MAX_NAME_BYTES
    value = records.IdValue(7, 0, records.Status.ONGOING, records.End.INITIALISED)
    machine.decided(Decision([records.put(records.IdKey(name), value)], None))
    groups = [f"{number:0{MAX_NAME_BYTES}}" for number in range(MAX_PARTS)]
    machine.decided(
        Decision([records.put(records.GroupKey(name, group), records.GroupValue()) for group in groups], None)
    )
    producer = Incarnation(7, 0)
    with pytest.raises(InvalidTxnState, match="would have 30001 partitions and groups: 30000 are allowed"):
        enrol(machine.state, Given(2), name, producer, group="g")
    with pytest.raises(InvalidTxnState, match="would have 30001 partitions and groups: 30000 are allowed"):
        enrol(machine.state, Given(2), name, producer, partitions={PLACE: "t"})
    enrol(machine.state, Given(2), name, producer, group=groups[0])
    machine.decided(end(machine.state, Given(3), name, producer, commits=True))
    (found,) = machine.state
    closing = complete(machine.state, Given(4), name, found.outcomes).records
    batch = encode_batch([value for _, value in closing], keys=[key for key, _ in closing], timestamps_ms=4)
    assert len(batch) < SEGMENT_BYTES


# Version 1 of Kafka's transactions


def test_a_producer_of_version_1_keeps_its_epoch_and_a_repeated_end_must_be_the_same() -> None:
    machine = Machine()
    producer = machine.decided(initialise(machine.state, Given(1, unused_id=7), NAME, 60_000, NOBODY, ""))
    assert producer == Incarnation(7, 0)

    def finish(*, commits: bool, now_ms: int) -> None:
        decision = end(machine.state, Given(now_ms), NAME, producer, commits=commits, keeps_epoch=True)
        assert machine.decided(decision) == producer
        (found,) = machine.state
        machine.decided(complete(machine.state, Given(now_ms), NAME, found.outcomes))

    with pytest.raises(InvalidTxnState, match="has no open transaction, none was begun"):
        finish(commits=True, now_ms=2)
    for now_ms, commits in enumerate((True, False, True), 10):
        machine.enrol(producer, group="g")
        (found,) = machine.state
        assert isinstance(found, TransactionalId)
        machine.decided(end(machine.state, Given(now_ms), NAME, producer, commits=commits, keeps_epoch=True))
        assert found.outcomes == [Outcome(producer, commits, (PLACE,), ("g",), keeps_epoch=True)]
        assert machine.compacted() == machine.state
        machine.decided(complete(machine.state, Given(now_ms), NAME, found.outcomes))
        finish(commits=commits, now_ms=now_ms)
        with pytest.raises(InvalidTxnState, match="the last one was " + ("committed" if commits else "aborted")):
            finish(commits=not commits, now_ms=now_ms)
    assert machine.decided(initialise(machine.state, Given(20), NAME, 60_000, producer, "")) == Incarnation(7, 1)
    with pytest.raises(ProducerFenced):
        finish(commits=True, now_ms=21)


def test_only_a_part_of_an_open_transaction_is_verified() -> None:
    machine = Machine()
    producer = machine.decided(initialise(machine.state, Given(1, unused_id=7), NAME, 60_000, NOBODY, ""))
    assert producer is not None
    with pytest.raises(InvalidTxnState, match="partition 0 of topic id"):
        check_open(machine.state, NAME, producer, PLACE)
    machine.enrol(producer)
    check_open(machine.state, NAME, producer, PLACE)
    with pytest.raises(InvalidTxnState, match="group 'g' is not part"):
        check_open(machine.state, NAME, producer, "g")


def test_a_record_of_a_transactional_id_that_says_nothing_of_its_epoch_is_one_whose_epoch_rises() -> None:
    value = records.IdValue(7, 3, records.Status.COMMITTING, records.End.COMMITTED, owner="User:etl")
    record = records.put(records.IdKey(NAME), value)
    assert record.value is not None
    version_and_fields = msgspec.msgpack.decode(record.value)
    assert version_and_fields.pop() is False
    read = records.read(record._replace(value=msgspec.msgpack.encode(version_and_fields)))
    assert read == (records.IdKey(NAME), value)


# Which open transactions no transactional id has


PLACE, OTHER = PartitionId(b"t" * 16, 0), PartitionId(b"t" * 16, 1)


def transactions(status: records.Status) -> Transactions:
    """A producer with epoch 5, and a job with a member; both write to the first partition."""
    found = Transactions()
    for record in (
        records.put(records.IdKey("id"), records.IdValue(1, 5, status, records.End.COMMITTED)),
        records.put(records.PartitionKey("id", *PLACE), records.PartitionValue("t")),
        records.put(records.GroupKey("id", "g"), records.GroupValue()),
        records.put(records.JobKey("job"), records.JobValue(0, records.Status.ONGOING)),
        records.put(records.MemberKey("job", 0), records.MemberValue(2, 7, records.MemberStatus.WRITING)),
        records.put(records.PartitionKey("job", *PLACE, 0), records.PartitionValue("t")),
    ):
        found.replay(record)
    return found


def test_what_a_transactional_id_has_is_none() -> None:
    opened = [(PLACE, Incarnation(1, 5), 0), ("g", Incarnation(1, 5), 0), (PLACE, Incarnation(2, 7), 0)]
    assert list(hanging(transactions(records.Status.ONGOING), opened)) == []
    before = [(PLACE, Incarnation(1, 4), 0), ("g", Incarnation(1, 4), 0)]
    assert list(hanging(transactions(records.Status.COMMITTING), [*opened, *before])) == []


def test_what_is_open_elsewhere_or_in_another_epoch_is_aborted_without_fencing_its_coordinator() -> None:
    opened = [
        (OTHER, Incarnation(1, 5), 8),
        (PLACE, Incarnation(1, 4), -1),
        (PLACE, Incarnation(2, 6), 3),
        ("h", Incarnation(1, 5), 9),
    ]
    assert list(hanging(transactions(records.Status.ONGOING), opened)) == [
        (8, Outcome(Incarnation(1, 6), False, (OTHER,))),
        (0, Outcome(Incarnation(1, 5), False, (PLACE,))),
        (3, Outcome(Incarnation(2, 7), False, (PLACE,))),
        (9, Outcome(Incarnation(1, 6), False, (), ("h",))),
    ]
