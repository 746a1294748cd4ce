"""Committed offsets: commit, fetch, delete and expire. They are kept by topic id: a recreated topic has none.

Offsets that a transaction commits wait in the group until the transaction ends, and count only if it commits. Who
fetches such an offset meanwhile to continue there is told to come again, so that a partition's next owner never
begins before what the transaction has read. The end leaves its epoch: a request of the ended transaction that is late
is refused.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_

from msgspec.structs import replace

from warmlog_broker.coordinator.classic.consumer_protocol import subscribed_topics
from warmlog_broker.coordinator.classic.events import check_committer
from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record
from warmlog_broker.coordinator.group.decisions.records import (
    GroupKey,
    GroupValue,
    KnownTopic,
    OffsetKey,
    OffsetValue,
    PendingKey,
    PendingOffset,
    PendingValue,
    TargetKey,
    put,
    remove,
)
from warmlog_broker.coordinator.group.decisions.state import (
    NO_TOPICS,
    Group,
    Groups,
    Limits,
    Member,
    TopicsView,
    check_group_id,
    check_room,
    created,
    held_bytes,
    valid_member,
)
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_protocol import errors
from warmlog_protocol import messages as m
from warmlog_protocol.messages.base import NO_LEADER_EPOCH

MAX_PENDING_BYTES = 4 << 20
"""Of the offsets of one transaction, about: they become committed in one decision, which must fit into a segment."""
NOTES_OF_USE = 32
"""How often in `offsets.retention.ms` a record notes that a reader is connected, for the time after a restart."""


def commit(
    groups: Groups, request: m.OffsetCommitRequest, topics: TopicsView, *, owner: str = "", now_ms: int, limits: Limits
) -> Decision[m.OffsetCommitResponse]:
    """Decide a commit. Each partition is committed or refused by itself, in the order of the request.

    UnstableOffsetCommit for one from outside while an open transaction commits an offset of a partition in it, which
    would undo this when it ends.

    `owner` is the principal of the request, which a new group belongs to.

    Call `groups.heard` with the sequence number of the request once its records are applied; `check_sequence` refuses
    meanwhile what must not be decided after it.
    """
    accepted, response = check_commit(groups, request, topics, now_ms=now_ms, limits=limits)
    group = groups.get(request.group)
    if group is not None and not request.member_id:
        check_stable(group, accepted)
    more_bytes = 0
    for partition, value in accepted.items():
        old = None if group is None else group.offsets.get(partition)
        if old is None or len(old.metadata) < len(value.metadata):
            more_bytes += held_bytes(value) - held_bytes(old)
    records = created(group, request.group, owner, more_bytes, limits) if accepted else []
    records += [put(OffsetKey(request.group, *partition), value) for partition, value in accepted.items()]
    return Decision(records, response)


def _closed(group: Group, offsets: int, pending: int = 0) -> list[Record]:
    """Return the tombstone of a group without members from which the last `offsets` are removed."""
    is_used = group.epoch or group.rebalance is not None
    is_over = not is_used and len(group.offsets) == offsets and len(group.pending) == pending
    return [remove(GroupKey(group.name))] if is_over and (group.owner or group.empty_since_ms >= 0) else []


def check_commit(
    groups: Groups,
    request: m.OffsetCommitRequest,
    topics: TopicsView,
    *,
    now_ms: int,
    limits: Limits,
    is_transactional: bool = False,
) -> tuple[dict[PartitionId, OffsetValue], m.OffsetCommitResponse]:
    """Return the offsets of `request` that may be committed, and the result for each.

    As in Kafka, a transaction need not say which member has read what it commits, if that is a classic one or the
    request is one of Kafka's clients.
    """
    check_group_id(request.group)
    group = groups.get(request.group)
    is_of_kafka = request.takes_any_offset or (group is not None and group.is_classic)
    is_free = is_transactional and _names_nobody(request) and is_of_kafka
    member = None if is_free else _committer(group, request)
    check_room(groups, group, limits)
    accepted: dict[PartitionId, OffsetValue] = {}
    results = []
    for item in request.partitions:
        error: errors.ApiError | None = None
        try:
            topic = _topic_of(item, topics)
            _check_commit(item, topic, topics, limits, takes_any_offset=request.takes_any_offset)
            partition = PartitionId(topic.topic_id, item.partition)
            if member is not None:
                _check_ownership(member, partition, request.member_epoch)
            accepted[partition] = OffsetValue(item.offset, item.leader_epoch, item.metadata, topic.name, now_ms)
        except errors.ApiError as raised:
            error = raised
        results.append(m.CommittedPartition(item.topic_id, item.topic, item.partition, *_outcome(error)))
    return accepted, m.OffsetCommitResponse(results)


def _outcome(error: errors.ApiError | None) -> tuple[int, str]:
    return (int(errors.ErrorCode.NONE), "") if error is None else (int(error.code), str(error))


def _names_nobody(request: m.OffsetCommitRequest) -> bool:
    return not request.member_id and request.member_epoch == m.NO_MEMBER_EPOCH


def _committer(group: Group | None, request: m.OffsetCommitRequest) -> Member | None:
    """Return the member that commits; None from outside, which a group without members allows, and for a member of the
    classic protocol: its assignment is opaque."""
    if _names_nobody(request):
        if group is not None and group.member_count:
            raise errors.NonEmptyGroup(
                f"group {group.name!r} has members, and only they may commit: stop them first, or use another group"
            )
        return None
    if group is not None and group.rebalance is not None and group.is_classic:
        member_of_group = request.group, request.member_id, request.member_epoch, request.instance_id
        check_committer(group.rebalance, *member_of_group)
        return None
    member = valid_member(group, request.group, request.member_id, request.instance_id)
    if request.member_epoch > member.epoch:
        raise errors.FencedMemberEpoch(
            f"member {member.member_id!r} of group {request.group!r} has epoch {member.epoch}, the request "
            f"{request.member_epoch}: join again"
        )
    check_sequence(request, member.commit_sequence)
    return member


def check_sequence(request: m.OffsetCommitRequest, latest: int) -> None:
    """Raise StaleMemberEpoch for a commit whose number is below the `latest` of its member."""
    if 0 < request.sequence < latest:
        raise errors.StaleMemberEpoch(f"a late copy of a commit: number {request.sequence}, after {latest}")


def _topic_of(item: m.OffsetCommitPartition, topics: TopicsView) -> KnownTopic:
    if item.topic_id:
        topic = topics.by_id(item.topic_id)
        if topic is None:
            raise errors.UnknownTopicId(f"topic {item.topic!r} with id {item.topic_id.hex()} was deleted")
        return topic
    topic = topics.by_name(item.topic)
    if topic is None:
        raise errors.UnknownTopicOrPartition(f"there is no topic {item.topic!r}")
    return topic


def _check_commit(
    item: m.OffsetCommitPartition, topic: KnownTopic, topics: TopicsView, limits: Limits, *, takes_any_offset: bool
) -> None:
    if not 0 <= item.partition < topic.partitions:
        raise errors.UnknownTopicOrPartition(
            f"topic {topic.name!r} has {topic.partitions} partitions, none {item.partition}"
        )
    end = None if takes_any_offset else topics.log_end(PartitionId(topic.topic_id, item.partition))
    if item.offset < 0 or (end is not None and item.offset > end):
        bounds = "0 or more" if end is None else f"0 to {end}, the log end"
        raise errors.OffsetOutOfRange(f"offset {item.offset} of {topic.name}-{item.partition}: expected {bounds}")
    size = len(item.metadata.encode())
    if size > limits.config.offset_metadata_max_bytes:
        raise errors.OffsetMetadataTooLarge(
            f"metadata of {size} bytes: at most {limits.config.offset_metadata_max_bytes} are allowed"
        )


def _check_ownership(member: Member, partition: PartitionId, epoch: int) -> None:
    since = member.assigned.get(partition, member.revoking.get(partition))
    if since is None:
        raise errors.StaleMemberEpoch(f"member {member.member_id!r} does not own the partition")
    if epoch < since:
        raise errors.StaleMemberEpoch(
            f"member {member.member_id!r} owns the partition since its epoch {since}, the commit is of epoch {epoch}"
        )


def fetch_offsets(groups: Groups, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
    """Return committed offsets: of the partitions asked for, or of all that have one."""
    check_group_id(request.group)
    group = groups.get(request.group)
    is_classic = group is not None and group.is_classic
    if not is_classic and (request.member_id or request.member_epoch != m.NO_MEMBER_EPOCH):
        member = valid_member(group, request.group, request.member_id, "")
        if request.member_epoch not in (member.epoch, member.previous_epoch):
            raise errors.StaleMemberEpoch(
                f"member {member.member_id!r} of group {request.group!r} has epoch {member.epoch}, the request "
                f"{request.member_epoch}"
            )
    offsets = group.offsets if group else {}
    wanted = [(PartitionId(t.topic_id, number), t.topic) for t in request.partitions or () for number in t.partitions]
    unstable: set[PartitionId] = set()
    if group is not None and (request.member_id or request.needs_stable):
        if request.tells_unstable:
            unstable = unstable_partitions(group)
        else:
            check_stable(group, None if request.partitions is None else (partition for partition, _ in wanted))
    if request.partitions is None:
        found = sorted(offsets.items(), key=lambda item: (item[1].topic, item[0]))
    else:
        found = [(each, offsets.get(each) or _nothing(topic)) for each, topic in wanted]
    return m.OffsetFetchResponse(
        [_unstable(each, value.topic) if each in unstable else _fetched(each, value) for each, value in found]
    )


def _unstable(partition: PartitionId, topic: str) -> m.FetchedOffset:
    return replace(_fetched(partition, _nothing(topic)), error_code=errors.ErrorCode.UNSTABLE_OFFSET_COMMIT)


def _fetched(partition: PartitionId, value: OffsetValue) -> m.FetchedOffset:
    topic_id, number = partition
    return m.FetchedOffset(
        topic_id, value.topic, number, value.offset, value.leader_epoch, value.metadata, value.committed_at_ms
    )


def _nothing(topic: str) -> OffsetValue:
    return OffsetValue(m.NO_COMMITTED_OFFSET, NO_LEADER_EPOCH, "", topic, -1)


def delete_offsets(
    groups: Groups, request: m.DeleteOffsetsRequest, subscriptions: Subscriptions
) -> Decision[m.DeleteOffsetsResponse]:
    """Remove committed offsets of partitions that no member subscribes to; GroupIdNotFound."""
    group = existing_group(groups, request.group)
    by_topic: dict[bytes | str, dict[int, list[PartitionId]]] = {}
    names: dict[bytes, set[str]] = {}
    for partition, value in group.offsets.items():
        for topic_key in (partition.topic_id, value.topic):
            by_topic.setdefault(topic_key, {}).setdefault(partition.number, []).append(partition)
        names.setdefault(partition.topic_id, set()).add(value.topic)
    subscribed = {name for member in group.members.values() for name in member.settings.topics}
    if group.rebalance is not None:
        subscribed |= subscribed_topics(group.rebalance)
    topics = reduce(or_, map(subscriptions.topics_of, group.members.values()), NO_TOPICS)
    subscribed |= {topic.name for _, topic in subscriptions.topics(topics)}
    records: dict[Record, None] = {}
    results = []
    for topic in request.partitions:
        meant = by_topic.get(topic.topic_id or topic.topic, {})
        used = sorted((names.get(topic.topic_id, set()) | {topic.topic}) & subscribed)
        error = None
        if used:
            error = errors.GroupSubscribedToTopic(
                f"members of group {group.name!r} subscribe to {used[0]!r}: stop them first"
            )
        for number in topic.partitions:
            if error is None:
                records.update((remove(OffsetKey(group.name, *each)), None) for each in meant.get(number, ()))
            results.append(m.DeletedOffset(topic.topic_id, topic.topic, number, *_outcome(error)))
    return Decision([*records, *_closed(group, len(records))], m.DeleteOffsetsResponse(results))


def existing_group(groups: Groups, name: str) -> Group:
    """Return the group; GroupIdNotFound, or InvalidGroupId if there can be none."""
    check_group_id(name)
    group = groups.get(name)
    if group is None:
        raise errors.GroupIdNotFound(f"there is no group {name!r}")
    return group


def expire_offsets(groups: Groups, group: str, *, now_ms: int, retention_ms: int, topics: TopicsView) -> Decision[int]:
    """Remove the offsets of deleted topics, and those of a group that has been without members, commits and connected
    readers for `retention_ms`: all at once, with the group, since a partition without new records is not committed
    again. What a connected reader adds to that time is noted as that of a group that has become empty.

    The result is the number of offsets.
    """
    found = groups.get(group)
    if found is None:
        return Decision((), 0)
    oldest_ms = now_ms - retention_ms
    is_pending = any(value.offsets for value in found.pending.values())
    if found.reader is not None and not found.reader.is_over:
        found.used_ms = now_ms
    noted_ms = max([found.empty_since_ms, *(value.committed_at_ms for value in found.offsets.values())])
    used_ms = max(noted_ms, found.used_ms)
    is_unused = not found.members and found.rebalance is None
    if is_unused and not is_pending and used_ms <= oldest_ms:
        return Decision(_all_tombstones(found), len(found.offsets))
    expired = [partition for partition in found.offsets if topics.by_id(partition.topic_id) is None]
    ended = [key for key, value in found.pending.items() if not value.offsets and value.at_ms <= oldest_ms]
    records = [remove(OffsetKey(group, *partition)) for partition in expired]
    records += [remove(PendingKey(group, producer_id)) for producer_id in ended]
    records += _closed(found, len(expired), len(ended))
    if is_unused and len(expired) < len(found.offsets) and used_ms - noted_ms > retention_ms // NOTES_OF_USE:
        records.append(put(GroupKey(group), GroupValue(found.epoch, used_ms, found.owner)))
    return Decision(records, len(expired))


def delete_group(groups: Groups, group: str) -> Decision[None]:
    """Remove a group with its offsets; GroupIdNotFound, NonEmptyGroup."""
    found = existing_group(groups, group)
    if found.member_count:
        raise errors.NonEmptyGroup(f"group {group!r} has {found.member_count} members: stop them first")
    return Decision(_all_tombstones(found), None)


def _all_tombstones(group: Group) -> list[Record]:
    offsets = [remove(OffsetKey(group.name, *partition)) for partition in group.offsets]
    pending = [remove(PendingKey(group.name, producer_id)) for producer_id in group.pending]
    return [*offsets, *pending, remove(TargetKey(group.name)), remove(GroupKey(group.name))]


# --- offsets of transactions ------------------------------------------------------------------------------------------


def add_pending(
    groups: Groups,
    group: str,
    producer_id: int,
    epoch: int,
    offsets: Mapping[PartitionId, OffsetValue],
    *,
    coordinator_epoch: int,
    owner: str = "",
    now_ms: int,
    limits: Limits,
) -> list[Record]:
    """Return the records that add `offsets` to the transaction of this producer and epoch.

    InvalidProducerEpoch; TransactionCoordinatorFenced, as `end_pending`; OffsetMetadataTooLarge if that makes more than
    MAX_PENDING_BYTES.
    """
    found = groups.get(group)
    present = found.pending.get(producer_id) if found else None
    if present is not None and epoch < present.epoch:
        raise errors.InvalidProducerEpoch(
            f"group {group!r}: producer {producer_id}, epoch {epoch} is fenced by {present.epoch}"
        )
    _check_coordinator(group, producer_id, present, coordinator_epoch)
    earlier = present.offsets if present is not None and present.epoch == epoch else ()
    merged = {PartitionId(each.topic_id, each.partition): each.value for each in earlier}
    merged |= offsets
    packed = tuple(PendingOffset(*partition, value) for partition, value in merged.items())
    if not offsets:
        return []
    value = PendingValue(epoch, now_ms, packed, coordinator_epoch)
    record = put(PendingKey(group, producer_id), value)
    size_bytes = len(record.value or b"") + len(packed) * len(group.encode())
    if size_bytes > MAX_PENDING_BYTES:
        raise errors.OffsetMetadataTooLarge(
            f"group {group!r}: the offsets of one transaction with their metadata take {size_bytes} bytes, at most "
            f"{MAX_PENDING_BYTES} are allowed"
        )
    more_bytes = held_bytes(value) - held_bytes(present)
    return [*created(found, group, owner, more_bytes, limits), record]


def end_pending(
    groups: Groups,
    group: str,
    producer_id: int,
    epoch: int,
    *,
    commits: bool,
    keeps_epoch: bool = False,
    coordinator_epoch: int,
    now_ms: int,
) -> Decision[None]:
    """End the producer's transaction with the epoch of its markers. Repeating this has no effect.

    A commit is for the epoch before it, or the same with `keeps_epoch`: offsets of another one, as an old copy of the
    log may have, are dropped. TransactionCoordinatorFenced if a newer coordinator has added or ended offsets of this
    producer: with `keeps_epoch`, nothing else tells a late end from one of the next transaction.
    """
    found = groups.get(group)
    present = found.pending.get(producer_id) if found else None
    ended_epoch = epoch if keeps_epoch else epoch - 1
    if present is not None and present.epoch > ended_epoch:
        return Decision((), None)
    _check_coordinator(group, producer_id, present, coordinator_epoch)
    committed = present.offsets if present is not None and commits and present.epoch == ended_epoch else ()
    records = [
        put(OffsetKey(group, each.topic_id, each.partition), replace(each.value, committed_at_ms=now_ms))
        for each in committed
    ]
    ended = PendingValue(epoch, now_ms, (), coordinator_epoch)
    return Decision([*records, put(PendingKey(group, producer_id), ended)], None)


def _check_coordinator(group: str, producer_id: int, present: PendingValue | None, coordinator_epoch: int) -> None:
    if present is not None and coordinator_epoch < present.coordinator_epoch:
        raise errors.TransactionCoordinatorFenced(
            f"group {group!r}: producer {producer_id}, coordinator epoch {coordinator_epoch} is fenced by "
            f"{present.coordinator_epoch}"
        )


def unstable_partitions(group: Group) -> set[PartitionId]:
    """Return the partitions of which open transactions commit an offset."""
    return {PartitionId(each.topic_id, each.partition) for value in group.pending.values() for each in value.offsets}


def check_stable(group: Group, partitions: Iterable[PartitionId] | None) -> None:
    """Raise UnstableOffsetCommit if an open transaction commits an offset of any of `partitions`, or any (None)."""
    if not group.pending:
        return
    pending = unstable_partitions(group)
    unstable = sorted(pending if partitions is None else pending.intersection(partitions))
    if unstable:
        raise errors.UnstableOffsetCommit(
            f"group {group.name!r}: an open transaction commits the offset of partition {unstable[0].number}: retry"
        )
