"""warmlog: a durable log broker for Python data teams. This is the client.

::

    async with warmlog.Producer("127.0.0.1:7400") as producer:
        metadata = await producer.send("flights", b"EWR-IAH", key=b"UA")

    async with warmlog.Consumer("127.0.0.1:7400", topics=["flights"]) as consumer:
        async for batch in consumer.batches(until="latest"):
            for record in batch:
                ...

`Producer`, `Consumer` and `Admin` are asyncio clients; `warmlog.blocking` has the same without `await`. Every error
derives from `WarmlogError`; `errors` shows the tree.
"""

from warmlog import errors as _errors
from warmlog import serializers
from warmlog.admin.admin import Admin, BrokerInfo, ConfigValue, TopicDescription
from warmlog.admin.group_descriptions import CommittedOffset, GroupDescription, GroupListing, MemberDescription
from warmlog.admin.group_lag import GroupLag
from warmlog.admin.group_reset import OffsetReset
from warmlog.admin.log_dirs import LogDirDescription, LogDirReplica
from warmlog.admin.partition_description import PartitionDescription
from warmlog.admin.users import UserDescription
from warmlog.cluster.list_offsets import OffsetAt
from warmlog.consumer.consumer import Consumer
from warmlog.consumer.group.offsets import GroupMetadata
from warmlog.consumer.lag import Lag
from warmlog.errors import *  # noqa: F403 - the tree of errors
from warmlog.producer.delivery import (
    DeliveryFuture,
    Placed,
    PlacedMany,
    RecordMetadata,
    RecordMetadataRanges,
    Sent,
)
from warmlog.producer.producer import Producer
from warmlog.records.batch import Batch, Record
from warmlog_protocol.durability import Durability

__all__ = [
    "Admin",
    "Batch",
    "BrokerInfo",
    "CommittedOffset",
    "ConfigValue",
    "Consumer",
    "DeliveryFuture",
    "Durability",
    "GroupDescription",
    "GroupLag",
    "GroupListing",
    "GroupMetadata",
    "Lag",
    "LogDirDescription",
    "LogDirReplica",
    "MemberDescription",
    "OffsetAt",
    "OffsetReset",
    "PartitionDescription",
    "Placed",
    "PlacedMany",
    "Producer",
    "Record",
    "RecordMetadata",
    "RecordMetadataRanges",
    "Sent",
    "TopicDescription",
    "UserDescription",
    "serializers",
]
__all__ += _errors.__all__


def __getattr__(name: str) -> str:
    if name == "__version__":
        from warmlog.cluster.options import client_version

        return client_version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
