"""The records of `__groups`: consumer groups, their members, assignments and committed offsets.

A key is a msgpack array `[kind, fields…]`, a value an array `[version, fields…]`; new fields come at the end:

====  ==============  ===========================  ====================================================================
kind  key             fields of the key            fields of the value
====  ==============  ===========================  ====================================================================
1     GroupKey        group                        epoch, since when it has no members (-1 if it has some)
2     MemberKey       group, member id             instance id, client id, host, topics, pattern, assignor, rebalance
                                                   timeout, session timeout, member ids that had the instance id before,
                                                   principal (empty if the broker asks for no rights)
3     TargetKey       group                        epoch, assignor, topics (id, name, number of partitions) that the
                                                   target was computed for; 0 partitions: deleted, but still held
4     ShareKey        group, member id             partitions (topic id, numbers) that the target gives to the member
5     AssignmentKey   group, member id             epoch, previous epoch, assigned, revoking (both: topic id, numbers of
                                                   partitions, the member epochs in which each was assigned)
6     OffsetKey       group, topic id, partition   offset, leader epoch, metadata, name of the topic, time of the commit
====  ==============  ===========================  ====================================================================

A tombstone removes what the key stands for. Records of unknown kinds or versions come from a newer version of warmlog:
they are ignored, and compaction keeps them. Times are in milliseconds.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from warmlog_broker.coordinator.framework.decision import Record

VERSION = 1


class Partition(NamedTuple):
    """A partition of the topic with this id. Names of topics are not used, since they may be given again."""

    topic_id: bytes
    number: int


class Key(msgspec.Struct, array_like=True, frozen=True, tag_field="kind", gc=False):
    group: str


class GroupKey(Key, frozen=True, tag=1, gc=False):
    pass


class MemberKey(Key, frozen=True, tag=2, gc=False):
    member_id: str


class TargetKey(Key, frozen=True, tag=3, gc=False):
    pass


class ShareKey(Key, frozen=True, tag=4, gc=False):
    member_id: str


class AssignmentKey(Key, frozen=True, tag=5, gc=False):
    member_id: str


class OffsetKey(Key, frozen=True, tag=6, gc=False):
    topic_id: bytes
    partition: int


class Value(msgspec.Struct, array_like=True, frozen=True, tag_field="version", gc=False):
    pass


class GroupValue(Value, frozen=True, tag=VERSION, gc=False):
    epoch: int = 0
    empty_since_ms: int = -1


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


AnyKey = GroupKey | MemberKey | TargetKey | ShareKey | AssignmentKey | OffsetKey
_VALUES: dict[type[Key], type[Value]] = {
    GroupKey: GroupValue,
    MemberKey: MemberValue,
    TargetKey: TargetValue,
    ShareKey: ShareValue,
    AssignmentKey: AssignmentValue,
    OffsetKey: OffsetValue,
}
_encoder = msgspec.msgpack.Encoder()
_key_decoder = msgspec.msgpack.Decoder(AnyKey)
_value_decoders = {key: msgspec.msgpack.Decoder(value) for key, value in _VALUES.items()}
_array_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


def put(key: AnyKey, value: Value) -> Record:
    """Return the record that sets what `key` stands for to `value`, of the type that belongs to the key."""
    assert type(value) is _VALUES[type(key)]
    return Record(_encoder.encode(key), _encoder.encode(value))


def remove(key: AnyKey) -> Record:
    """Return the tombstone for `key`."""
    return Record(_encoder.encode(key), None)


def read(record: Record) -> tuple[AnyKey, Any] | None:
    """Return the key and the value of `record`, of the type that belongs to the key; None for a tombstone.

    None for a kind or version that is not known. ValueError for a value that does not match its version.
    """
    try:
        key = _key_decoder.decode(record.key)
    except msgspec.DecodeError:
        return None
    if record.value is None:
        return key, None
    try:
        return key, _value_decoders[type(key)].decode(record.value)
    except msgspec.DecodeError as error:
        if _version(record.value) not in (VERSION, None):
            return None
        raise ValueError(f"the value of {key} is damaged: {error}") from None


def _version(value: bytes) -> int | None:
    """Return the version of a value that cannot be read; None if it has none."""
    try:
        version, *_ = _array_decoder.decode(value)
        return msgspec.msgpack.decode(version, type=int)
    except (msgspec.DecodeError, ValueError):
        return None


def pack_share(partitions: Iterable[Partition]) -> ShareValue:
    """Return the value of a ShareKey."""
    return ShareValue(tuple((topic_id, tuple(numbers)) for topic_id, numbers in by_topic(partitions).items()))


def unpack_share(value: ShareValue) -> frozenset[Partition]:
    """Return the partitions in the value of a ShareKey."""
    return frozenset(Partition(topic_id, number) for topic_id, numbers in value.partitions for number in numbers)


def pack_epochs(epochs: Mapping[Partition, int]) -> tuple[tuple[bytes, tuple[int, ...], tuple[int, ...]], ...]:
    """Return partitions and the epochs in which they were assigned, as an AssignmentValue has them."""
    return tuple(
        (topic_id, tuple(numbers), tuple(epochs[Partition(topic_id, number)] for number in numbers))
        for topic_id, numbers in by_topic(epochs).items()
    )


def unpack_epochs(packed: Iterable[tuple[bytes, tuple[int, ...], tuple[int, ...]]]) -> dict[Partition, int]:
    """Return what was given to `pack_epochs`."""
    return {
        Partition(topic_id, number): epoch
        for topic_id, numbers, epochs in packed
        for number, epoch in zip(numbers, epochs, strict=True)
    }


def by_topic(partitions: Iterable[Partition]) -> dict[bytes, list[int]]:
    """Return the numbers of `partitions` by topic id, both in ascending order."""
    topics: dict[bytes, list[int]] = {}
    for topic_id, number in sorted(partitions):
        topics.setdefault(topic_id, []).append(number)
    return topics
