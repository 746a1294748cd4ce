"""What the brokers of a cluster say to one another about partitions. Clients cannot use these requests.

A connection begins with PeerHello: by SCRAM (`sasl/scram`) as the user PEER_NAME, or without if its certificate has
that name. `ReplicaFetch` is a session: a request lists what is new, the leader keeps it, and the response has answers
to what there is something to say to, of this request or an earlier one.
"""

from msgspec import field

from warmlog_protocol.messages.base import Int32, Int64, Message
from warmlog_protocol.messages.coordinators.groups import OffsetCommitRequest, OffsetCommitResponse
from warmlog_protocol.messages.coordinators.transactions import TxnOffsetCommitRequest

PEER_NAME = "__broker"
"""The user that brokers are to one another: no client can have this name."""
PEER_MECHANISM = "SCRAM-SHA-256"
NEVER_MS = -1_000_000_000


class PeerHelloRequest(Message, frozen=True):
    """A step of the introduction of broker `node_id`; `data` is a message of SCRAM, empty if a certificate proves it.

    The other side must be broker `to_node_id`: another one may have its address now.
    """

    cluster_id: str
    node_id: Int32
    to_node_id: Int32
    data: bytes = b""


class PeerHelloResponse(Message, frozen=True):
    """With `is_done` the connection is one of a broker from now on."""

    data: bytes
    is_done: bool


class ReplicaFetch(Message, frozen=True):
    """A follower's request for what comes after its log: see `Fetch` in the broker's `replication/events`."""

    topic_id: bytes
    partition: Int32
    broker_epoch: Int64
    leader_epoch: Int32
    number: Int64
    offset: Int64
    last_epoch: Int32
    flushed: Int64
    log_start: Int64
    echo_ms: Int64
    refilled_below: Int64 = 0


class ReplicaKey(Message, frozen=True):
    """A partition."""

    topic_id: bytes
    partition: Int32


class ReplicaFetchRequest(Message, frozen=True):
    """Responds if there is an answer to a fetch of the connection, or another request has come, or after a while.

    `ended` are earlier fetches that are none any more. `echo_ms` is the `sent_ms` of the latest response: all other
    fetches that are not answered have been under way since then.
    """

    fetches: list[ReplicaFetch]
    ended: list[ReplicaKey] = field(default_factory=list)
    echo_ms: Int64 = NEVER_MS


class ReplicaAnswer(Message, frozen=True):
    """A leader's answer to a fetch, with `size_bytes` of batches in the payload: see `Answer` in `replication/events`.

    `verdict` is the position in its enumeration. The follower flushes at once what it has below `flush_below`.
    """

    topic_id: bytes
    partition: int
    number: int
    leader_epoch: int
    offset: int
    verdict: int
    diverging_epoch: int
    diverging_end: int
    high_watermark: int
    log_start: int
    sent_ms: int
    removed_below: int
    flush_below: int
    size_bytes: int


class ReplicaFetchResponse(Message, frozen=True):
    """Answers to fetches of the connection, with their batches one after another in the payload."""

    answers: list[ReplicaAnswer] = field(default_factory=list)
    sent_ms: int = NEVER_MS
    """The leader's time."""


class ReplicaReport(Message, frozen=True):
    """A follower has flushed up to an offset: see `Report` in `replication/events`."""

    topic_id: bytes
    partition: Int32
    broker_epoch: Int64
    leader_epoch: Int32
    flushed: Int64


class ReplicaFlushedRequest(Message, frozen=True):
    """Gets no response: the next fetch says the same."""

    reports: list[ReplicaReport]


class ReplicaFlushedResponse(Message, frozen=True):
    """Never sent."""


class WriteMarkerRequest(Message, frozen=True):
    """A coordinator ends a producer's transaction in a partition that the other broker leads. Repeating it is harmless.

    The response is sent once the marker is committed.
    """

    topic_id: bytes
    partition: Int32
    producer_id: Int64
    producer_epoch: Int32
    commits: bool
    keeps_epoch: bool
    coordinator_epoch: Int32


class WriteMarkerResponse(Message, frozen=True):
    """With `is_open` the partition has an open transaction of that very epoch, and the marker was not written."""

    is_open: bool


class EnrolPartitionRequest(Message, frozen=True):
    """A leader makes its partition part of a producer's transaction, whose coordinator the other broker is."""

    transactional_id: str
    producer_id: Int64
    producer_epoch: Int32
    topic: str
    partition: Int32
    is_enrolled: bool


class EnrolPartitionResponse(Message, frozen=True):
    """The partition is part of it, durably."""


class AddPendingOffsetsRequest(Message, frozen=True):
    """A coordinator of transactions adds offsets of an open one to a group, whose coordinator the other broker is.

    Gets OffsetCommitResponse.
    """

    commit: OffsetCommitRequest
    principal: str
    producer_id: Int64
    producer_epoch: Int32
    coordinator_epoch: Int32


class CommitOffsetsElsewhereRequest(Message, frozen=True):
    """The coordinator of a group passes on a TxnOffsetCommit of `principal` to that of the transactional id.

    Kafka's clients send theirs to the group's. Gets OffsetCommitResponse.
    """

    commit: TxnOffsetCommitRequest
    principal: str


AddPendingOffsetsResponse = CommitOffsetsElsewhereResponse = OffsetCommitResponse


class EndPendingOffsetsRequest(Message, frozen=True):
    """A coordinator of transactions ends one that has offsets in a group. Repeating it is harmless."""

    group: str
    producer_id: Int64
    producer_epoch: Int32
    commits: bool
    keeps_epoch: bool
    coordinator_epoch: Int32


class EndPendingOffsetsResponse(Message, frozen=True):
    """It is ended, durably."""
