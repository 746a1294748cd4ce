"""The partitions of one topic of a producer, and the choice among them for a record."""

import random

from warmlog.cluster.cluster import Topic
from warmlog.errors import UnknownTopicOrPartition
from warmlog.producer.delivery import DeliveryFuture, UnassignedRecord
from warmlog.producer.partition_queue import PartitionQueue
from warmlog.producer.partitioner import partition_of_key
from warmlog.producer.record_input import Header


class WaitingRecord:
    """A record of a topic whose partitions are not known yet, and the DeliveryFuture that its sender has."""

    __slots__ = ("_undecided", "headers", "key", "partition", "sent", "size_bytes", "timestamp_ms", "value")

    def __init__(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: list[Header] | None,
        timestamp_ms: int,
        partition: int | None,
        size_bytes: int,
        undecided: UnassignedRecord,
    ) -> None:
        self.value = value
        self.key = key
        self.headers = headers
        self.timestamp_ms = timestamp_ms
        self.partition = partition
        self.size_bytes = size_bytes
        self._undecided = undecided
        self.sent = DeliveryFuture(undecided, 0)

    def decide(self, placed: DeliveryFuture) -> None:
        """It is in a batch, or refused: its DeliveryFuture is what `placed` is."""
        self.sent._batch, self.sent._index = placed._batch, placed._index
        self._undecided.decide()


class TopicQueues:
    """The partitions of one topic; before they are known, the records that wait for them."""

    __slots__ = ("_next_sticky", "is_known", "max_message_bytes", "name", "queues", "sticky", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_known = False
        self.max_message_bytes = 0
        self.queues: list[PartitionQueue] = []
        self.sticky: PartitionQueue | None = None
        self.waiting: list[WaitingRecord] = []
        self._next_sticky = random.randrange(1 << 16)  # noqa: S311 - so that producers do not march in step

    def learn(self, topic: Topic, max_message_bytes: int, *, is_idempotent: bool) -> None:
        """The partitions are known now."""
        self.max_message_bytes = max_message_bytes
        del self.queues[len(topic.partitions) :]
        for partition in range(len(self.queues), len(topic.partitions)):
            self.queues.append(PartitionQueue(self.name, partition, is_idempotent=is_idempotent))
        self.is_known = True

    def choose(self, key: bytes | None, partition: int | None) -> PartitionQueue:
        """The partition asked for, or the key's, or the one that records without a key stick to now."""
        if partition is not None:
            if not 0 <= partition < len(self.queues):
                raise UnknownTopicOrPartition(
                    f"topic {self.name!r} has partitions 0 to {len(self.queues) - 1}, not {partition}"
                )
            return self.queues[partition]
        if key:
            return self.queues[partition_of_key(key, len(self.queues))]
        if self.sticky is None:
            self.sticky = self.queues[self._next_sticky % len(self.queues)]
            self._next_sticky += 1
        return self.sticky
