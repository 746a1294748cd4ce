"""Every request and response of the wire protocol, and the one table that joins them.

A message is a tuple of positional fields: msgpack arrays, in the order written here. A field may be added at the end
of a class, with a default; none is ever moved or removed. A reader ignores fields that it does not know and takes the
default for those that an older peer did not send, so most changes need no new version.

Batches are not part of a message: Produce requests and Fetch responses name the byte count of each partition, and
the bytes follow the header as the frame's payload, in the same order (see frames.py).

Names and meanings are those of Kafka's APIs of the same key (https://kafka.apache.org/protocol) unless a class says
otherwise. Timestamps are milliseconds since 1970 (UTC), `-1` where there is none. Error codes are `errors.ErrorCode`.
"""

from enum import IntEnum

from msgspec import Struct

LATEST_TIMESTAMP = -1
"""ListOffsets: the end of what the asker may read (high watermark for a consumer)."""
EARLIEST_TIMESTAMP = -2
"""ListOffsets: the log start offset."""
MAX_TIMESTAMP = -3
"""ListOffsets: the first record that has the largest timestamp."""

HIGH_WATERMARK = -1
"""DeleteRecords: everything that a consumer may read now."""

CONSUMER_REPLICA_ID = -1
"""`replica_id` of a reader that is no broker: it sees what lies below the high watermark."""
DEBUGGING_REPLICA_ID = -2
"""`replica_id` of a tool that asks up to the log end offset."""

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1


class ApiKey(IntEnum):
    """Kafka's numbers; warmlog's own begin at 1000."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    HANDSHAKE = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    FIND_SPLITS = 1000


class IsolationLevel(IntEnum):
    """Up to where a consumer reads."""

    READ_UNCOMMITTED = 0
    """The high watermark."""
    READ_COMMITTED = 1
    """The last stable offset."""


class Message(Struct, array_like=True, frozen=True, gc=False):
    """The base of all: an immutable msgpack array."""


# --- Handshake: the first request of every connection -----------------------------------------------------------


class HandshakeRequest(Message, frozen=True):
    """Who is there. The broker answers nothing else before this."""

    client_name: str
    client_version: str


class ApiVersions(Message, frozen=True):
    """The versions of one API that the broker speaks, both ends inclusive."""

    api_key: int
    min_version: int
    max_version: int


class HandshakeResponse(Message, frozen=True):
    """Who answers, what it speaks, and the largest frame that it takes, in bytes."""

    broker_version: str
    cluster_id: str
    node_id: int
    max_frame_bytes: int
    apis: list[ApiVersions]


# --- Metadata ------------------------------------------------------------------------------------------------------


class MetadataRequest(Message, frozen=True):
    """Ask for the named topics; None asks for all."""

    topics: list[str] | None = None


class BrokerMetadata(Message, frozen=True):
    """One broker. An empty `host` means: the address that you dialled."""

    node_id: int
    host: str
    port: int


class PartitionMetadata(Message, frozen=True):
    """Who leads a partition and who copies it. `leader_id` is -1 while the partition is offline."""

    error_code: int
    partition: int
    leader_id: int
    leader_epoch: int
    replicas: list[int]
    in_sync_replicas: list[int]


class TopicMetadata(Message, frozen=True):
    """A topic, its 16-byte id and its partitions in ascending order."""

    error_code: int
    name: str
    topic_id: bytes
    partitions: list[PartitionMetadata]


class MetadataResponse(Message, frozen=True):
    """The cluster as this broker sees it."""

    cluster_id: str
    controller_id: int
    brokers: list[BrokerMetadata]
    topics: list[TopicMetadata]


# --- CreateTopics, DeleteTopics, DescribeConfigs --------------------------------------------------------------------


class NewTopic(Message, frozen=True):
    """A topic to create. `partitions` and `replication_factor` -1 mean the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = {}


class CreateTopicsRequest(Message, frozen=True):
    """`validate_only` checks everything and creates nothing."""

    topics: list[NewTopic]
    validate_only: bool = False


class CreatedTopic(Message, frozen=True):
    """What became of one NewTopic, in the order of the request. Answered when the metadata log is flushed."""

    error_code: int
    error_message: str
    name: str
    topic_id: bytes
    partitions: int


class CreateTopicsResponse(Message, frozen=True):
    """One result for each topic asked for."""

    topics: list[CreatedTopic]


class DeleteTopicsRequest(Message, frozen=True):
    """Topics to delete, by name."""

    names: list[str]


class DeletedTopic(Message, frozen=True):
    """What became of one name."""

    error_code: int
    error_message: str
    name: str


class DeleteTopicsResponse(Message, frozen=True):
    """One result for each name asked for."""

    topics: list[DeletedTopic]


class DescribeConfigsRequest(Message, frozen=True):
    """Topics whose settings to show; an empty list asks for the broker's own settings."""

    topics: list[str]


class ConfigEntry(Message, frozen=True):
    """One setting as it is in force. `is_default` is false where somebody set it."""

    name: str
    value: str
    is_default: bool
    description: str


class DescribedConfigs(Message, frozen=True):
    """The settings of one topic, or of the broker under the empty name."""

    error_code: int
    error_message: str
    name: str
    entries: list[ConfigEntry]


class DescribeConfigsResponse(Message, frozen=True):
    """One result for each resource asked for."""

    resources: list[DescribedConfigs]


# --- Produce --------------------------------------------------------------------------------------------------------


class ProducePartition(Message, frozen=True):
    """One batch of `size_bytes` for one partition; the bytes are in the payload, in the order of the request."""

    topic: str
    partition: int
    size_bytes: int


class ProduceRequest(Message, frozen=True):
    """At most one batch for each partition. `acks` 0 is never answered."""

    acks: int
    timeout_ms: int
    partitions: list[ProducePartition]
    transactional_id: str | None = None


class ProducedPartition(Message, frozen=True):
    """Where the batch lies. `log_append_time_ms` is -1 where the producer's timestamps count (CreateTime)."""

    topic: str
    partition: int
    error_code: int
    error_message: str = ""
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


class ProduceResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[ProducedPartition]


class InitProducerIdRequest(Message, frozen=True):
    """Ask for a producer id. With an id and epoch: the same id with a higher epoch, if nobody else raised it."""

    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000
    producer_id: int = -1
    producer_epoch: int = -1


class InitProducerIdResponse(Message, frozen=True):
    """The id is reserved on disk before it is given out: no other producer of this cluster ever gets it."""

    producer_id: int
    producer_epoch: int


# --- Fetch ----------------------------------------------------------------------------------------------------------


class FetchPartition(Message, frozen=True):
    """Where to read one partition and how much of it. The last five are for replicas and careful consumers."""

    topic: str
    partition: int
    fetch_offset: int
    max_bytes: int
    topic_id: bytes | None = None
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    flushed_offset: int = -1


class FetchRequest(Message, frozen=True):
    """Answered when `min_bytes` are there or after `max_wait_ms`; `max_bytes` bounds the whole payload.

    The first batch of the first partition that has any is sent whole even when it is larger than the limits.
    """

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partitions: list[FetchPartition]
    isolation: int = IsolationLevel.READ_UNCOMMITTED
    replica_id: int = CONSUMER_REPLICA_ID


class AbortedTransaction(Message, frozen=True):
    """Records of `producer_id` from `first_offset` to its next abort marker are not part of committed data."""

    producer_id: int
    first_offset: int


class FetchedPartition(Message, frozen=True):
    """`size_bytes` of batches in the payload; the first may begin below the fetch offset, the last may be cut off.

    `has_dense_offsets`: each batch of columns begins where the one before it ended, so that a gap is damage. No CRC
    covers a batch's base offset.
    """

    topic: str
    partition: int
    error_code: int
    error_message: str
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    leader_epoch: int
    topic_id: bytes
    size_bytes: int
    aborted_transactions: list[AbortedTransaction] = []
    has_dense_offsets: bool = False


class FetchResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[FetchedPartition]


# --- ListOffsets ----------------------------------------------------------------------------------------------------


class ListOffsetsPartition(Message, frozen=True):
    """A time in milliseconds, or one of LATEST_, EARLIEST_ and MAX_TIMESTAMP."""

    topic: str
    partition: int
    timestamp_ms: int
    current_leader_epoch: int = -1


class ListOffsetsRequest(Message, frozen=True):
    """For a time: the first record at or after it."""

    partitions: list[ListOffsetsPartition]
    isolation: int = IsolationLevel.READ_UNCOMMITTED
    replica_id: int = CONSUMER_REPLICA_ID


class ListedOffset(Message, frozen=True):
    """`offset` is -1 when no record is at or after the time asked for."""

    topic: str
    partition: int
    error_code: int
    error_message: str
    timestamp_ms: int
    offset: int
    leader_epoch: int


class ListOffsetsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[ListedOffset]


# --- DeleteRecords --------------------------------------------------------------------------------------------------


class DeleteRecordsPartition(Message, frozen=True):
    """Records below `offset` are to go; HIGH_WATERMARK (-1) means all that may be read now."""

    topic: str
    partition: int
    offset: int


class DeleteRecordsRequest(Message, frozen=True):
    """Give up the oldest records of some partitions. To ask again does no harm."""

    partitions: list[DeleteRecordsPartition]


class DeletedRecords(Message, frozen=True):
    """`low_watermark` is the log start offset, which survives whatever happens after the answer; -1 with an error.

    Offsets above the high watermark or below -1 are OFFSET_OUT_OF_RANGE; a topic whose cleanup.policy does not say
    delete is POLICY_VIOLATION.
    """

    topic: str
    partition: int
    error_code: int
    error_message: str
    low_watermark: int


class DeleteRecordsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[DeletedRecords]


# --- OffsetForLeaderEpoch -------------------------------------------------------------------------------------------


class OffsetForLeaderEpochPartition(Message, frozen=True):
    """Where does `leader_epoch` end? `current_leader_epoch` is the epoch that the asker knows as the one in force.

    A follower, or a consumer that was away, finds with it where its history parts from the leader's.
    """

    topic: str
    partition: int
    leader_epoch: int
    current_leader_epoch: int = -1


class OffsetForLeaderEpochRequest(Message, frozen=True):
    """`replica_id` is the asking broker's, or -1."""

    partitions: list[OffsetForLeaderEpochPartition]
    replica_id: int = CONSUMER_REPLICA_ID


class EpochEndOffset(Message, frozen=True):
    """`end_offset` is the first offset after the batches of `leader_epoch`: the one asked for, or the newest below it.

    For the latest epoch that is `log_end_offset`. Both are -1 where no such epoch is known: it is newer than all, or no
    batch has one. FENCED_LEADER_EPOCH when the asker knows an older epoch in force, UNKNOWN_LEADER_EPOCH a newer one.
    """

    topic: str
    partition: int
    error_code: int
    error_message: str
    leader_epoch: int
    end_offset: int
    log_end_offset: int


class OffsetForLeaderEpochResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[EpochEndOffset]


# --- FindSplits: warmlog's own ----------------------------------------------------------------------------------------


class FindSplitsPartition(Message, frozen=True):
    """A range, its end exclusive. What of it is not in the log, or may not be read yet, is left out silently."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int
    topic_id: bytes | None = None


class FindSplitsRequest(Message, frozen=True):
    """Where ranges can be cut between batches, about every `target_bytes`.

    `max_scan_ms` is how long headers may be read for the splits' timestamps; with 0 there are none.
    """

    partitions: list[FindSplitsPartition]
    target_bytes: int
    max_scan_ms: int = 0


class FoundSplit(Message, frozen=True):
    """Batches one after another, from the end of the split before, or the start of the range, up to `end_offset`.

    `size_bytes` is what they take in the log. No record is older than `min_timestamp_ms` or younger than
    `max_timestamp_ms`; None where that is not known.
    """

    end_offset: int
    size_bytes: int
    min_timestamp_ms: int | None = None
    max_timestamp_ms: int | None = None


class FoundSplits(Message, frozen=True):
    """The splits of one range, in order. The last one ends where the range does, unless there are no batches there."""

    topic: str
    partition: int
    error_code: int
    error_message: str
    splits: list[FoundSplit] = []


class FindSplitsResponse(Message, frozen=True):
    """One result for each range, in the order of the request."""

    partitions: list[FoundSplits]


# --- AlterReplicaLogDirs --------------------------------------------------------------------------------------------


class ReplicaLogDir(Message, frozen=True):
    """A partition, and the path of the data directory in which it is to lie."""

    topic: str
    partition: int
    path: str


class AlterReplicaLogDirsRequest(Message, frozen=True):
    """Partitions to move, while they are used. The path of the directory where one lies calls its move off."""

    partitions: list[ReplicaLogDir]


class AlteredReplicaLogDir(Message, frozen=True):
    """What became of one of them: the move has begun, and goes on after a restart."""

    topic: str
    partition: int
    error_code: int
    error_message: str


class AlterReplicaLogDirsResponse(Message, frozen=True):
    """One result for each partition, in the order of the request."""

    partitions: list[AlteredReplicaLogDir]


# --- DescribeLogDirs ------------------------------------------------------------------------------------------------


class DescribeLogDirsRequest(Message, frozen=True):
    """Ask where the partitions of the named topics lie; None asks for all."""

    topics: list[str] | None = None


class LogDirPartition(Message, frozen=True):
    """A partition in a data directory, or a copy on its way into it (`is_future`).

    `size_bytes` is that of its .log files. `offset_lag` is how far a copy is behind its original, 0 for an original,
    and -1 for one that is offline.
    """

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool = False


class LogDir(Message, frozen=True):
    """A data directory. Sizes are those of its file system, -1 when it does not answer; usable is what is free."""

    error_code: int
    error_message: str
    path: str
    partitions: list[LogDirPartition]
    total_bytes: int = -1
    usable_bytes: int = -1


class DescribeLogDirsResponse(Message, frozen=True):
    """Every data directory of the broker, in the order of its configuration."""

    directories: list[LogDir]
    node_id: int


# --- errors ---------------------------------------------------------------------------------------------------------


class ErrorResponse(Message, frozen=True):
    """The body of every response whose error code is not NONE."""

    message: str


class Api(Struct, frozen=True):
    """One row of the table. `is_pipelined`: the broker reads on before it has answered."""

    key: ApiKey
    request: type[Message]
    response: type[Message]
    min_version: int = 0
    max_version: int = 0
    is_pipelined: bool = False


APIS: dict[int, Api] = {
    api.key: api
    for api in (
        Api(ApiKey.HANDSHAKE, HandshakeRequest, HandshakeResponse),
        Api(ApiKey.METADATA, MetadataRequest, MetadataResponse),
        Api(ApiKey.CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse),
        Api(ApiKey.DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse),
        Api(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest, DescribeConfigsResponse),
        Api(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse),
        Api(ApiKey.PRODUCE, ProduceRequest, ProduceResponse, is_pipelined=True),
        Api(ApiKey.FETCH, FetchRequest, FetchResponse, is_pipelined=True),
        Api(ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse),
        Api(ApiKey.DELETE_RECORDS, DeleteRecordsRequest, DeleteRecordsResponse),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
        Api(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest, DescribeLogDirsResponse),
        Api(ApiKey.FIND_SPLITS, FindSplitsRequest, FindSplitsResponse),
    )
}
"""Every API that broker and client speak, by its key."""

API_OF_REQUEST: dict[type[Message], Api] = {api.request: api for api in APIS.values()}
