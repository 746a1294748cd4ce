"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: offsets by time and by leader epoch, and the log start."""

from warmlog_protocol.messages.base import CONSUMER_REPLICA_ID, Int32, Int64, IsolationLevel, Message, PartitionResult


class ListOffsetsPartition(Message, frozen=True):
    """A time in milliseconds, or one of LATEST_, EARLIEST_ and MAX_TIMESTAMP."""

    topic: str
    partition: Int32
    timestamp_ms: Int64
    current_leader_epoch: Int32 = -1


class ListOffsetsRequest(Message, frozen=True):
    """For a time: the first record at or after it."""

    partitions: list[ListOffsetsPartition]
    isolation: Int32 = IsolationLevel.READ_UNCOMMITTED
    replica_id: Int32 = CONSUMER_REPLICA_ID


class ListedOffset(PartitionResult, frozen=True):
    """`offset` is -1 if no record is at or after the requested time."""

    timestamp_ms: int = -1
    offset: int = -1
    leader_epoch: int = -1


class ListOffsetsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[ListedOffset]
    throttle_ms: int = 0


class DeleteRecordsPartition(Message, frozen=True):
    """Delete records below `offset`; HIGH_WATERMARK (-1) means all that may be read now."""

    topic: str
    partition: Int32
    offset: Int64


class DeleteRecordsRequest(Message, frozen=True):
    """Delete the oldest records of some partitions. Idempotent."""

    partitions: list[DeleteRecordsPartition]


class DeletedRecords(PartitionResult, frozen=True):
    """`low_watermark` is the log start offset, which is durable at the response; -1 with an error.

    Offsets above the high watermark or below -1 are OFFSET_OUT_OF_RANGE; a topic whose cleanup.policy does not say
    delete is POLICY_VIOLATION.
    """

    low_watermark: int = -1


class DeleteRecordsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[DeletedRecords]


class OffsetForLeaderEpochPartition(Message, frozen=True):
    """Ask where `leader_epoch` ends. `current_leader_epoch` is the epoch in force as the client knows it.

    A follower, or a consumer that was disconnected, uses it to find where its history diverges from the leader's.
    """

    topic: str
    partition: Int32
    leader_epoch: Int32
    current_leader_epoch: Int32 = -1


class OffsetForLeaderEpochRequest(Message, frozen=True):
    """`replica_id` is the asking broker's, or -1."""

    partitions: list[OffsetForLeaderEpochPartition]
    replica_id: Int32 = CONSUMER_REPLICA_ID


class EpochEndOffset(PartitionResult, frozen=True):
    """`end_offset` is the first offset after the batches of `leader_epoch`: the requested one, or the newest below it.

    For the latest epoch that is `log_end_offset`. Both are -1 if no such epoch is known: it is newer than all, or no
    batch has one. FENCED_LEADER_EPOCH if the client's current epoch is older than the broker's, UNKNOWN_… if newer.
    """

    leader_epoch: int = -1
    end_offset: int = -1
    log_end_offset: int = -1


class OffsetForLeaderEpochResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[EpochEndOffset]
