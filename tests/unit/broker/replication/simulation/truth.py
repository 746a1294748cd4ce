"""What has happened, as only the simulation knows it, and the invariants that are checked after each event."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from unit.broker.coordinator.group.simulation.checks import Violation, require
from unit.broker.replication.simulation.disk import Entry
from unit.broker.replication.simulation.etcd import broker_key, record_key
from warmlog_broker.replication import leading
from warmlog_broker.replication.record import NO_LEADER, PartitionRecord
from warmlog_broker.replication.replica import Role

if TYPE_CHECKING:
    from unit.broker.replication.simulation.broker import FakeBroker
    from unit.broker.replication.simulation.world import World


class TopicTruth:
    """The truth about the partition of one topic id."""

    def __init__(self, committed: list[Entry | None]) -> None:
        self.committed = committed
        self.recovering = ""
        self.able: set[int] = set()
        """Who has everything that is committed, unless it has lost something: by the rules, but not by the records."""
        """What is below any high watermark that any broker has had."""
        self.sequences: dict[int, int] = {}
        self.acknowledged: dict[tuple[int, int], int] = {}
        self.seen = 0
        """No later read may give an end below this."""
        self.deleted = 0
        self.removed: dict[int, int] = {}
        """Tombstones that compaction has removed somewhere: the offset, with the key."""
        self.leaders: dict[int, tuple[int, int]] = {}
        """Which life of which node has led in an epoch."""
        self.elections: list[tuple[int, int, int, int]] = []
        """Epoch, leader, time, and the end of what was committed then, in the order of the store."""
        self.verified: dict[int, int] = {}
        """Up to where the log of a node was compared with what is committed."""


class Truth:
    """All topics. The methods are called when something happens, and raise Violation."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.topics: dict[str, TopicTruth] = {}
        self.lost: dict[int, int] = {}
        """Nodes that have lost something, with the broker epoch that they had then: they must be excluded."""

    def of(self, topic_id: str) -> TopicTruth:
        return self.topics[topic_id]

    def fail(self, what: str, *values: Any) -> NoReturn:
        raise Violation(f"at {self.world.now_ms} ms: " + what.format(*values))

    # What happens.

    def changed(self, broker: "FakeBroker", end: int) -> None:
        """The log of a node is another one from `end` on."""
        for topic in self.topics.values():
            topic.verified[broker.node] = min(topic.verified.get(broker.node, 0), end)

    def stored(self, topic_id: str, record: PartitionRecord) -> None:
        """Check a record that was just stored."""
        topic = self.of(topic_id)
        if record.recovering != topic.recovering:
            topic.recovering = record.recovering
            self._recover(topic, record.leader)
        if not topic.elections or topic.elections[-1][0] != record.leader_epoch:
            require(
                not topic.elections or record.leader_epoch > topic.elections[-1][0],
                "an epoch is used twice: {}",
                record,
            )
            topic.elections.append((record.leader_epoch, record.leader, self.world.now_ms, len(topic.committed)))
        require(record.leader in (NO_LEADER, *record.isr), "the leader is not in the in-sync set: {}", record)
        require(not set(record.isr) & set(record.elr), "in sync and eligible: {}", record)
        require(len(record.isr) < record.required or not record.elr, "eligible beside a sufficient set: {}", record)
        for node in set(record.isr) - topic.able:
            if (broker := self.world.brokers[node]).disk is not None:
                self._check_keys(topic, broker)
        topic.able = (topic.able & set(record.replicas)) | set(record.isr)
        if len(record.isr) >= record.required:
            topic.able &= set(record.isr)
        topic.able.difference_update(node for node in self.lost if node not in record.eligible)
        self.forget_lost(record)
        self.check_strong_isr(topic_id)

    def _recover(self, topic: TopicTruth, leader: int) -> None:
        """An operator takes for committed what this leader has flushed of that, and its high watermark."""
        disk = self.world.brokers[leader].disk
        assert disk is not None
        end = next(
            (at for at, entry in enumerate(topic.committed) if at >= disk.flushed or _differ(entry, disk.entries[at])),
            len(topic.committed),
        )
        topic.committed[end:] = disk.entries[end : disk.high_watermark]
        topic.able.clear()
        topic.sequences = {entry.producer: entry.sequence for entry in topic.committed if entry is not None}
        topic.acknowledged = {key: offset for key, offset in topic.acknowledged.items() if offset < end}
        topic.seen, topic.deleted = min(topic.seen, end), min(topic.deleted, disk.start)
        topic.removed = {offset: key for offset, key in topic.removed.items() if offset < end}
        topic.verified = {node: min(at, end) for node, at in topic.verified.items()}
        for producer in list(self.world.sequences):
            self.world.replace_producer(producer)

    def forget_lost(self, record: PartitionRecord) -> None:
        """A node that was excluded, and is fenced, has to be taken in by its log from now on."""
        for node, broker_epoch in list(self.lost.items()):
            if node not in record.eligible and self.world.etcd.get(broker_key(node)).created != broker_epoch:
                del self.lost[node]

    def leads(self, broker: "FakeBroker", epoch: int) -> None:
        """Check a broker that begins to lead."""
        topic, disk = self.of(broker.topic_id), broker.disk
        assert disk is not None
        life = topic.leaders.setdefault(epoch, (broker.node, broker.life))
        require(life == (broker.node, broker.life), "epoch {} is led twice: {} and {}", epoch, life, broker.node)
        end = next(end for elected, _, _, end in reversed(topic.elections) if elected == epoch)
        require(disk.end >= end, "leader {} lacks what is committed", broker.node)
        self._verify(topic, broker, end)
        require(disk.start >= topic.deleted, "deleted records come back with leader {}", broker.node)
        self._check_keys(topic, broker)

    def _check_keys(self, topic: TopicTruth, broker: "FakeBroker") -> None:
        disk = broker.disk
        assert disk is not None
        for offset, key in topic.removed.items():
            if offset >= disk.end or disk.entries[offset] is not None:
                continue
            back = [
                at for at in range(disk.start, offset) if (entry := disk.entries[at]) is not None and entry.key == key
            ]
            require(not back, "key {} is back at {} with node {}, its tombstone is not", key, back, broker.node)

    def appended(self, broker: "FakeBroker", entry: Entry, offset: int) -> None:
        """Check a batch that a leader has appended."""
        topic = self.of(broker.topic_id)
        require(
            topic.leaders.get(entry.epoch) == (broker.node, broker.life),
            "epoch {} at {}: two writers",
            entry.epoch,
            offset,
        )

    def out_of_order(self, broker: "FakeBroker", producer: int, sequence: int, last: int) -> None:
        """Check that a leader who knows less than its producers is a leader no more."""
        topic = self.of(broker.topic_id)
        assert broker.replica is not None
        if broker.replica.epoch >= topic.elections[-1][0]:
            self.fail("leader {} is sent {} of producer {} after {}", broker.node, sequence, producer, last)

    def commits(self, broker: "FakeBroker", old: int, new: int) -> None:
        """Check what a broker takes for committed now."""
        topic, disk = self.of(broker.topic_id), broker.disk
        assert disk is not None
        require(new <= disk.flushed, "the high watermark {} is above what node {} has flushed", new, broker.node)
        if new > len(topic.committed):
            require(broker.is_leading, "node {} follows, and takes {} for committed", broker.node, new)
            for offset in range(len(topic.committed), new):
                self._commit(topic, disk.entries[offset], offset)
        for offset in range(old, new):
            self._compare(topic, broker, offset)

    def _commit(self, topic: TopicTruth, entry: Entry | None, offset: int) -> None:
        if entry is not None:
            last = topic.sequences.get(entry.producer, 0)
            require(
                entry.sequence == last + 1,
                "producer {}: {} after {} at {}",
                entry.producer,
                entry.sequence,
                last,
                offset,
            )
            topic.sequences[entry.producer] = entry.sequence
        topic.committed.append(entry)

    def _compare(self, topic: TopicTruth, broker: "FakeBroker", offset: int) -> None:
        disk, expected = broker.disk, topic.committed[offset]
        assert disk is not None
        if offset in disk.damaged and disk.is_known_damaged:
            self.fail("node {} has damage at {}, and goes on", broker.node, offset)
        entry = disk.entries[offset]
        if _differ(entry, expected):
            self.fail("node {} has {} at {}: {} is committed", broker.node, entry, offset, expected)

    def _verify(self, topic: TopicTruth, broker: "FakeBroker", end: int) -> None:
        for offset in range(topic.verified.get(broker.node, 0), end):
            self._compare(topic, broker, offset)
        topic.verified[broker.node] = max(end, topic.verified.get(broker.node, 0))

    def answered(self, broker: "FakeBroker", floor: int) -> None:
        """Check a read that must not go back."""
        topic, disk = self.of(broker.topic_id), broker.disk
        assert disk is not None
        floor = min(floor, topic.seen)
        require(
            disk.high_watermark >= floor, "a read of {} at {} goes back to {}", floor, broker.node, disk.high_watermark
        )
        topic.seen = max(topic.seen, disk.high_watermark)
        if broker.applied is not None:
            require(
                broker.applied <= len(topic.committed), "a coordinator answers from {}, not committed", broker.applied
            )
            require(broker.applied >= floor, "the coordinator at {} goes back to {}", broker.node, broker.applied)

    def acknowledged(self, topic_id: str, producer: int, sequence: int, offset: int) -> None:
        """Check an acknowledgement."""
        topic = self.of(topic_id)
        entry = topic.committed[offset] if offset < len(topic.committed) else None
        if entry is not None and (entry.producer, entry.sequence) != (producer, sequence):
            self.fail("{} of producer {} is acknowledged at {}: there is {}", sequence, producer, offset, entry)
        require(offset < len(topic.committed), "acknowledged at {}, and not committed", offset)
        first = topic.acknowledged.setdefault((producer, sequence), offset)
        require(first == offset, "acknowledged at {} and at {}", first, offset)
        topic.seen = max(topic.seen, offset + 1)

    def delete(self, topic_id: str, offset: int) -> None:
        """DeleteRecords is answered."""
        topic = self.of(topic_id)
        topic.deleted = max(topic.deleted, offset)

    # After each event.

    def check_broker(self, broker: "FakeBroker") -> None:
        replica, disk = broker.replica, broker.disk
        assert replica is not None
        assert disk is not None
        if not replica.is_cutting and replica.log != disk.bounds:
            self.fail("node {} takes its log for {}: it is {}", broker.node, replica.log, disk.bounds)
        if replica.role not in (Role.IDLE, Role.REFUSED):
            require(not disk.is_known_damaged, "node {} is {} with damage", broker.node, replica.role.value)
        if replica.role is Role.LEADING:
            confirmed_ms = leading.confirmed_ms(replica, self.world.now_ms)
            for epoch, leader, at_ms, _ in reversed(self.of(broker.topic_id).elections):
                if epoch <= replica.epoch:
                    break
                if leader not in (broker.node, NO_LEADER) and at_ms < confirmed_ms:
                    self.fail(
                        "leader {} of {} is sure at {}: {}",
                        broker.node,
                        replica.epoch,
                        confirmed_ms,
                        (epoch, leader, at_ms),
                    )
        self.check_strong_isr(self.world.topic_id)

    def check_strong_isr(self, topic_id: str) -> None:
        """Each replica that may be elected has everything that is committed on its disk."""
        record: PartitionRecord | None = self.world.etcd.get(record_key(topic_id)).value
        if record is None:
            return
        topic = self.of(topic_id)
        end = len(topic.committed)
        if end == 0:
            return
        for node in record.eligible:
            if node in self.lost:
                continue
            broker = self.world.brokers[node]
            disk = broker.disk
            if disk is None or disk.topic_id != topic_id or disk.flushed < end:
                self.fail(
                    "node {} may be elected, and lacks what is committed below {}: {}", node, end, disk and disk.bounds
                )
            if topic.verified.get(node, 0) < end:
                self._verify(topic, broker, end)
            require(disk.start >= topic.deleted, "node {} may be elected, and has what was deleted", node)

    def has_other_copy(self, topic_id: str, without: Mapping[int, Any] | set[int]) -> bool:
        """Return whether what is committed is safe if these nodes lose their disks."""
        record: PartitionRecord = self.world.etcd.get(record_key(topic_id)).value
        return any(node not in self.lost and node not in without for node in record.eligible)


def _differ(entry: Entry | None, other: Entry | None) -> bool:
    """Return whether these are different batches; what compaction has removed may have been any."""
    return entry != other and entry is not None and other is not None
