"""The records of partitions in etcd: their keys, the conditional write of one, and linearizable reads.

::

    /warmlog/<cluster id>/partitions/<topic id>/<number>    a `PartitionRecord`; its revision is that of its last change
    /warmlog/<cluster id>/brokers/<node>                    the registration of a broker, which goes with its lease; the
                                                            revision at which it was created is the broker epoch

The topic id is in hexadecimal digits.
"""

import logging
from typing import NamedTuple

from warmlog_broker.etcd.coordination import (
    ChangedAt,
    Coordination,
    CreatedAt,
    Failed,
    Item,
    Put,
    Refused,
    Succeeded,
    prefix_end,
)
from warmlog_broker.replication.events import Outcome, Write, Written
from warmlog_broker.replication.record import PartitionRecord, from_bytes, to_bytes

_log = logging.getLogger(__name__)


class PartitionKey(NamedTuple):
    """A partition, by the id of its topic: a topic that is created again under the name of a deleted one is another."""

    topic_id: bytes
    number: int


class Seen(NamedTuple):
    """A record, and the revision at which it was written."""

    record: PartitionRecord
    revision: int


class Records:
    """The records of one cluster."""

    def __init__(self, etcd: Coordination, cluster_id: str) -> None:
        self._etcd = etcd
        self._prefix = f"/warmlog/{cluster_id}/"

    @property
    def prefix(self) -> str:
        """What the keys of all records begin with."""
        return f"{self._prefix}partitions/"

    def key(self, partition: PartitionKey) -> str:
        return f"{self.prefix}{partition.topic_id.hex()}/{partition.number}"

    def broker_key(self, node: int) -> str:
        return f"{self._prefix}brokers/{node}"

    def partition_of(self, key: str) -> PartitionKey:
        """Return the partition whose record has this key."""
        topic_id, _, number = key.removeprefix(self.prefix).partition("/")
        return PartitionKey(bytes.fromhex(topic_id), int(number))

    async def write(self, partition: PartitionKey, write: Write) -> Written:
        """Write a record if its conditions hold, and return what became of it.

        A write that etcd refuses is of unknown outcome too: it is sent again until an operator has mended the reason.
        """
        key = self.key(partition)
        compares = [CreatedAt(self.broker_key(node), epoch) for node, epoch in write.sessions.items()]
        put = Put(key, to_bytes(write.record))
        try:
            outcome = await self._etcd.txn([ChangedAt(key, write.revision), *compares], [put], [key])
        except Refused as error:
            _log.error("the record of a partition was not written: %s", error)
            return Written(write.number, Outcome.UNKNOWN)
        match outcome:
            case Succeeded(revision):
                return Written(write.number, Outcome.SUCCEEDED, revision)
            case Failed(_, items):
                seen = _seen(items[key]) if key in items else None
                if seen is None:
                    return Written(write.number, Outcome.FAILED)
                return Written(write.number, Outcome.FAILED, seen.revision, seen.record)
            case _:
                return Written(write.number, Outcome.UNKNOWN)

    async def read(self) -> dict[PartitionKey, Seen]:
        """Return all records. Raises what `Coordination.range` does."""
        listing = await self._etcd.range(self.prefix, prefix_end(self.prefix))
        return {self.partition_of(item.key): _seen(item) for item in listing.items}


def _seen(item: Item) -> Seen:
    return Seen(from_bytes(item.value), item.changed)
