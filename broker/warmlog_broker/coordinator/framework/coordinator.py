"""The shards of one internal topic: created on first use, loaded when this broker leads them, found by name."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Generic, TypeVar
from zlib import crc32

from warmlog_broker.coordinator.framework.decision import Decision, State
from warmlog_broker.coordinator.framework.shard import Shard, Status, Surroundings
from warmlog_broker.replica.partition import Partition
from warmlog_broker.topics.topics import InternalTopic, Topics
from warmlog_protocol.errors import ApiError, CoordinatorNotAvailable, NotCoordinator

SEGMENT_BYTES = 16 << 20
"""Small, as only closed segments are compacted, and all of the log is read at a start. A decision must fit into one."""
LOG_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(SEGMENT_BYTES),
    "max.message.bytes": str(SEGMENT_BYTES),
    "write.caching": "false",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}
"""What a coordinator needs of its topic, whatever the defaults of the broker are."""

S = TypeVar("S", bound=State)
R = TypeVar("R")


class Coordinator(Generic[S]):
    """The states that are kept in one internal topic."""

    def __init__(self, name: str, partitions: int, topics: Topics, around: Surroundings[S]) -> None:
        """`partitions` is the number with which the topic is created."""
        self._name = name
        self._topics = topics
        self._around = around
        self._shards: dict[Partition, Shard[S]] = {}
        self._is_closed = False
        topics.register_internal(InternalTopic(name, partitions, LOG_SETTINGS))

    def start(self) -> None:
        """Load the partitions that exist, and all that come later."""
        self._topics.watch(self._name, self)

    def close(self) -> None:
        """Fail all operations that wait, and refuse further ones. Idempotent."""
        self._is_closed = True
        for shard in list(self._shards.values()):
            shard.close("the broker stops")

    @property
    def exists(self) -> bool:
        """Whether the topic has been created. Until then no name has any state."""
        topic = self._topics.find(self._name)
        return topic is not None and topic.is_internal

    async def create(self) -> None:
        """Create the topic unless it exists; return when its shards are loaded. CoordinatorNotAvailable."""
        if self._is_closed:
            raise CoordinatorNotAvailable(f"{self._name} cannot be created: the broker stops")
        try:
            await self._topics.internal(self._name)
        except ApiError as error:
            raise CoordinatorNotAvailable(f"{self._name} cannot be created: {error}") from error
        for shard in list(self._shards.values()):
            await shard.wait_until_loaded()

    def find(self, key: str) -> Shard[S] | None:
        """Return the shard that has `key`, by the CRC-32 of its UTF-8, as for keys of records; None without the topic.

        CoordinatorNotAvailable if the shard's partition is offline.
        """
        topic = self._topics.find(self._name)
        if topic is None or not topic.is_internal:
            return None
        return self._led(topic.partitions[crc32(key.encode()) % len(topic.partitions)])

    def _led(self, partition: Partition) -> Shard[S]:
        shard = self._shards.get(partition)
        if shard is not None:
            return shard
        if self._is_closed:
            raise NotCoordinator("the broker stops")
        raise CoordinatorNotAvailable(f"the coordinator is not available: {partition.refusal()}")

    def run(self, key: str, decide: Callable[[S], Decision[R]], *, is_shared: bool = False) -> R | Awaitable[R]:
        """As `Shard.run` of the shard of `key`. The first decision that has records creates the topic."""
        shard = self.find(key)
        if shard is not None:
            return shard.run(key, decide, is_shared=is_shared)
        decision = decide(self._around.make_state())
        return self._create_and_run(key, decide, is_shared=is_shared) if decision.records else decision.result

    async def _create_and_run(self, key: str, decide: Callable[[S], Decision[R]], *, is_shared: bool) -> R:
        await self.create()
        shard = self.find(key)
        assert shard is not None
        return await shard.carry_out(key, decide, is_shared=is_shared)

    async def carry_out(self, key: str, decide: Callable[[S], Decision[R]]) -> R:
        """As `run`, and return the result once that is durable."""
        outcome = self.run(key, decide)
        return await outcome if isinstance(outcome, Awaitable) else outcome

    def state_of(self, key: str) -> S:
        """Return the state that has `key`, for reading; an empty one if the topic does not exist."""
        shard = self.find(key)
        return self._around.make_state() if shard is None else shard.state

    def states(self) -> Iterator[S]:
        """Iterate over the states of all shards. Raises what `Shard.state` does."""
        if self.exists:
            for partition in self._topics.get(self._name).partitions:
                yield self._led(partition).state

    @property
    def active(self) -> Iterator[Shard[S]]:
        """The shards that accept operations, each when it is come to: it may have been lost meanwhile."""
        return (shard for shard in list(self._shards.values()) if shard.status is Status.ACTIVE)

    def loaded(self, partition: Partition) -> None:
        """As `PartitionWatcher`: this broker leads `partition`, so its log is read."""
        if self._is_closed or not self.exists:
            return
        shard = self._shards[partition] = Shard(partition, self._around)
        shard.load()

    def unloaded(self, partition: Partition) -> None:
        """As `PartitionWatcher`: this broker leads `partition` no longer."""
        shard = self._shards.pop(partition, None)
        if shard is not None:
            shard.close(str(partition.refusal()))
