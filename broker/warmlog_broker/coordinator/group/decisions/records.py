"""The records of `__groups`: consumer groups, their members, assignments and committed offsets.

====  ==============  ===========================  ====================================================================
kind  key             fields of the key            fields of the value
====  ==============  ===========================  ====================================================================
1     GroupKey        group                        epoch, since when it has no members (-1 if it has some), principal
                                                   that created it
2     MemberKey       group, member id             instance id, client id, host, topics, pattern, assignor, rebalance
                                                   timeout, session timeout, member ids that had the instance id before,
                                                   principal (empty if the broker asks for no rights)
3     TargetKey       group                        epoch, assignor, topics (id, name, number of partitions) that the
                                                   target was computed for; 0 partitions: deleted, but still held
4     ShareKey        group, member id             partitions (topic id, numbers) that the target gives to the member
5     AssignmentKey   group, member id             epoch, previous epoch, assigned, revoking (both: topic id, numbers of
                                                   partitions, the member epochs in which each was assigned)
6     OffsetKey       group, topic id, partition   offset, leader epoch, metadata, name of the topic, time of the commit
7     PendingKey      group, producer id           producer epoch, time of the change, offsets that its open transaction
                                                   commits (topic id, partition, as the value of an OffsetKey); without
                                                   any, the epoch in which its last transaction ended; the highest epoch
                                                   of a transaction coordinator that has changed it (-1: not known)
8     ClassicKey      group                        of a group of Kafka's classic protocol, the last generation that was
                                                   assigned: see `classic/state.SavedRebalance`
====  ==============  ===========================  ====================================================================

A tombstone removes what the key stands for. Times are in milliseconds. See `framework/decision` for the encoding.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from warmlog_broker.coordinator.classic.state import SavedRebalance
from warmlog_broker.coordinator.framework.decision import VERSION, Key, PartitionId, RecordCodec, Value


class OfGroup(Key, frozen=True, gc=False):
    group: str


class GroupKey(OfGroup, frozen=True, tag=1, gc=False):
    pass


class MemberKey(OfGroup, frozen=True, tag=2, gc=False):
    member_id: str


class TargetKey(OfGroup, frozen=True, tag=3, gc=False):
    pass


class ShareKey(OfGroup, frozen=True, tag=4, gc=False):
    member_id: str


class AssignmentKey(OfGroup, frozen=True, tag=5, gc=False):
    member_id: str


class OffsetKey(OfGroup, frozen=True, tag=6, gc=False):
    topic_id: bytes
    partition: int


class PendingKey(OfGroup, frozen=True, tag=7, gc=False):
    producer_id: int


class ClassicKey(OfGroup, frozen=True, tag=8, gc=False):
    pass


class GroupValue(Value, frozen=True, tag=VERSION, gc=False):
    epoch: int = 0
    empty_since_ms: int = -1
    owner: str = ""


class MemberValue(Value, frozen=True, tag=VERSION, gc=False):
    instance_id: str = ""
    client_id: str = ""
    host: str = ""
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assignor: str = ""
    rebalance_timeout_ms: int = 0
    session_timeout_ms: int = 0
    predecessors: tuple[str, ...] = ()
    principal: str = ""


class KnownTopic(NamedTuple):
    topic_id: bytes
    name: str
    partitions: int


class TargetValue(Value, frozen=True, tag=VERSION, gc=False):
    epoch: int = 0
    assignor: str = ""
    topics: tuple[KnownTopic, ...] = ()


class ShareValue(Value, frozen=True, tag=VERSION, gc=False):
    partitions: tuple[tuple[bytes, tuple[int, ...]], ...] = ()


class AssignmentValue(Value, frozen=True, tag=VERSION, gc=False):
    epoch: int = 0
    previous_epoch: int = 0
    assigned: tuple[tuple[bytes, tuple[int, ...], tuple[int, ...]], ...] = ()
    revoking: tuple[tuple[bytes, tuple[int, ...], tuple[int, ...]], ...] = ()


class OffsetValue(Value, frozen=True, tag=VERSION, gc=False):
    offset: int
    leader_epoch: int
    metadata: str
    topic: str
    committed_at_ms: int


class PendingOffset(NamedTuple):
    topic_id: bytes
    partition: int
    value: OffsetValue


class PendingValue(Value, frozen=True, tag=VERSION, gc=False):
    epoch: int
    at_ms: int
    offsets: tuple[PendingOffset, ...] = ()
    coordinator_epoch: int = -1


CODEC: RecordCodec[OfGroup] = RecordCodec(
    {
        GroupKey: GroupValue,
        MemberKey: MemberValue,
        TargetKey: TargetValue,
        ShareKey: ShareValue,
        AssignmentKey: AssignmentValue,
        OffsetKey: OffsetValue,
        PendingKey: PendingValue,
        ClassicKey: SavedRebalance,
    }
)
put, remove, read = CODEC.put, CODEC.remove, CODEC.read


def pack_share(partitions: Iterable[PartitionId]) -> ShareValue:
    return ShareValue(tuple((topic_id, tuple(numbers)) for topic_id, numbers in by_topic(partitions).items()))


def unpack_share(value: ShareValue) -> frozenset[PartitionId]:
    return frozenset(PartitionId(topic_id, number) for topic_id, numbers in value.partitions for number in numbers)


def pack_epochs(epochs: Mapping[PartitionId, int]) -> tuple[tuple[bytes, tuple[int, ...], tuple[int, ...]], ...]:
    """Return partitions and the epochs in which they were assigned, as an AssignmentValue has them."""
    return tuple(
        (topic_id, tuple(numbers), tuple(epochs[PartitionId(topic_id, number)] for number in numbers))
        for topic_id, numbers in by_topic(epochs).items()
    )


def unpack_epochs(packed: Iterable[tuple[bytes, tuple[int, ...], tuple[int, ...]]]) -> dict[PartitionId, int]:
    """Return what was given to `pack_epochs`."""
    return {
        PartitionId(topic_id, number): epoch
        for topic_id, numbers, epochs in packed
        for number, epoch in zip(numbers, epochs, strict=True)
    }


def by_topic(partitions: Iterable[PartitionId]) -> dict[bytes, list[int]]:
    """Return the numbers of `partitions` by topic id, both in ascending order."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return topics
