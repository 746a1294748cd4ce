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
    from warmlog import errors as errors
    from warmlog import serializers as serializers
    from warmlog.admin.access.acls import Acl as Acl
    from warmlog.admin.access.acls import AclDecision as AclDecision
    from warmlog.admin.access.quotas import QuotaDescription as QuotaDescription
    from warmlog.admin.access.users import UserDescription as UserDescription
    from warmlog.admin.admin import Admin as Admin
    from warmlog.admin.admin import BrokerInfo as BrokerInfo
    from warmlog.admin.admin import LogDirDescription as LogDirDescription
    from warmlog.admin.admin import PartitionDescription as PartitionDescription
    from warmlog.admin.admin import TopicDescription as TopicDescription
    from warmlog.admin.group_descriptions import CommittedOffset as CommittedOffset
    from warmlog.admin.group_descriptions import GroupDescription as GroupDescription
    from warmlog.admin.group_descriptions import GroupLag as GroupLag
    from warmlog.admin.group_descriptions import MemberDescription as MemberDescription
    from warmlog.admin.group_reset import OffsetReset as OffsetReset
    from warmlog.admin.transactions import EnrolledPartition as EnrolledPartition
    from warmlog.admin.transactions import TransactionDescription as TransactionDescription
    from warmlog.consumer.consumer import Consumer as Consumer
    from warmlog.consumer.consumer import Lag as Lag
    from warmlog.consumer.group.offsets import GroupMetadata as GroupMetadata
    from warmlog.errors import *  # noqa: F403 - the tree of errors
    from warmlog.producer.delivery import DeliveryFuture as DeliveryFuture
    from warmlog.producer.delivery import Placed as Placed
    from warmlog.producer.delivery import PlacedMany as PlacedMany
    from warmlog.producer.delivery import RecordMetadata as RecordMetadata
    from warmlog.producer.delivery import RecordMetadataRanges as RecordMetadataRanges
    from warmlog.producer.delivery import Sent as Sent
    from warmlog.producer.producer import Producer as Producer
    from warmlog.producer.transaction import Transaction as Transaction
    from warmlog.ranges.arrow_reader import arrow_reader as arrow_reader
    from warmlog.recipes import KeyTable as KeyTable
    from warmlog.recipes import delayed as delayed
    from warmlog.recipes import failed_record as failed_record
    from warmlog.records.batch import Batch as Batch
    from warmlog.records.batch import Record as Record
    from warmlog_protocol.durability import Durability as Durability
    from warmlog_protocol.messages import ConfigValue as ConfigValue
    from warmlog_protocol.messages import GroupListing as GroupListing
    from warmlog_protocol.messages import JobDescription as JobDescription
    from warmlog_protocol.messages import LogDirReplica as LogDirReplica
    from warmlog_transport.list_offsets import OffsetAt as OffsetAt

    __version__: str

_MODULES = {
    "warmlog.admin.access.acls": "Acl AclDecision",
    "warmlog.admin.admin": "Admin BrokerInfo LogDirDescription PartitionDescription TopicDescription",
    "warmlog.admin.group_descriptions": "CommittedOffset GroupDescription GroupLag MemberDescription",
    "warmlog.admin.group_reset": "OffsetReset",
    "warmlog.admin.access.quotas": "QuotaDescription",
    "warmlog.admin.access.users": "UserDescription",
    "warmlog.admin.transactions": "EnrolledPartition TransactionDescription",
    "warmlog_transport.list_offsets": "OffsetAt",
    "warmlog.consumer.consumer": "Consumer Lag",
    "warmlog.consumer.group.offsets": "GroupMetadata",
    "warmlog.producer.delivery": "DeliveryFuture Placed PlacedMany RecordMetadata RecordMetadataRanges Sent",
    "warmlog.producer.producer": "Producer",
    "warmlog.producer.transaction": "Transaction",
    "warmlog.recipes": "KeyTable delayed failed_record",
    "warmlog.ranges.arrow_reader": "arrow_reader",
    "warmlog.records.batch": "Batch Record",
    "warmlog_protocol.durability": "Durability",
    "warmlog_protocol.messages": "ConfigValue GroupListing JobDescription LogDirReplica",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}
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
