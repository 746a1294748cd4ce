"""warmlog: a durable log broker for Python data teams. This is the client.

::

    async with warmlog.Producer("127.0.0.1:7400") as producer:
        placed = await producer.send("flights", b"EWR-IAH", key=b"UA")

    async with warmlog.Consumer("127.0.0.1:7400", topics=["flights"]) as consumer:
        async for batch in consumer.batches(until="latest"):
            for record in batch:
                ...

`Producer`, `Consumer` and `Admin` are asyncio clients; `blocking` has one without an event loop. Every error derives
from `WarmlogError`; the tree is drawn in `errors`.
"""

from warmlog.admin.admin import Admin, ConfigValue, TopicDescription
from warmlog.admin.log_dirs import LogDirDescription, LogDirReplica
from warmlog.admin.partition_description import PartitionDescription
from warmlog.cluster.list_offsets import OffsetAt
from warmlog.consumer.consumer import Consumer
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    BufferFull,
    ClientClosed,
    ClientError,
    CorruptBatch,
    DeliveryTimeout,
    DiskFull,
    DuplicateSequence,
    ErrorCode,
    FencedLeaderEpoch,
    InconsistentTopicId,
    InvalidConfig,
    InvalidPartitions,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidReplicationFactor,
    InvalidRequest,
    InvalidRequiredAcks,
    InvalidTimestamp,
    InvalidTopic,
    InvalidTxnState,
    LocalProtocolError,
    LogDirNotFound,
    LogTruncated,
    MessageTooLarge,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequence,
    OutOfResources,
    PolicyViolation,
    ProtocolError,
    RecordListTooLarge,
    RemoteProtocolError,
    RequestTimedOut,
    SafeMode,
    StorageError,
    TooManyConnections,
    TopicAlreadyExists,
    UnknownLeaderEpoch,
    UnknownProducerId,
    UnknownServerError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnreadableBatch,
    UnsupportedVersion,
    WarmlogError,
    WrongEventLoop,
    error_from_code,
)
from warmlog.producer.delivery import Placed, PlacedMany, Sent
from warmlog.producer.producer import Producer
from warmlog.records.batch import Batch, Record
from warmlog_protocol.durability import Durability

__all__ = [
    "Admin",
    "ApiError",
    "Batch",
    "BrokerUnavailable",
    "BufferFull",
    "ClientClosed",
    "ClientError",
    "ConfigValue",
    "Consumer",
    "CorruptBatch",
    "DeliveryTimeout",
    "DiskFull",
    "DuplicateSequence",
    "Durability",
    "ErrorCode",
    "FencedLeaderEpoch",
    "InconsistentTopicId",
    "InvalidConfig",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidReplicationFactor",
    "InvalidRequest",
    "InvalidRequiredAcks",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidTxnState",
    "LocalProtocolError",
    "LogDirDescription",
    "LogDirNotFound",
    "LogDirReplica",
    "LogTruncated",
    "MessageTooLarge",
    "NotLeaderOrFollower",
    "OffsetAt",
    "OffsetOutOfRange",
    "OutOfOrderSequence",
    "OutOfResources",
    "PartitionDescription",
    "Placed",
    "PlacedMany",
    "PolicyViolation",
    "Producer",
    "ProtocolError",
    "Record",
    "RecordListTooLarge",
    "RemoteProtocolError",
    "RequestTimedOut",
    "SafeMode",
    "Sent",
    "StorageError",
    "TooManyConnections",
    "TopicAlreadyExists",
    "TopicDescription",
    "UnknownLeaderEpoch",
    "UnknownProducerId",
    "UnknownServerError",
    "UnknownTopicId",
    "UnknownTopicOrPartition",
    "UnreadableBatch",
    "UnsupportedVersion",
    "WarmlogError",
    "WrongEventLoop",
    "error_from_code",
]


def __getattr__(name: str) -> str:
    if name == "__version__":
        from warmlog.cluster.options import client_version

        return client_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
