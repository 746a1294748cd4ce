"""All requests and responses of the wire protocol, and the table that joins them.

A message is a tuple of positional fields: msgpack arrays, in the order written here. A field may be added at the end
of a class, with a default; none is ever moved or removed. A reader ignores unknown fields and uses the default for
those that an older peer did not send, so most changes need no new version.

Batches are not part of a message: Produce requests and Fetch responses name the byte count of each partition, and
the bytes follow the header as the frame's payload, in the same order (see frames.py).

Names and meanings are those of Kafka's APIs of the same key (https://kafka.apache.org/protocol) unless a class says
otherwise. Timestamps are milliseconds since 1970 (UTC), `-1` where there is none. Error codes are `errors.ErrorCode`.
"""

from warmlog_protocol.messages.apis import API_OF_REQUEST, APIS, Api, ErrorResponse
from warmlog_protocol.messages.base import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    CONSUMER_REPLICA_ID,
    DEBUGGING_REPLICA_ID,
    EARLIEST_TIMESTAMP,
    HIGH_WATERMARK,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_LEADER_EPOCH,
    ApiKey,
    IsolationLevel,
    Message,
)
from warmlog_protocol.messages.fetch import (
    AbortedTransaction,
    DivergingEpoch,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from warmlog_protocol.messages.handshake import ApiVersions, HandshakeRequest, HandshakeResponse
from warmlog_protocol.messages.log_dirs import (
    AlteredReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogDir,
    LogDirPartition,
    ReplicaLogDir,
)
from warmlog_protocol.messages.metadata import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    PartitionMetadata,
    TopicMetadata,
)
from warmlog_protocol.messages.offsets import (
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochEndOffset,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from warmlog_protocol.messages.produce import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from warmlog_protocol.messages.splits import (
    FindSplitsPartition,
    FindSplitsRequest,
    FindSplitsResponse,
    FoundSplit,
    FoundSplits,
)
from warmlog_protocol.messages.topics import (
    ConfigEntry,
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
    NewTopic,
)

__all__ = [
    "ACKS_ALL",
    "ACKS_LEADER",
    "ACKS_NONE",
    "APIS",
    "API_OF_REQUEST",
    "CONSUMER_REPLICA_ID",
    "DEBUGGING_REPLICA_ID",
    "EARLIEST_TIMESTAMP",
    "HIGH_WATERMARK",
    "LATEST_TIMESTAMP",
    "MAX_TIMESTAMP",
    "NO_LEADER_EPOCH",
    "AbortedTransaction",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponse",
    "AlteredReplicaLogDir",
    "Api",
    "ApiKey",
    "ApiVersions",
    "BrokerMetadata",
    "ConfigEntry",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "CreatedTopic",
    "DeleteRecordsPartition",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DeletedRecords",
    "DeletedTopic",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribedConfigs",
    "DivergingEpoch",
    "EpochEndOffset",
    "ErrorResponse",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchedPartition",
    "FindSplitsPartition",
    "FindSplitsRequest",
    "FindSplitsResponse",
    "FoundSplit",
    "FoundSplits",
    "HandshakeRequest",
    "HandshakeResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "IsolationLevel",
    "ListOffsetsPartition",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListedOffset",
    "LogDir",
    "LogDirPartition",
    "Message",
    "MetadataRequest",
    "MetadataResponse",
    "NewTopic",
    "OffsetForLeaderEpochPartition",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "PartitionMetadata",
    "ProducePartition",
    "ProduceRequest",
    "ProduceResponse",
    "ProducedPartition",
    "ReplicaLogDir",
    "TopicMetadata",
]
