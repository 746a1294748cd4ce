"""The iterators of a consumer: by batch, record or Arrow batch, or everything as one table.

One of them has the consumer at a time (`Lease`), and continues where the last one stopped, also within a batch.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from time import monotonic
from typing import TYPE_CHECKING, Generic, Self, TypeVar
from weakref import ref

from warmlog.consumer.consumer_core import ConsumerCore
from warmlog.errors import ConsumerBusy, NotLeaderOrFollower, UnreadableBatch, WarmlogError
from warmlog.points import Points, Where
from warmlog.ranges.offset_range import OffsetRange
from warmlog.records.batch import Batch, Record
from warmlog_protocol.messages import LATEST_TIMESTAMP, NO_LEADER_EPOCH, IsolationLevel
from warmlog_transport.list_offsets import OffsetAt, list_offsets
from warmlog_transport.responses import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from warmlog.ranges.read_settings import ReadSettings

T = TypeVar("T")

CLOSING_TURNS = 4
"""Turns of the event loop in which it ends a step that was cancelled, or closes a generator around an iterator."""
BREATH_INTERVAL_S = 0.05
"""How long records of one batch are delivered before the event loop runs, if the user awaits nothing else."""
MAX_FEW = 128
"""How many of them, at most, are delivered without a look at the clock."""


class Lease:
    """Lends the consumer to one iterator, from its first step on.

    It ends when the iterator is exhausted, is closed or raises, or when nothing refers to it, as after the `for` that
    runs over it was left. An iterator that has raised goes on with its next step, unless another one has the consumer.
    """

    def __init__(self) -> None:
        self.last: object = None
        """Stands for the iterator that has read last; what it holds the consumer with may be a copy of it."""
        self._holder: ref[object] | None = None
        self._step: tuple[object, asyncio.Task[object] | None] | None = None
        """The iterator that takes a step, and the task in which it does."""

    def is_taken(self, reading: object) -> bool:
        """Whether a step is under way, or another iterator than that which `reading` stands for has the consumer."""
        return self._step is not None or self._is_lent_to_another(reading)

    async def returned(self, reading: object) -> None:
        """Wait for the end of what is ending already."""
        for _ in range(CLOSING_TURNS):
            if self.is_taken(reading):
                await asyncio.sleep(0)

    def enter(self, reading: object) -> None:
        """Begin a step of the iterator that `reading` stands for. ConsumerBusy if the consumer is taken."""
        if self._step is not None:
            raise ConsumerBusy(
                "this consumer is waiting for what another call reads: read from one task or thread at a time. "
                "on_assigned, on_revoked and on_lost cannot read: they are called between two reads"
            )
        if self._is_lent_to_another(reading):
            raise ConsumerBusy(
                "another iterator of this consumer is open: leave its loop, or end it by aclose() (without asyncio: "
                "close()), before something else is read; or use a consumer for each"
            )
        self._step = reading, asyncio.current_task()

    def leave(self, holder: object | None) -> None:
        """End the step. `holder` has the consumer as long as it exists; None: none has it."""
        self._step = None
        if holder is None:
            self._holder = None
        elif self._holder is None or self._holder() is None:  # else a loop over the same iterator has it
            self._holder = ref(holder)

    def pass_on(self, holder: object, to: object) -> None:
        """Let a loop over `holder` have the consumer in its place, if it does."""
        if self._holder is not None and self._holder() is holder:
            self._holder = ref(to)

    def end(self, reading: object) -> None:
        """Take the consumer back if `reading` has it."""
        if self.last is reading:
            self._holder = None

    def abandon(self, reading: object) -> None:
        """The same, and cancel a step of it for which its caller no longer waits."""
        self.end(reading)
        if self._step is not None and self._step[0] is reading:
            task = self._step[1]
            if task is not None and not task.cancelling():  # a callback of the group runs to its end
                task.cancel()

    def _is_lent_to_another(self, reading: object) -> bool:
        return self.last is not reading and self._holder is not None and self._holder() is not None


@dataclass(eq=False, slots=True)
class Reading:
    """What the loops over one iterator share."""

    until: Points | None
    is_over: bool = False


class ItemIterator(AsyncIterator[T], Generic[T]):
    """Items until every partition has reached `until`. Continues after an error.

    Each `for` has a copy, so that leaving the loop lets something else read; another loop over the same goes on.
    """

    def __init__(self, core: ConsumerCore, lease: Lease, until: Where | None) -> None:
        """`lease` is the consumer's."""
        self._core = core
        self._lease = lease
        self._reading = Reading(None if until is None else core.parsed_end(until))
        self.items: Iterator[T] = iter(())
        """Taken and not delivered, and empty once something else reads. The caller that takes one delivers it."""

    def __aiter__(self) -> Self:
        own = copy(self)
        self._lease.pass_on(self, own)
        return own

    async def __anext__(self) -> T:
        while await self.fill():
            for item in self.items:
                return item
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End this iterator. What it has not delivered is read next by another one."""
        self._reading.is_over = True
        if self._lease.last is self._reading:
            self._core.put_back()
        self._lease.end(self._reading)

    def abandon(self) -> None:
        """Let another iterator read: nothing waits for the step that is under way, or is about to begin."""
        asyncio.get_running_loop().call_soon(self._lease.abandon, self._reading)

    async def fill(self) -> bool:
        """Have `items` that are to be delivered, waiting for some; False at the end."""
        core, reading, holder = self._core, self._reading, None
        if reading.is_over:
            return False
        core.cluster.home.check()
        if self._lease.is_taken(reading):
            await self._lease.returned(reading)
        self._lease.enter(reading)
        try:
            if self._lease.last is not reading:
                await self._begin()
                self._lease.last = reading
            await asyncio.sleep(0)  # the fetcher, the group and commits go on even if the user awaits nothing else
            if core.keep_up is not None:
                await core.keep_up()
            if not length_hint(self.items):
                reading.is_over = not await self._take()
                self.items = core.items
            holder = None if reading.is_over else self
        finally:
            self._lease.leave(holder)
        return not reading.is_over

    async def _begin(self) -> None:
        """Put `until` in force."""
        await self._core.limit(self._reading.until)

    async def _take(self) -> bool:
        """Have the core's next items. False at the end."""
        while (batch := await self._core.next_batch()) is not None:
            try:
                items, starts = self._items_of(batch)
            except UnreadableBatch:
                next(self._core.items)  # raised once: reading goes on after it
                raise
            if items:
                self._core.split(items, starts)
                return True
        return False

    def _items_of(self, batch: Batch) -> tuple[Sequence[T], Sequence[int]]:
        """Return what is delivered of `batch`, which is not passed if this raises, and where each item begins."""
        raise NotImplementedError


class BatchIterator(ItemIterator[Batch]):
    async def _take(self) -> bool:
        return await self._core.next_batch() is not None


class RecordIterator(ItemIterator[Record]):
    def __init__(self, core: ConsumerCore, lease: Lease, until: Where | None) -> None:
        super().__init__(core, lease, until)
        self._few: Iterator[Record] = iter(())
        """Records that are delivered before the event loop runs again. Their number grows while the user is fast."""
        self._few_count = 1
        self._breathed_at = 0.0

    async def __anext__(self) -> Record:
        for record in self._few:
            return record
        while True:
            if monotonic() - self._breathed_at >= BREATH_INTERVAL_S:
                self._few_count = 1
                is_over = not await self.fill()
                self._breathed_at = monotonic()
            else:
                self._few_count = min(2 * self._few_count, MAX_FEW)
                is_over = not length_hint(self.items) and not await self.fill()
            if is_over:
                raise StopAsyncIteration
            self._few = islice(self.items, self._few_count)
            for record in self._few:
                return record

    def _items_of(self, batch: Batch) -> tuple[Sequence[Record], Sequence[int]]:
        return list(batch), batch.offsets


class ArrowIterator(ItemIterator["pa.RecordBatch"]):
    """Arrow batches of one partition each, of about 1 MiB if that much is here already.

    A large stored batch is delivered in parts.
    """

    def __init__(self, core: ConsumerCore, lease: Lease, until: Where | None, columns: Sequence[str] | None) -> None:
        from warmlog.arrow.reader import KAFKA_COLUMNS, ArrowMerger

        super().__init__(core, lease, until)
        self._merger_of = ArrowMerger
        self._columns = KAFKA_COLUMNS if columns is None else tuple(columns)

    def _items_of(self, batch: Batch) -> "tuple[Sequence[pa.RecordBatch], Sequence[int]]":
        """Convert `batch` and what the same partition has here, until one Arrow batch is full or there is an error.

        The next read raises that. Until then, positions and commits stay before the error.
        """
        reader = self._core.readers[batch.topic, batch.partition]
        merger = self._merger_of(reader.topic, reader.partition, self._columns)
        parts: list[tuple[pa.RecordBatch, int]] = []
        following: Batch | None = batch
        error: WarmlogError | None = None
        try:
            try:
                while following is not None:
                    parts += following.merge_into(merger)
                    following = None if parts else self._core.take(reader)
            finally:
                parts += ((rest, merger.next_offset) for rest in merger.flush())
        except WarmlogError as caught:
            error = caught
        if error is not None:
            if not parts:
                if isinstance(error, UnreadableBatch) and error.next_offset < reader.position:
                    self._core.move(reader, error.next_offset, reader.epoch)
                    self._core.split([batch], [batch.base_offset])  # which ends there now
                raise error
            self._core.move(reader, parts[-1][1], reader.epoch)
        items, ends = zip(*parts, strict=True) if parts else ((), ())
        return items, [batch.base_offset, *ends[:-1]]


class TableIterator(ItemIterator["pa.Table"]):
    """Everything from the positions up to `until` as one table. Its rows are delivered with it."""

    def __init__(self, core: ConsumerCore, lease: Lease, until: Where, columns: Sequence[str] | None) -> None:
        from warmlog.arrow.reader import KAFKA_COLUMNS

        super().__init__(core, lease, until)
        self._columns = KAFKA_COLUMNS if columns is None else tuple(columns)

    async def _begin(self) -> None:
        if self._core.group is not None:
            await self._core.group.turn(waits=True, for_all=True)

    async def _take(self) -> bool:
        """Read the ranges, and move the positions after them.

        What another task gives up meanwhile has no position to move: it is in the table, and must not be committed.
        """
        import pyarrow as pa

        from warmlog.arrow.reader import arrow_schema
        from warmlog.ranges.range_reader import read_all
        from warmlog.ranges.read_settings import Projection

        core = self._core
        core.finish()
        ranges = await self._ranges()
        readers = dict(core.readers)
        core.is_waiting = True
        try:
            batches = await read_all(ranges, Projection(self._columns), self._settings())
        finally:
            core.is_waiting = False
            core.steps += 1
        begun = {}
        for planned in ranges:
            reader = readers[planned.tp]
            if core.readers.get(planned.tp) is reader:
                begun[reader] = reader.position, reader.epoch
                core.move(reader, planned.end, planned.leader_epoch)
            else:
                core.given_up.add(planned.tp)
        core.have_table(pa.Table.from_batches(batches, arrow_schema(self._columns)), begun)
        return True

    def _settings(self) -> "ReadSettings":
        from warmlog.ranges.read_settings import ReadSettings, Remedies

        options, cluster = self._core.options, self._core.cluster
        return ReadSettings(
            max_wait_ms=options.max_wait_ms,
            deadline_s=options.unavailable_timeout_ms / 1000,
            verifies_crc=options.verify_crc,
            isolation=IsolationLevel(options.isolation),
            remedies=Remedies(
                when_lost="seek to a later offset",
                when_cut="seek to where it was cut",
                when_recreated="open a new consumer",
                when_damaged="other offsets can be read: seek past the damaged batch",
            ),
            bootstrap=tuple(str(address) for address in cluster.addresses),
            connection=cluster.options,
        )

    async def _ranges(self) -> list[OffsetRange]:
        core = self._core
        assert self._reading.until is not None
        ends = await core.ends(self._reading.until)
        latest = await list_offsets(core.cluster, dict.fromkeys(ends, LATEST_TIMESTAMP))
        return [
            self._range_of(each, end, latest[each])
            for each, end in ends.items()
            if each in core.readers and end > core.position(each)
        ]

    def _range_of(self, partition: TopicPartition, end: int, latest: OffsetAt) -> OffsetRange:
        link = self._core.cluster.leader(*partition)
        if link is None:
            raise NotLeaderOrFollower(f"{partition[0]}-{partition[1]} has no leader now")
        reader = self._core.readers[partition]
        return OffsetRange(
            *partition,
            reader.position,
            end,
            str(link.address),
            reader.topic_id,
            leader_epoch=latest.leader_epoch if end <= latest.offset else NO_LEADER_EPOCH,
            start_epoch=reader.epoch,
        )
