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

Each name is imported when it is first used: a program that only reads does not load what writes.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warmlog import errors, serializers
    from warmlog.admin.access.acls import Acl, AclDecision
    from warmlog.admin.access.quotas import QuotaDescription
    from warmlog.admin.access.users import UserDescription
    from warmlog.admin.admin import Admin, BrokerInfo, LogDirDescription, TopicDescription
    from warmlog.admin.group_descriptions import CommittedOffset, GroupDescription, MemberDescription
    from warmlog.admin.group_lag import GroupLag
    from warmlog.admin.group_reset import OffsetReset
    from warmlog.admin.partition_description import PartitionDescription
    from warmlog.admin.transactions import EnrolledPartition, TransactionDescription
    from warmlog.consumer.consumer import Consumer, Lag
    from warmlog.consumer.group.offsets import GroupMetadata
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
    from warmlog.producer.transaction import Transaction
    from warmlog.records.batch import Batch, Record
    from warmlog_protocol.durability import Durability
    from warmlog_protocol.messages import ConfigValue, GroupListing, JobDescription, LogDirReplica
    from warmlog_transport.list_offsets import OffsetAt

    __version__: str

    __all__ = [
        "Acl",
        "AclDecision",
        "Admin",
        "Batch",
        "BrokerInfo",
        "CommittedOffset",
        "ConfigValue",
        "Consumer",
        "DeliveryFuture",
        "Durability",
        "EnrolledPartition",
        "GroupDescription",
        "GroupLag",
        "GroupListing",
        "GroupMetadata",
        "JobDescription",
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
        "QuotaDescription",
        "Record",
        "RecordMetadata",
        "RecordMetadataRanges",
        "Sent",
        "TopicDescription",
        "Transaction",
        "TransactionDescription",
        "UserDescription",
        "serializers",
    ]
    __all__ += errors.__all__

_MODULES = {
    "warmlog.admin.access.acls": ("Acl", "AclDecision"),
    "warmlog.admin.admin": ("Admin", "BrokerInfo", "LogDirDescription", "TopicDescription"),
    "warmlog.admin.group_descriptions": ("CommittedOffset", "GroupDescription", "MemberDescription"),
    "warmlog.admin.group_lag": ("GroupLag",),
    "warmlog.admin.group_reset": ("OffsetReset",),
    "warmlog.admin.partition_description": ("PartitionDescription",),
    "warmlog.admin.access.quotas": ("QuotaDescription",),
    "warmlog.admin.access.users": ("UserDescription",),
    "warmlog.admin.transactions": ("EnrolledPartition", "TransactionDescription"),
    "warmlog_transport.list_offsets": ("OffsetAt",),
    "warmlog.consumer.consumer": ("Consumer", "Lag"),
    "warmlog.consumer.group.offsets": ("GroupMetadata",),
    "warmlog.producer.delivery": (
        "DeliveryFuture",
        "Placed",
        "PlacedMany",
        "RecordMetadata",
        "RecordMetadataRanges",
        "Sent",
    ),
    "warmlog.producer.producer": ("Producer",),
    "warmlog.producer.transaction": ("Transaction",),
    "warmlog.records.batch": ("Batch", "Record"),
    "warmlog_protocol.durability": ("Durability",),
    "warmlog_protocol.messages": ("ConfigValue", "GroupListing", "JobDescription", "LogDirReplica"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("errors", "serializers")

if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> object:
        if name == "__all__":
            return [*_MODULE_OF, "serializers", *import_module("warmlog.errors").__all__]
        if name == "__version__":
            return import_module("warmlog_transport.options").client_version()
        if name in _SUBMODULES:
            return import_module(f"warmlog.{name}")
        module = import_module(_MODULE_OF.get(name, "warmlog.errors"))
        if name not in _MODULE_OF and name not in module.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__"), *_SUBMODULES, "__version__"})
