"""An internal topic that holds the state of a coordinator: each partition is a shard, with what its records result in.

Shards are loaded when this broker leads their partitions, and found by name; the topic is created on first use.

An operation waits for its turn (`key_order`), decides by the state as it is then, and ends at once if its decision has
no records. Otherwise these are appended together with those of all other decisions of the same turn of the event loop,
as one batch. When it is below the high watermark, its decisions are replayed in the order of the log, their operations
end with their results, and the next ones begin. Only what is durable is ever in the state or in a result.

An operation whose records cannot be appended fails, and has changed nothing. After an error that leaves open what is in
the log, and after one of the state, the shard reads its log again. Errors of the log are CoordinatorNotAvailable,
CoordinatorLoadInProgress is raised while the log is read; clients repeat the request in both cases. Records that no
segment can hold are RecordListTooLarge for good.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from zlib import crc32

from warmlog_broker.coordinator.framework.decision import Decision, State
from warmlog_broker.coordinator.framework.key_order import KeyOrder
from warmlog_broker.coordinator.framework.loading import load
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.partition_state import Role
from warmlog_broker.storage.log.validation import sealed
from warmlog_broker.topics.topics import InternalTopic, Topic, Topics
from warmlog_protocol import errors
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.messages import ACKS_ALL

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
MAX_PENDING = 20_000
"""The most operations of a shard that wait for their turn or for the disk: some 20 MB."""
BATCH_BYTES = 1 << 20
"""The most of one batch. A decision is never divided: a larger one is a batch of its own."""
RELOAD_DELAY_S = 5.0
"""The pause before a log that could not be read is read again."""

S = TypeVar("S", bound=State)
R = TypeVar("R")

_log = logging.getLogger(__name__)


class ShardStatus(Enum):
    """What a shard does with operations."""

    LOADING = auto()
    """It refuses them: its log is being read, or will be read again after a pause."""
    ACTIVE = auto()
    CLOSED = auto()
    """It refuses them for good: this broker leads the partition no longer, or stops."""


class ShardWatcher(Protocol[S]):
    """A service on top of the shards, which keeps timers for their states."""

    def loaded(self, shard: "Shard[S]") -> None:
        """The state is what the log holds; operations are accepted."""
        ...

    def unloaded(self, shard: "Shard[S]") -> None:
        """The state is no longer valid. The shard may be loaded again later."""
        ...

    def changed(self, shard: "Shard[S]", key: str) -> None:
        """An exclusive operation on `key` has changed the state."""
        ...


@dataclass(frozen=True, slots=True)
class ShardSurroundings(Generic[S]):
    """What the shards of one topic have in common."""

    make_state: Callable[[], S]
    watcher: ShardWatcher[S]
    threads: Executor
    """They read files."""
    now_ms: Callable[[], int]
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Shards read their logs one after another."""


@dataclass(slots=True, eq=False)
class _Operation(Generic[S]):
    """One operation that waits for its turn or for the disk."""

    key: str
    decide: Callable[[S], Decision[Any]]
    is_shared: bool
    future: "asyncio.Future[Any]"

    def fail(self, error: Exception) -> None:
        """End it with `error`, which is not logged if nothing waits for the future any more."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()


_Decided = tuple[_Operation[S], Decision[Any]]


class Shard(Generic[S]):
    """The state of one partition. All methods belong to the event loop's thread."""

    def __init__(self, partition: Partition, around: ShardSurroundings[S]) -> None:
        self.partition = partition
        self.status = ShardStatus.LOADING
        self._around = around
        self._loop = asyncio.get_running_loop()
        self._state = around.make_state()
        self._problem = ""
        """Why the log could not be read."""
        self._generation = 0
        """Rises when the state is discarded: what was appended before counts no more."""
        self._order: KeyOrder[_Operation[S]] = KeyOrder()
        self._undurable: dict[_Operation[S], None] = {}
        self._decided: list[_Decided[S]] = []
        """Decisions of this turn of the event loop."""
        self._load_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Shard({self.partition.key.directory_name}, {self.status.name})"

    @property
    def state(self) -> S:
        """The state, for reading. CoordinatorLoadInProgress or CoordinatorNotAvailable."""
        if self.status is not ShardStatus.ACTIVE:
            raise self._refusal()
        return self._state

    def load(self) -> None:
        """Begin to read the log."""
        self._load_task = self._loop.create_task(self._load(), name=f"load {self.partition.key.directory_name}")

    async def wait_until_loaded(self) -> None:
        """Return when the log has been read, or the shard is closed."""
        if self._load_task is not None:
            await asyncio.wait([self._load_task])

    def run(self, key: str, decide: Callable[[S], Decision[R]], *, is_shared: bool = False) -> "R | asyncio.Future[R]":
        """Run an operation on `key`; return its result, or a future if it has to wait for its turn or for the disk.

        Operations on one key that are not shared run one at a time. `decide` is called once, and must not change the
        state; what it raises is raised here or by the future. So are the errors of `state`.
        """
        state = self.state
        decision = decide(state) if self._order.is_free(key, is_shared=is_shared) else None
        if decision is not None and not decision.records:
            return decision.result
        if self._order.waiting_count + len(self._undurable) >= MAX_PENDING:
            raise errors.CoordinatorNotAvailable(
                f"{MAX_PENDING} requests wait for {self.partition.key.directory_name}: retry"
            )
        operation = _Operation(key, decide, is_shared, self._loop.create_future())
        if decision is None:
            self._order.wait(key, operation, is_shared=is_shared)
        else:
            self._order.enter(key, is_shared=is_shared)
            self._write(operation, decision)
        return operation.future

    async def carry_out(self, key: str, decide: Callable[[S], Decision[R]], *, is_shared: bool = False) -> R:
        """Run an operation, and return its result once that is durable."""
        outcome = self.run(key, decide, is_shared=is_shared)
        return await outcome if isinstance(outcome, asyncio.Future) else outcome

    def close(self, reason: str) -> None:
        """Refuse operations from now on, and fail those that wait. Idempotent."""
        if self.status is ShardStatus.CLOSED:
            return
        self._problem = reason
        self._discard(ShardStatus.CLOSED, reason)
        if self._load_task is not None:
            self._load_task.cancel()

    # --- deciding and appending ---------------------------------------------------------------------------------------

    def _write(self, operation: _Operation[S], decision: Decision[Any]) -> None:
        """Append the records of `decision` at the end of this turn of the event loop."""
        self._undurable[operation] = None
        if not self._decided:
            self._loop.call_soon(self._append_decided, self._generation)
        self._decided.append((operation, decision))

    def _append_decided(self, generation: int) -> None:
        """Append what was decided in this turn, in as few batches as BATCH_BYTES allow."""
        if generation != self._generation:
            return
        decided, self._decided = self._decided, []
        parts: list[list[_Decided[S]]] = []
        part_bytes = BATCH_BYTES
        for each in decided:
            size_bytes = sum(len(key) + len(value or b"") for key, value in each[1].records)
            if part_bytes + size_bytes > BATCH_BYTES:
                parts.append([])
                part_bytes = 0
            parts[-1].append(each)
            part_bytes += size_bytes
        for part in parts:
            if generation == self._generation:
                self._append(part)

    def _append(self, decided: Sequence[_Decided[S]]) -> None:
        """Append one batch. If it is refused, its operations fail, and nothing of it is in the log."""
        records = [record for _, decision in decided for record in decision.records]
        now_ms = self._around.now_ms()
        try:
            batch = encode_batch(
                [value for _, value in records], keys=[key for key, _ in records], timestamps_ms=now_ms
            )
            on_durable = partial(self._durable, self._generation, decided)
            self.partition.append(sealed(batch), ACKS_ALL, on_durable, now_ms=now_ms)
        except errors.RecordListTooLarge as error:  # as it would be at each repetition
            self._fail(decided, error)
        except errors.ApiError as error:
            self._fail(decided, self._not_available(str(error)))
        except Exception as error:
            _log.exception("%s: a batch could not be appended: a bug", self.partition.key.directory_name)
            self._reload(f"a batch could not be appended: {error!r}")

    def _fail(self, decided: Sequence[_Decided[S]], error: errors.ApiError) -> None:
        if self.status is not ShardStatus.ACTIVE:
            return
        for operation, _ in decided:
            operation.fail(error)
            del self._undurable[operation]
        for operation, _ in decided:
            self._leave(operation.key)

    # --- durable ------------------------------------------------------------------------------------------------------

    def _durable(self, generation: int, decided: Sequence[_Decided[S]], error: errors.ApiError | None) -> None:
        """Take the outcome of a batch: durable, or unknown because of `error`."""
        if generation != self._generation:
            return
        if error is not None:
            self._reload(f"a batch may be in the log or not: {error}")
            return
        try:
            for _, decision in decided:
                for record in decision.records:
                    self._state.replay(record)
        except Exception:
            _log.exception("%s: a record could not be replayed: a bug", self.partition.key.directory_name)
            self._reload("a record could not be replayed")
            return
        for operation, decision in decided:
            del self._undurable[operation]
            if not operation.future.done():
                operation.future.set_result(decision.result)
            if not operation.is_shared:
                try:
                    self._around.watcher.changed(self, operation.key)
                except Exception:
                    _log.exception("%s: the watcher of a shard failed: a bug", self.partition.key.directory_name)
        for operation, _ in decided:
            self._leave(operation.key)

    def _leave(self, key: str) -> None:
        """End a turn of `key`, and begin the operations that have waited for this."""
        begun = self._order.leave(key)
        while begun:
            ended = [operation.key for operation in begun if not self._begin(operation)]
            begun = [operation for each in ended for operation in self._order.leave(each)]

    def _begin(self, operation: _Operation[S]) -> bool:
        """Decide an operation that has its turn; return whether it waits for the disk."""
        try:
            decision = operation.decide(self._state)
        except Exception as error:
            operation.fail(error)
            return False
        if decision.records:
            self._write(operation, decision)
            return True
        if not operation.future.done():
            operation.future.set_result(decision.result)
        return False

    # --- loading ------------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Read the log, again after a pause if that fails, until it succeeds."""
        name = self.partition.key.directory_name
        while True:
            try:
                began_s = self._loop.time()
                self._state = self._around.make_state()
                count = await load(self.partition, self._state, self._around.threads, self._around.reading)
                break
            except (errors.ApiError, OSError, MemoryError) as error:
                problem = f"the log of {name} cannot be read: {error}"
            except Exception as error:
                _log.exception("%s: a record could not be replayed: a bug", name)
                problem = f"a record of {name} cannot be replayed: {error!r}"
            if problem != self._problem:
                _log.error("%s; tried again every %g s", problem, RELOAD_DELAY_S)
            self._problem = problem
            await asyncio.sleep(RELOAD_DELAY_S)
        self.status = ShardStatus.ACTIVE
        self._problem = ""
        took_s = self._loop.time() - began_s
        _log.log(logging.INFO if count else logging.DEBUG, "%s: %d records loaded in %.2f s", name, count, took_s)
        self._around.watcher.loaded(self)

    def _reload(self, reason: str) -> None:
        if self.status is ShardStatus.CLOSED:
            return
        _log.error("%s is read again: %s", self.partition.key.directory_name, reason)
        self._discard(ShardStatus.LOADING, reason)
        self.load()

    def _discard(self, status: ShardStatus, reason: str) -> None:
        """Enter `status`: the state is no longer valid, and operations that wait fail."""
        was_active = self.status is ShardStatus.ACTIVE
        self.status = status
        self._generation += 1
        failed = [*self._undurable, *self._order.clear()]
        self._undurable = {}
        self._decided = []
        for operation in failed:
            operation.fail(self._not_available(reason))
        if was_active:
            self._around.watcher.unloaded(self)

    def _refusal(self) -> errors.ApiError:
        if self.status is ShardStatus.CLOSED or self._problem:
            return self._not_available(self._problem)
        return errors.CoordinatorLoadInProgress(f"{self.partition.key.directory_name} is being loaded: retry")

    @staticmethod
    def _not_available(problem: str) -> errors.CoordinatorNotAvailable:
        return errors.CoordinatorNotAvailable(f"the coordinator is not available: {problem}")


class Coordinator(Generic[S]):
    """The states that are kept in one internal topic."""

    def __init__(self, name: str, partitions: int, topics: Topics, around: ShardSurroundings[S]) -> None:
        """`partitions` is the number with which the topic is created."""
        self._name = name
        self._partitions = partitions
        self._topics = topics
        self._around = around
        self._shards: dict[Partition, Shard[S]] = {}
        self._is_closed = False

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

    @property
    def is_whole(self) -> bool:
        """Whether this broker leads all partitions of the topic, and so knows every key, once they are loaded."""
        if not self.exists:
            return False
        topic = self._topics.get(self._name)
        return sum(each.role is Role.LEADING for each in topic.local.values()) == topic.count

    async def create(self) -> None:
        """Create the topic unless it exists; return when its shards are loaded. CoordinatorNotAvailable."""
        if self._is_closed:
            raise errors.CoordinatorNotAvailable(f"{self._name} cannot be created: the broker stops")
        try:
            await self._topics.internal(InternalTopic(self._name, self._partitions, LOG_SETTINGS))
        except errors.ApiError as error:
            raise errors.CoordinatorNotAvailable(f"{self._name} cannot be created: {error}") from error
        for shard in list(self._shards.values()):
            await shard.wait_until_loaded()

    async def place_of(self, key: str) -> tuple[Topic, int]:
        """Return the partition that has `key`, by its number, and its topic, which is created first if need be."""
        if not self.exists:
            await self.create()
        topic = self._topics.get(self._name)
        return topic, _number_of(topic, key)

    def find(self, key: str) -> Shard[S] | None:
        """Return the shard that has `key`; None without the topic.

        CoordinatorNotAvailable if the shard's partition is offline.
        """
        topic = self._topics.find(self._name)
        if topic is None or not topic.is_internal:
            return None
        number = _number_of(topic, key)
        if number not in topic.local:
            raise errors.NotCoordinator(f"{self._name}-{number}, which has {key!r}, is not on this broker")
        return self._led(topic.local[number])

    def _led(self, partition: Partition) -> Shard[S]:
        shard = self._shards.get(partition)
        if shard is not None:
            return shard
        if self._is_closed:
            raise errors.NotCoordinator("the broker stops")
        if partition.role is not Role.LEADING:
            raise errors.NotCoordinator(str(partition.refusal()))
        raise errors.CoordinatorNotAvailable(f"the coordinator is not available: {partition.refusal()}")

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

    def states(self) -> list[S]:
        """Return the states of all shards on this broker. Raises what `Shard.state` does."""
        local = self._topics.get(self._name).local.values() if self.exists else ()
        return [self._led(partition).state for partition in local if partition.role is Role.LEADING]

    async def confirm(self, key: str) -> None:
        """Return once the state of `key` has all that was acknowledged before: another broker may lead its shard now.

        Raises NotCoordinator if it does, or that cannot be known.
        """
        if (shard := self.find(key)) is not None:
            try:
                await shard.partition.confirm()
            except errors.NotLeaderOrFollower as error:
                raise errors.NotCoordinator(str(error)) from error

    @property
    def active(self) -> Iterator[Shard[S]]:
        """The shards that accept operations, each when it is come to: it may have been lost meanwhile."""
        return (shard for shard in list(self._shards.values()) if shard.status is ShardStatus.ACTIVE)

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


def _number_of(topic: Topic, key: str) -> int:
    """Return the partition of a key by the CRC-32 of its UTF-8, as for keys of records."""
    return crc32(key.encode()) % topic.count
