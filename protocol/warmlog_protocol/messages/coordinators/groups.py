"""GroupHeartbeat, OffsetCommit, OffsetFetch, ListGroups, DescribeGroups, DeleteGroups and DeleteOffsets.

The model is Kafka's KIP-848: members heartbeat, and the coordinator assigns partitions step by step. Any group request
may be refused as a whole with COORDINATOR_LOAD_IN_PROGRESS or NOT_COORDINATOR, which are retriable.
"""

from msgspec import field

from warmlog_protocol.messages.base import NO_LEADER_EPOCH, Int32, Int64, ItemResult, Message, NamedResult

JOINING = 0
"""`member_epoch` of a member that joins, or that lost its place and joins again."""
LEAVING = -1
"""`member_epoch` of a member that leaves the group."""
LEAVING_FOR_A_WHILE = -2
"""`member_epoch` of a static member that stops: its partitions wait for its instance id until the session ends."""
NO_MEMBER_EPOCH = -1
"""OffsetCommit and OffsetFetch from outside the group. Such a commit is refused while the group has members."""
NO_COMMITTED_OFFSET = -1


class TopicPartitions(Message, frozen=True):
    """Some partitions of one topic. The id decides; the name is what it was called when this was written."""

    topic_id: bytes
    topic: str
    partitions: list[Int32]


class GroupHeartbeatRequest(Message, frozen=True):
    """Joins a group, keeps the membership alive, confirms what is owned, or leaves.

    `member_id` is chosen by the client, a new one for each consumer. None means: as in the last heartbeat; a member
    that joins gives all fields. Repeating a heartbeat is harmless.
    """

    group: str
    member_id: str
    member_epoch: Int32
    instance_id: str = ""
    """Not empty for a static member: a new member with the same instance id takes its place at once."""
    topics: list[str] | None = None
    """Names subscribed to."""
    pattern: str | None = None
    """Regular expression for whole names, subscribed to in addition; empty for none."""
    assignor: str | None = None
    """"uniform" or "range"; empty for the group's."""
    rebalance_timeout_ms: Int32 = -1
    """How long the member may take to give up partitions; -1 for the broker's default."""
    session_timeout_ms: Int32 = -1
    """How long the member may be silent; -1 for the broker's default."""
    owned: list[TopicPartitions] | None = None
    """Every partition that the member owns now: what it was assigned and has taken, without what it has given up. To
    confirm that partitions were given up, a heartbeat with the new epoch must say what is owned."""
    client_id: str = ""
    max_wait_ms: Int32 = 0
    """How long the response may wait for something to tell: a new assignment, or an error. At most a third of the
    session timeout counts. The next heartbeat of the member ends the wait, on the same connection as well."""
    left_epoch: Int32 = 0
    """The epoch of a member that leaves, 0 if unknown: a late copy does not remove one that joined again."""


class GroupHeartbeatResponse(Message, frozen=True):
    """`assignment` is all that the member may own now, None if that has not changed since the last response.

    `heartbeat_interval_ms` is short, and `is_settled` false, until the member has what the group's last target gives to
    it: others may still hold that. Also not settled is a group with a member whose connection has ended, or
    that was not heard of since the broker began.

    Errors of the whole request: UNKNOWN_MEMBER_ID and FENCED_MEMBER_EPOCH (the member has lost everything, and may join
    again), FENCED_INSTANCE_ID (another process has its instance id: final), GROUP_MAX_SIZE_REACHED, TOO_MANY_GROUPS,
    INVALID_GROUP_ID, UNSUPPORTED_ASSIGNOR, INVALID_REGULAR_EXPRESSION, INVALID_SESSION_TIMEOUT.
    """

    member_epoch: int
    heartbeat_interval_ms: int
    session_timeout_ms: int
    assignment: list[TopicPartitions] | None = None
    is_settled: bool = True


class OffsetCommitPartition(Message, frozen=True):
    """Commit `offset`, that of the next record to be read; `leader_epoch` is that of the record before it, or -1.

    With an empty topic id the topic that has the name now is meant.
    """

    topic_id: bytes
    topic: str
    partition: Int32
    offset: Int64
    leader_epoch: Int32 = NO_LEADER_EPOCH
    metadata: str = ""


class OffsetCommitRequest(Message, frozen=True):
    """Commit offsets for a group, durably. A member gives its id and its current epoch."""

    group: str
    partitions: list[OffsetCommitPartition]
    member_id: str = ""
    member_epoch: Int32 = NO_MEMBER_EPOCH
    instance_id: str = ""
    sequence: Int64 = 0
    """A member numbers its commits from 1 on; a repeated one keeps its number. One that arrives after a later one, from
    a connection that was given up, is refused with STALE_MEMBER_EPOCH, so that it takes no offset back."""
    takes_any_offset: bool = False
    """Whether an offset after the log end is accepted, as by Kafka."""


class CommittedPartition(Message, frozen=True):
    """The result for one partition.

    STALE_MEMBER_EPOCH if the member does not own the partition, or owns it since a later epoch than the request's;
    OFFSET_OUT_OF_RANGE for an offset after the log end, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE.
    """

    topic_id: bytes
    topic: str
    partition: int
    error_code: int
    error_message: str


class OffsetCommitResponse(Message, frozen=True):
    """One result for each partition, in the order of the request. What has no error is durable.

    Errors of the whole request: UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH, FENCED_INSTANCE_ID.
    """

    partitions: list[CommittedPartition]
    throttle_ms: int = 0


class OffsetFetchRequest(Message, frozen=True):
    """Ask for committed offsets of these partitions, or of all that have one (None).

    A member gives its id and epoch, and is refused if they are no longer valid. UNSTABLE_OFFSET_COMMIT for a member, or
    with `needs_stable`, while an open transaction commits an offset of any of these; with `tells_unstable` only these
    partitions have that error.
    """

    group: str
    partitions: list[TopicPartitions] | None = None
    member_id: str = ""
    member_epoch: Int32 = NO_MEMBER_EPOCH
    needs_stable: bool = False
    tells_unstable: bool = False


class FetchedOffset(Message, frozen=True):
    """`offset` is -1 if none is committed. `topic` is the name at the time of the commit."""

    topic_id: bytes
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int
    error_code: int = 0


class OffsetFetchResponse(Message, frozen=True):
    """One result for each partition, in the order of the request, or by topic and partition if it asked for all."""

    partitions: list[FetchedOffset]
    throttle_ms: int = 0


class ListGroupsRequest(Message, frozen=True):
    """Ask for all groups of this broker."""


class GroupListing(Message, frozen=True):
    """A group. `state` is "empty" (without members), "assigning", "reconciling" or "stable".

    With members of Kafka's classic protocol it is "preparing" (they join), "completing" (one of them assigns) or
    "stable". `protocol_type` is that of the members, empty without any: "consumer", or what other programs (Connect,
    Kafka Streams) call theirs.
    """

    name: str
    state: str
    member_count: int
    protocol_type: str = ""
    is_classic: bool = False


class ListGroupsResponse(Message, frozen=True):
    """The groups, by name."""

    groups: list[GroupListing]


class DescribeGroupsRequest(Message, frozen=True):
    """Ask for the members of groups."""

    groups: list[str]


class GroupMember(Message, frozen=True):
    """One member: `assigned` it may own now, `revoking` it must give up, `target` it will have in the end.

    A member of Kafka's classic protocol has a `subscription` and an `assignment` as its program has written them, and
    partitions and topics if it is a consumer.
    """

    member_id: str
    instance_id: str
    client_id: str
    host: str
    member_epoch: int
    topics: list[str]
    pattern: str
    assigned: list[TopicPartitions]
    revoking: list[TopicPartitions]
    target: list[TopicPartitions]
    rebalance_timeout_ms: int
    session_timeout_ms: int
    last_heartbeat_ms: int
    subscription: bytes = b""
    assignment: bytes = b""


class DescribedGroup(ItemResult, frozen=True):
    """The result for one group; `group_epoch` rises with every change of members, subscriptions or partitions.

    With classic members it is their generation, and the `assignor` is the protocol that they have chosen.
    """

    group: str
    state: str = ""
    group_epoch: int = 0
    target_epoch: int = 0
    assignor: str = ""
    members: list[GroupMember] = field(default_factory=list)
    protocol_type: str = ""
    is_classic: bool = False


class DescribeGroupsResponse(Message, frozen=True):
    """One result for each group, in the order of the request."""

    groups: list[DescribedGroup]


class DeleteGroupsRequest(Message, frozen=True):
    """Groups without members to delete, with their offsets."""

    groups: list[str]


class DeleteGroupsResponse(Message, frozen=True):
    """One result for each group, in the order of the request: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, or it is durable."""

    groups: list[NamedResult]


class DeleteOffsetsRequest(Message, frozen=True):
    """Remove committed offsets of partitions that no member of the group subscribes to. An empty topic id: by name."""

    group: str
    partitions: list[TopicPartitions]


class DeletedOffset(Message, frozen=True):
    """The result for one partition: GROUP_SUBSCRIBED_TO_TOPIC. Without a committed offset it is a success."""

    topic_id: bytes
    topic: str
    partition: int
    error_code: int
    error_message: str


class DeleteOffsetsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request. What has no error is durable."""

    partitions: list[DeletedOffset]
