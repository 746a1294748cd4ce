"""The records of partitions in etcd: the conditional write of one, and linearizable reads of all."""

import logging
from collections.abc import Callable
from typing import NamedTuple

from warmlog_broker.cluster.keys import Keys
from warmlog_broker.etcd.coordination import (
    ChangedAt,
    Coordination,
    CoordinationError,
    CreatedAt,
    Failed,
    Item,
    Put,
    Succeeded,
    WentBack,
    prefix_end,
)
from warmlog_broker.replication.events import Outcome, Write, Written
from warmlog_broker.replication.record import PartitionRecord, from_bytes, to_bytes
from warmlog_protocol.errors import WarmlogError

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
    def __init__(self, etcd: Coordination, keys: Keys, is_frozen: Callable[[], bool] = lambda: False) -> None:
        """While `is_frozen`, etcd is not believed: nothing is written, and nothing read."""
        self._etcd = etcd
        self._keys = keys
        self._is_frozen = is_frozen
        self._read: dict[str, tuple[int, Seen | None]] = {}
        """What was found last, by the key, with the revision: as long as that is the same, so is the record."""

    def partition_of(self, key: str) -> PartitionKey:
        """Return the partition whose record has this key."""
        _, topic_id, number = self._keys.parts(key)
        return PartitionKey(bytes.fromhex(topic_id), int(number))

    async def write(self, partition: PartitionKey, write: Write) -> Written:
        """Write a record if its conditions hold, and return what became of it.

        A write that etcd refuses is of unknown outcome too, as is one that meets a record that cannot be read: it is
        sent again until an operator has mended the reason.
        """
        if self._is_frozen():
            return Written(write.number, Outcome.UNKNOWN)
        key = self._keys.partition(*partition)
        compares = [CreatedAt(self._keys.broker(node), epoch) for node, epoch in write.sessions.items()]
        put = Put(key, to_bytes(write.record))
        try:
            outcome = await self._etcd.txn([ChangedAt(key, write.revision), *compares], [put], [key])
        except CoordinationError as error:
            _log.error("the record of a partition was not written: %s", error)
            return Written(write.number, Outcome.UNKNOWN)
        match outcome:
            case Succeeded(revision):
                return Written(write.number, Outcome.SUCCEEDED, revision)
            case Failed(_, items):
                if key not in items:
                    return Written(write.number, Outcome.FAILED)
                if (seen := self._seen(items[key])) is None:
                    return Written(write.number, Outcome.UNKNOWN)
                return Written(write.number, Outcome.FAILED, seen.revision, seen.record)
            case _:
                return Written(write.number, Outcome.UNKNOWN)

    async def read(self) -> dict[PartitionKey, Seen]:
        """Return all records that can be read. Raises what `Coordination.range` does."""
        if self._is_frozen():
            raise WentBack("etcd has lost what it had")
        listing = await self._etcd.range(self._keys.records, prefix_end(self._keys.records))
        found = {self.partition_of(item.key): self._seen(item) for item in listing.items}
        self._read = {item.key: self._read[item.key] for item in listing.items}
        return {key: seen for key, seen in found.items() if seen is not None}

    def _seen(self, item: Item) -> Seen | None:
        """Return None, and say so once, for a record that cannot be read: only its own partition waits then."""
        revision, seen = self._read.get(item.key, (0, None))
        if revision != item.changed:
            try:
                seen = Seen(from_bytes(item.value), item.changed)
            except WarmlogError as error:
                seen = None
                _log.error("%s in etcd: %s", item.key, error)
            self._read[item.key] = item.changed, seen
        return seen
