"""Consumer groups, their members and committed offsets, as the broker describes them, and how far they are behind."""

from collections.abc import Iterable, Sequence
from uuid import UUID

from msgspec import Struct, convert

from warmlog.errors import ApiError
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster
from warmlog_transport.list_offsets import NOT_BEHIND, Behind, OffsetAt, Unread, lags, located, look_up
from warmlog_transport.responses import Topic, TopicPartition


class MemberDescription(Struct, frozen=True):
    """One member of a group: `assigned` it owns, `revoking` it must give up, `target` it will have in the end."""

    member_id: str
    instance_id: str
    """Empty unless the member is static."""
    client_id: str
    host: str
    member_epoch: int
    topics: list[str]
    """Names that it subscribes to."""
    pattern: str
    """What it subscribes to in addition, as a regular expression; empty for none."""
    assigned: list[TopicPartition]
    revoking: list[TopicPartition]
    target: list[TopicPartition]
    session_timeout_ms: int
    rebalance_timeout_ms: int
    last_heartbeat_ms: int
    """Milliseconds since 1970."""


class GroupDescription(Struct, frozen=True):
    """A group and its members. The target assignment is of `target_epoch`, out of date if `group_epoch` is higher."""

    name: str
    state: str
    """One of "empty" (without members), "assigning", "reconciling" and "stable"; with members of Kafka's classic
    protocol "preparing" and "completing"."""
    group_epoch: int
    """Rises with every change of members, subscriptions or partitions."""
    target_epoch: int
    assignor: str
    members: list[MemberDescription]


class CommittedOffset(Struct, frozen=True):
    """What a group has committed for a partition: `offset` is that of the next record to read."""

    topic: str
    partition: int
    topic_id: UUID
    offset: int
    leader_epoch: int
    """Of the record before `offset`, as its reader had it; -1 if unknown."""
    metadata: str
    committed_at_ms: int
    """Milliseconds since 1970."""


def group_description(group: m.DescribedGroup) -> GroupDescription:
    """From the response of the coordinator."""
    members = [_member(member) for member in group.members]
    return GroupDescription(group.group, group.state, group.group_epoch, group.target_epoch, group.assignor, members)


def _member(member: m.GroupMember) -> MemberDescription:
    partitions = {name: _partitions(getattr(member, name)) for name in ("assigned", "revoking", "target")}
    return MemberDescription(
        **{name: getattr(member, name) for name in MemberDescription.__struct_fields__} | partitions
    )


def _partitions(parts: Sequence[m.TopicPartitions]) -> list[TopicPartition]:
    return sorted((part.topic, partition) for part in parts for partition in part.partitions)


def committed_of_topics(
    fetched: Sequence[m.FetchedOffset], topics: Iterable[Topic]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets of topics that exist under their ids.

    Those of a topic that was deleted, or recreated under its name, are not used by a reader either.
    """
    existing = {(topic.name, topic.topic_id.bytes) for topic in topics}
    return {
        (each.topic, each.partition): convert(each, CommittedOffset, from_attributes=True)
        for each in sorted(fetched, key=lambda each: (each.topic, each.partition))
        if each.offset >= 0 and (each.topic, each.topic_id) in existing
    }


class GroupLag(Struct, frozen=True):
    """How far a group is behind in one partition. None stands for what is not known."""

    topic: str
    partition: int
    committed: int
    """The offset of the next record to read."""
    log_start_offset: int | None
    high_watermark: int | None
    """The end of what may be read, exclusive."""
    records: int | None
    """How many offsets are left, from the first record that is left on; see `Behind`."""
    seconds: float | None
    """The age of the first record that is left to read; 0 if there is none."""
    error: ApiError | None = None
    """Why the offsets are not known."""
    metadata: str = ""
    """What the last commit has left with the offset."""


async def measure_lags(cluster: Cluster, offsets: Sequence[CommittedOffset], *, with_age: bool) -> list[GroupLag]:
    """Return the lag of each of `offsets`, of any groups, in their order. Asks about a partition once.

    Without `with_age` nothing is fetched: all offsets that are left count, and seconds are None.
    """
    places = [(each.topic, each.partition) for each in offsets]
    starts = await look_up(cluster, dict.fromkeys(places, m.EARLIEST_TIMESTAMP))
    ends = await look_up(cluster, dict.fromkeys(places, m.LATEST_TIMESTAMP))
    left = [_left(each, starts[tp], ends[tp]) for each, tp in zip(offsets, places, strict=True)]
    found = [unread for unread in left if isinstance(unread, Unread)]
    if with_age:
        measured = await lags(cluster, found)
    else:
        measured = {
            each: Behind(each.end - each.first, None) if each.end > each.first else NOT_BEHIND for each in found
        }
    return [
        GroupLag(*tp, each.offset, None, None, None, None, unread, each.metadata)
        if isinstance(unread, ApiError)
        else GroupLag(
            *tp, each.offset, located(starts[tp]).offset, unread.end, *measured[unread][:2], metadata=each.metadata
        )
        for each, tp, unread in zip(offsets, places, left, strict=True)
    ]


def _left(committed: CommittedOffset, start: OffsetAt | ApiError, end: OffsetAt | ApiError) -> Unread | ApiError:
    if isinstance(start, ApiError):
        return start
    if isinstance(end, ApiError):
        return end
    return Unread(committed.topic, committed.partition, max(committed.offset, start.offset), end.offset)
