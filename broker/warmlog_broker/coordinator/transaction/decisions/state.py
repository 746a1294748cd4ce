"""What the records of one partition of `__transactions` result in: transactional ids and their transactions, and what
bounds them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.framework.decision import OwnedState, PartitionId, Record, holds_anything, set_or_remove
from warmlog_broker.coordinator.transaction.decisions import records
from warmlog_protocol import errors

MAX_NAME_BYTES = 249
ID_BYTES = 2000
"""What a transactional id takes in memory, about; the next ones: a partition or group of its transaction, a member."""
PART_BYTES = 600
MEMBER_BYTES = 800
MAX_MEMBERS = 20_000
"""Of one job."""
MAX_PARTS = 30_000
"""The partitions and groups of one producer's transaction: one decision closes them, which must fit into a segment."""

_DECIDED = (records.Status.COMMITTING, records.Status.ABORTING)


Place = PartitionId | str
"""A partition, or the name of a group."""


class Incarnation(NamedTuple):
    producer_id: int
    epoch: int


class Outcome(NamedTuple):
    """What is decided about one producer, and where that has to be written."""

    marker: Incarnation
    """With the epoch of the markers."""
    commits: bool
    partitions: tuple[PartitionId, ...]
    groups: tuple[str, ...] = ()
    keeps_epoch: bool = False
    """Whether the markers have the epoch of the batches, and not the next one."""


@dataclass(slots=True)
class TransactionalId:
    """The transactional id of a producer, and what belongs to its transaction until that has ended everywhere."""

    transactional_id: str
    value: records.IdValue
    partitions: dict[PartitionId, records.PartitionValue] = field(default_factory=dict)
    groups: dict[str, records.GroupValue] = field(default_factory=dict)

    def replay(self, key: records.OfId, value: Any) -> None:
        """Change what is known by a record; None for a tombstone."""
        match key:
            case records.IdKey():
                self.value = value
            case records.PartitionKey():
                set_or_remove(self.partitions, PartitionId(key.topic_id, key.partition), value)
            case records.GroupKey():
                set_or_remove(self.groups, key.group, value)

    @property
    def producer(self) -> Incarnation:
        return Incarnation(self.value.producer_id, self.value.epoch)

    @property
    def previous(self) -> Incarnation:
        """Whom the last change was made for."""
        return Incarnation(self.value.previous_producer_id, self.value.previous_epoch)

    def may_have_open(self, place: Place, epoch: int) -> bool:
        """Return whether its producer may have something open there; while a transaction ends, see `complete`."""
        is_its_epoch = epoch == self.value.epoch or (self.is_ending and epoch == self.value.epoch - 1)
        return is_its_epoch and (place in self.partitions or place in self.groups)

    @property
    def part_count(self) -> int:
        return len(self.partitions) + len(self.groups)

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return ID_BYTES + PART_BYTES * (len(self.partitions) + len(self.groups))

    @property
    def turn(self) -> tuple[int, ...]:
        """What no other transaction of this id has, unless both have begun in the same millisecond."""
        return (*self.producer, self.value.began_ms)

    @property
    def is_ending(self) -> bool:
        return self.value.status in _DECIDED

    @property
    def outcomes(self) -> list[Outcome]:
        """What is decided and not carried out."""
        if not self.is_ending:
            return []
        commits = self.value.status is records.Status.COMMITTING
        return [Outcome(self.producer, commits, tuple(self.partitions), tuple(self.groups), self.value.keeps_epoch)]


@dataclass(slots=True)
class Slot:
    """A slot of a job, and the partitions that its producer writes to."""

    value: records.MemberValue
    partitions: dict[PartitionId, records.PartitionValue] = field(default_factory=dict)

    @property
    def producer(self) -> Incarnation:
        return Incarnation(self.value.producer_id, self.value.epoch)

    @property
    def marker(self) -> Incarnation:
        """With the epoch of its markers, and of the next producer with this slot."""
        return Incarnation(self.value.producer_id, self.value.epoch + 1)

    def may_have_open(self, place: Place, epoch: int) -> bool:
        """Return whether its producer may have something open there."""
        return epoch == self.value.epoch and place in self.partitions


@dataclass(slots=True)
class Job:
    """The transactional id of a job: the open transaction of one version, and its members."""

    transactional_id: str
    value: records.JobValue
    members: dict[int, Slot] = field(default_factory=dict)
    """By slot, those that are free included."""
    slots: dict[int, int] = field(default_factory=dict)
    """By producer id."""
    free: dict[int, records.MemberValue] = field(default_factory=dict)
    """The slots that belong to no member."""
    _partitions: dict[int, dict[PartitionId, records.PartitionValue]] = field(default_factory=dict, compare=False)
    """Those of the members, by slot: in a compacted log they may come before their member."""
    _part_count: int = field(default=0, compare=False)

    def replay(self, key: records.OfId, value: Any) -> None:
        """Change what is known by a record; None for a tombstone."""
        match key:
            case records.JobKey():
                self.value = value
            case records.MemberKey():
                self._replay_member(key.slot, value)
            case records.PartitionKey():
                partitions = self._partitions.setdefault(key.slot, {})
                self._part_count -= len(partitions)
                set_or_remove(partitions, PartitionId(key.topic_id, key.partition), value)
                self._part_count += len(partitions)

    def _replay_member(self, slot: int, value: records.MemberValue | None) -> None:
        found = self.members.get(slot)
        set_or_remove(
            self.free, slot, value if value is not None and value.status is records.MemberStatus.FREE else None
        )
        if value is None:
            if found is not None:
                del self.members[slot], self.slots[found.value.producer_id]
                self._part_count -= len(self._partitions.pop(slot, ()))
        elif found is None:
            self.members[slot] = Slot(value, self._partitions.setdefault(slot, {}))
            self.slots[value.producer_id] = slot
        else:
            found.value = value

    @property
    def partitions(self) -> Mapping[PartitionId, records.PartitionValue]:
        return {each: value for member in self.members.values() for each, value in member.partitions.items()}

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        return ID_BYTES + MEMBER_BYTES * len(self.members) + PART_BYTES * self._part_count

    @property
    def turn(self) -> tuple[int, ...]:
        """What no other transaction of this job has."""
        return self.value.current_version, self.value.began_ms

    @property
    def is_ending(self) -> bool:
        return self.value.status in _DECIDED

    @property
    def outcomes(self) -> list[Outcome]:
        """What is decided and not carried out."""
        winners = frozenset(self.value.winners if self.value.status is records.Status.COMMITTING else ())
        decided = [records.MemberStatus.ABORTING]
        if self.is_ending:
            decided.append(records.MemberStatus.WRITING)
        return [
            Outcome(member.marker, slot in winners, tuple(member.partitions))
            for slot, member in self.members.items()
            if member.value.status in decided
        ]


def check_topics(partitions: Iterable[tuple[PartitionId, records.PartitionValue]]) -> None:
    """Raise InconsistentTopicId if a topic was recreated since one of its partitions was enrolled.

    What was written before is gone with the old topic, so the rest must not be committed.
    """
    ids: dict[str, bytes] = {}
    for enrolled, value in partitions:
        if ids.setdefault(value.topic, enrolled.topic_id) != enrolled.topic_id:
            raise errors.InconsistentTopicId(
                f"topic {value.topic} was deleted and recreated within the transaction: "
                "what was written to it before is lost"
            )


class NeedsProducerId(Exception):
    """The decision needs a producer id that was never assigned: decide again, and give it one."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a decision uses beside the state."""

    now_ms: int
    """The time of day."""
    config: BrokerConfig = field(default_factory=BrokerConfig)
    unused_id: int | None = None
    may_hold: Callable[[str, int], None] = holds_anything
    """See `Holdings.check`."""
    slot_expiration_ms: int = 3600 * 1000
    """A job that rests for this long has no slots any more: most are never used again, and had one for each task."""

    @property
    def fresh_id(self) -> int:
        """A producer id that was never assigned. NeedsProducerId if none was given."""
        if self.unused_id is None:
            raise NeedsProducerId
        return self.unused_id

    def check_room(self, count: int) -> None:
        """Raise TooManyTransactionalIds if there are `count` ids and one more is wanted."""
        if count >= self.config.transaction_max_ids:
            raise errors.TooManyTransactionalIds(
                "the broker has as many transactional ids as transaction.max.ids allows"
            )


def check_timeout(timeout_ms: int, maximum_ms: int) -> None:
    """Raise InvalidTransactionTimeout unless a transaction may stay open for `timeout_ms`."""
    if not 1 <= timeout_ms <= maximum_ms:
        raise errors.InvalidTransactionTimeout(f"a transaction timeout of {timeout_ms} ms: 1 to {maximum_ms} expected")


def check_transactional_id(transactional_id: str) -> None:
    """Raise InvalidRequest if there can be no such transactional id."""
    size_bytes = len(transactional_id.encode())
    if not 0 < size_bytes <= MAX_NAME_BYTES:
        raise errors.InvalidRequest(f"a transactional id of {size_bytes} bytes: 1 to {MAX_NAME_BYTES} expected")


def check_parts(transactional_id: str, count: int) -> None:
    """Raise InvalidTxnState if a transaction may not have `count` partitions and groups."""
    if count > MAX_PARTS:
        raise errors.InvalidTxnState(
            f"a transaction of {transactional_id!r} would have {count} partitions and groups: {MAX_PARTS} are allowed"
        )


class Transactions(OwnedState[TransactionalId | Job]):
    """The transactional ids of one partition of `__transactions`: what a replay of its records results in."""

    def __init__(self) -> None:
        super().__init__()
        self._early: dict[str, list[tuple[records.OfId, Any]]] = {}
        """What belongs to ids that come later: compaction leaves the last record of an id after those of its parts."""

    def replay(self, record: Record) -> None:
        """Change the state by the next record of the log. ValueError for a damaged record."""
        entry = records.read(record)
        if entry is None:
            return
        key, value = entry
        found = self._found.get(key.transactional_id)
        owner, before_bytes = ("", 0) if found is None else (found.value.owner, found.size_bytes)
        if isinstance(key, (records.IdKey, records.JobKey)) and value is None:
            found = None
            self._found.pop(key.transactional_id, None)
            self._early.pop(key.transactional_id, None)
        elif isinstance(key, records.IdKey) and not isinstance(found, TransactionalId):
            found = self._begin(TransactionalId(key.transactional_id, value))
        elif isinstance(key, records.JobKey) and not isinstance(found, Job):
            found = self._begin(Job(key.transactional_id, value))
        elif found is not None:
            found.replay(key, value)
        elif value is not None or key.transactional_id in self._early:
            self._early.setdefault(key.transactional_id, []).append((key, value))
        if found is None:
            self._recount(owner, before_bytes, owner, 0)
        else:
            self._recount(owner, before_bytes, found.value.owner, found.size_bytes)

    def _begin(self, found: TransactionalId | Job) -> TransactionalId | Job:
        self._found[found.transactional_id] = found
        for key, value in self._early.pop(found.transactional_id, ()):
            found.replay(key, value)
        return found


def hanging(
    transactions: Iterable[TransactionalId | Job], opened: Iterable[tuple[Place, Incarnation, int]]
) -> Iterator[tuple[int, Outcome]]:
    """Yield an abort for each of `opened` that is part of none of `transactions`: all there are, at one moment.

    It comes with the coordinator epoch that it is to be written with, the last one there or 0 (as by Kafka's tool): a
    higher one would fence the coordinator of the producer, which may go on.

    A backup of a running broker copies one partition after the other, and `__transactions` last: what a partition has
    as open may have ended by then, and its marker is not in the backup. Nothing would ever end it, and its readers
    would wait for ever.
    """
    writers: dict[int, TransactionalId | Slot] = {}
    for each in transactions:
        if isinstance(each, Job):
            writers |= {member.value.producer_id: member for member in each.members.values()}
        else:
            writers[each.value.producer_id] = each
    for place, producer, coordinator_epoch in opened:
        writer = writers.get(producer.producer_id)
        if writer is None or not writer.may_have_open(place, producer.epoch):
            marker = Incarnation(producer.producer_id, producer.epoch + 1)
            partitions, groups = ((), (place,)) if isinstance(place, str) else ((place,), ())
            yield max(coordinator_epoch, 0), Outcome(marker, False, partitions, groups)
