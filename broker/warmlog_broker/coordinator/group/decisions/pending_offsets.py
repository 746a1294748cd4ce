"""Offsets that a transaction commits: they wait in the group until the transaction ends, and count only if it commits.

Who fetches such an offset meanwhile to continue there is told to come again, so that a partition's next owner never
begins before what the transaction has read. The end leaves its epoch: a request of the ended transaction that is late
is refused.
"""

from collections.abc import Iterable, Mapping

from warmlog_broker.coordinator.framework.decision import Decision, Record
from warmlog_broker.coordinator.group.decisions.records import (
    OffsetKey,
    OffsetValue,
    Partition,
    PendingKey,
    PendingOffset,
    PendingValue,
    put,
)
from warmlog_broker.coordinator.group.decisions.state import (
    Group,
    Groups,
    Limits,
    created,
    held_bytes,
)
from warmlog_protocol.errors import InvalidProducerEpoch, OffsetMetadataTooLarge, UnstableOffsetCommit

MAX_BYTES = 4 << 20
"""Of the offsets of one transaction, about: they become committed in one decision, which must fit into a segment."""


def add_pending(
    groups: Groups,
    group: str,
    producer_id: int,
    epoch: int,
    offsets: Mapping[Partition, OffsetValue],
    *,
    owner: str = "",
    now_ms: int,
    limits: Limits,
) -> list[Record]:
    """Return the records that add `offsets` to the transaction of this producer and epoch.

    InvalidProducerEpoch; OffsetMetadataTooLarge if that makes more than MAX_BYTES.
    """
    found = groups.get(group)
    present = found.pending.get(producer_id) if found else None
    if present is not None and epoch < present.epoch:
        raise InvalidProducerEpoch(
            f"group {group!r}: producer {producer_id}, epoch {epoch} is fenced by {present.epoch}"
        )
    earlier = present.offsets if present is not None and present.epoch == epoch else ()
    merged = {Partition(each.topic_id, each.partition): each.value for each in earlier}
    merged |= offsets
    packed = tuple(PendingOffset(*partition, value) for partition, value in merged.items())
    if not offsets:
        return []
    value = PendingValue(epoch, now_ms, packed)
    record = put(PendingKey(group, producer_id), value)
    size_bytes = len(record.value or b"") + len(packed) * len(group.encode())
    if size_bytes > MAX_BYTES:
        raise OffsetMetadataTooLarge(
            f"group {group!r}: the offsets of one transaction with their metadata take {size_bytes} bytes, at most "
            f"{MAX_BYTES} are allowed"
        )
    more_bytes = held_bytes(value) - held_bytes(present)
    return [*created(found, group, owner, more_bytes, limits), record]


def end_pending(
    groups: Groups, group: str, producer_id: int, epoch: int, *, commits: bool, now_ms: int
) -> Decision[None]:
    """End the producer's transaction with the epoch of its markers. Repeating this has no effect.

    A commit is for the epoch before it: offsets of another one, as an old copy of the log may have, are dropped.
    """
    found = groups.get(group)
    present = found.pending.get(producer_id) if found else None
    if present is not None and present.epoch >= epoch:
        return Decision((), None)
    committed = present.offsets if present is not None and commits and present.epoch == epoch - 1 else ()
    records = [put(OffsetKey(group, each.topic_id, each.partition), _at(each.value, now_ms)) for each in committed]
    return Decision([*records, put(PendingKey(group, producer_id), PendingValue(epoch, now_ms))], None)


def _at(value: OffsetValue, now_ms: int) -> OffsetValue:
    return OffsetValue(value.offset, value.leader_epoch, value.metadata, value.topic, now_ms)


def check_stable(group: Group, partitions: Iterable[Partition]) -> None:
    """Raise UnstableOffsetCommit if an open transaction commits an offset of any of `partitions`."""
    if not group.pending:
        return
    pending = {Partition(each.topic_id, each.partition) for value in group.pending.values() for each in value.offsets}
    unstable = sorted(pending.intersection(partitions))
    if unstable:
        raise UnstableOffsetCommit(
            f"group {group.name!r}: an open transaction commits the offset of partition {unstable[0].number}: retry"
        )
