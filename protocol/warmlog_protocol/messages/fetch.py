"""Fetch."""

from msgspec import field

from warmlog_protocol.messages.base import (
    CONSUMER_REPLICA_ID,
    NO_LEADER_EPOCH,
    Int32,
    Int64,
    IsolationLevel,
    Message,
    PartitionResult,
)


class FetchPartition(Message, frozen=True):
    """Where to read one partition, and how much. The last five fields are for replicas and careful consumers.

    `last_fetched_epoch` is the leader epoch of the batch before `fetch_offset` as the reader has it. With it, the
    response says if the log does not hold that batch (`FetchedPartition.diverging`).
    """

    topic: str
    partition: Int32
    fetch_offset: Int64
    max_bytes: Int32
    topic_id: bytes | None = None
    current_leader_epoch: Int32 = NO_LEADER_EPOCH
    last_fetched_epoch: Int32 = NO_LEADER_EPOCH
    log_start_offset: Int64 = -1
    flushed_offset: Int64 = -1


class FetchRequest(Message, frozen=True):
    """Responds when `min_bytes` can be read or after `max_wait_ms`; `max_bytes` bounds the whole payload.

    The first batch of the first partition that has any is sent whole even if it is larger than the limits. A client
    reads below the high watermark whatever `replica_id` it sends; only a peer that the broker has identified as a
    replica reads up to the log end.

    A reader with `skips_gaps` continues at `next_offset` of a partition that has nothing before that; its response is
    sent at once.

    With `max_bytes` 1 it is one batch, whose CRC a broker of a cluster checks: so a reader asks again for one that came
    damaged. If it is so in the log, another broker leads from then on that has it: NOT_LEADER_OR_FOLLOWER.

    A reader that says its `rack` may be told by the leader to read from a replica there
    (`FetchedPartition.near_replica`, KIP-392). Replicas that do not lead answer no other reader, and refuse with
    NOT_LEADER_OR_FOLLOWER what they cannot know.
    """

    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32
    partitions: list[FetchPartition]
    isolation: Int32 = IsolationLevel.READ_UNCOMMITTED
    replica_id: Int32 = CONSUMER_REPLICA_ID
    skips_gaps: bool = False
    rack: str = ""


class AbortedTransaction(Message, frozen=True):
    """Records of `producer_id` from `first_offset` to its next abort marker are not part of committed data."""

    producer_id: int
    first_offset: int


class DivergingEpoch(Message, frozen=True):
    """The common part of log and reader ends with leader epoch `epoch`, at `end_offset` (exclusive).

    Both are -1 if that is unknown: the reader's epoch is newer than all epochs in the log.
    """

    epoch: int
    end_offset: int


class FetchedPartition(PartitionResult, frozen=True):
    """`size_bytes` of batches in the payload; the first may begin below the fetch offset, the last may be cut off.

    `has_dense_offsets`: each batch of columns begins where the one before it ended, so that a gap is damage; and so
    does each batch of rows above `row_gaps_up_to`, unless that is -1. No CRC covers a batch's base offset.

    `next_offset`, if above the fetch offset: no record from the fetch offset to here can be read, because they are
    damaged or lost (CORRUPT_MESSAGE) or because none are left (NONE, and no bytes). -1 if it is not set.

    `diverging`: the log was truncated after the reader had read up to the fetch offset; nothing is read (KIP-595).

    `near_replica`: the node id of a replica in the reader's rack, from which it should read; -1 if there is none, or
    this is the one.
    """

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int
    topic_id: bytes
    size_bytes: int
    aborted_transactions: list[AbortedTransaction] = field(default_factory=list)
    has_dense_offsets: bool = False
    next_offset: int = -1
    diverging: DivergingEpoch | None = None
    row_gaps_up_to: int = -1
    near_replica: int = -1


class FetchResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[FetchedPartition]
    throttle_ms: int = 0
