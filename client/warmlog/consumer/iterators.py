"""The iterators of a consumer, by batch, record or Arrow batch, and reading everything into one table.

They share the consumer's positions, so one may continue where another stopped, also within a batch. The last `until`
given applies to all of them.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

from warmlog.consumer.consumer_core import ConsumerCore
from warmlog.consumer.hand import Hand
from warmlog.consumer.options import ConsumerOptions
from warmlog.errors import NotLeaderOrFollower, UnreadableBatch, WarmlogError
from warmlog.points import Where
from warmlog.ranges.offset_range import OffsetRange
from warmlog.records.batch import Batch, Record
from warmlog_protocol.messages import LATEST_TIMESTAMP, NO_LEADER_EPOCH, IsolationLevel
from warmlog_transport.list_offsets import OffsetAt, list_offsets
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

BREATH_INTERVAL_S = 0.05
"""How long records of one batch are delivered before the event loop runs, if the user awaits nothing else."""
MAX_FEW = 128
"""How many of them, at most, are delivered without a look at the clock."""


class _Limited:
    """What begins by putting `until` in force."""

    def __init__(self, core: ConsumerCore, until: Where | None) -> None:
        self._core = core
        self._until = None if until is None else core.parsed_end(until)
        self._has_begun = False

    async def _begin(self) -> None:
        await self._core.limit(self._until)
        self._has_begun = True


class BatchIterator(_Limited, AsyncIterator[Batch]):
    """Batches until every partition has reached its end. Continues after an error."""

    async def __anext__(self) -> Batch:
        if not self._has_begun:
            await self._begin()
        batch = await self._core.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch

    def give_back(self, last: Batch) -> None:
        """Deliver the last batch again: it has not reached the user."""
        self._core.give_back((last.topic, last.partition), last.base_offset)


class RecordIterator(_Limited, AsyncIterator[Record]):
    """Records until every partition has reached its end. Continues after an error."""

    def __init__(self, core: ConsumerCore, until: Where | None) -> None:
        super().__init__(core, until)
        self._few: Iterator[Record] = iter(())
        """Records that are delivered before the event loop runs again: more, the quicker the user handles them."""
        self._few_count = 1
        self._breathed_at = 0.0

    async def __anext__(self) -> Record:
        for record in self._few:
            return record
        if not self._has_begun:
            await self._begin()
        while True:
            await self._breathe_in_time()
            self._few = islice(self._core.records, self._few_count)
            for record in self._few:
                return record
            if not await self._core.next_records():
                raise StopAsyncIteration

    async def _breathe_in_time(self) -> None:
        now = monotonic()
        if now - self._breathed_at < BREATH_INTERVAL_S:
            self._few_count = min(2 * self._few_count, MAX_FEW)
            return
        self._few_count = 1
        await self._core.breathe()
        self._breathed_at = monotonic()

    def give_back(self, last: Record) -> None:
        """Deliver the last record again: it has not reached the user."""
        self._core.give_back((last.topic, last.partition), last.offset)


class ArrowIterator(AsyncIterator["pa.RecordBatch"]):
    """Arrow batches of one partition each, of about 1 MiB if that much is here already. Continues after an error.

    A large stored batch is delivered in parts. Another iterator that reads before the last one continues there.
    """

    def __init__(self, core: ConsumerCore, until: Where | None, columns: Sequence[str] | None) -> None:
        from warmlog.arrow.reader import KAFKA_COLUMNS, ArrowMerger

        self._merger_of = ArrowMerger
        self._columns = KAFKA_COLUMNS if columns is None else tuple(columns)
        self._core = core
        self._batches = BatchIterator(core, until)
        self._hand: Hand[pa.RecordBatch] | None = None

    async def __anext__(self) -> "pa.RecordBatch":
        await self._core.breathe()
        for batch in self._hand.items if self._hand else ():
            return batch
        return next((await self._fill()).items)

    def give_back(self, _: "pa.RecordBatch") -> None:
        """Deliver the last batch again, and what followed it: it has not reached the user."""
        assert self._hand is not None
        self._core.give_back(self._hand.reader.tp, self._hand.last_offset)

    async def _fill(self) -> "Hand[pa.RecordBatch]":
        """Take at least one Arrow batch in hand."""
        while True:
            first = await anext(self._batches)
            try:
                parts = self._merge(first)
            except UnreadableBatch:
                raise
            except BaseException:  # such as a timestamp that Arrow cannot hold: other columns can still be read
                self._core.give_back((first.topic, first.partition), first.base_offset)
                raise
            if parts:
                batches, ends = zip(*parts, strict=True)
                self._hand = self._core.take_in_hand(first, batches, [first.base_offset, *ends[:-1]])
                return self._hand

    def _merge(self, first: Batch) -> "list[tuple[pa.RecordBatch, int]]":
        """Convert `first` and what the same partition has here, until one Arrow batch is full or there is an error.

        The next read raises that. Until then, positions and commits stay before the error.
        Returns Arrow batches, each with the offset after it.
        """
        reader = self._core.readers[first.topic, first.partition]
        merger = self._merger_of(reader.topic, reader.partition, self._columns)
        parts: list[tuple[pa.RecordBatch, int]] = []
        batch: Batch | None = first
        error: WarmlogError | None = None
        try:
            while batch is not None:
                parts += batch.merge_into(merger)
                batch = None if parts else self._core.take(reader)
        except WarmlogError as caught:
            error = caught
        parts += ((rest, merger.next_offset) for rest in merger.flush())
        if error is not None:
            if not parts:
                raise error
            reader.seek(parts[-1][1], reader.epoch)
        return parts


async def read_table(
    core: ConsumerCore,
    until: Where,
    columns: Sequence[str] | None,
    options: ConsumerOptions,
    connection: ConnectionOptions,
) -> "pa.Table":
    """Return everything from the positions up to `until` as one table, and move the positions after it.

    Nothing else may be delivered meanwhile: `core.table` has to be held.
    A partition that another task gives up meanwhile has no position to move: what was read of it is in the table, and
    must not be committed.
    """
    import pyarrow as pa

    from warmlog.arrow.reader import KAFKA_COLUMNS, arrow_schema
    from warmlog.ranges.range_reader import read_all
    from warmlog.ranges.read_settings import Projection, ReadSettings, Remedies

    core.put_back()
    readers = dict(core.readers)

    def is_read(partition: TopicPartition) -> bool:
        return core.readers.get(partition) is readers[partition]

    ends = await core.ends(core.parsed_end(until))
    wanted = {each: end for each, end in ends.items() if is_read(each) and end > core.position(each)}
    latest = await list_offsets(core.cluster, dict.fromkeys(wanted, LATEST_TIMESTAMP))
    ranges = [_range_of(core, each, end, latest[each]) for each, end in wanted.items() if is_read(each)]
    names = KAFKA_COLUMNS if columns is None else tuple(columns)
    settings = ReadSettings(
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
        bootstrap=tuple(str(address) for address in core.cluster.addresses),
        connection=connection,
    )
    core.steps += 1
    core.is_waiting = True
    try:
        batches = await read_all(ranges, Projection(names), settings)
    finally:
        core.is_waiting = False
        core.steps += 1
    core.given_up.update(planned.tp for planned in ranges if not is_read(planned.tp))
    ranges = [planned for planned in ranges if is_read(planned.tp)]
    begun = {planned.tp: core.delivered(planned.tp) for planned in ranges}
    for planned in ranges:
        core.seek_now(planned.tp, planned.end, planned.leader_epoch)
    core.hold(begun)
    return pa.Table.from_batches(batches, arrow_schema(names))


def _range_of(core: ConsumerCore, partition: TopicPartition, end: int, latest: OffsetAt) -> OffsetRange:
    link = core.cluster.leader(*partition)
    if link is None:
        raise NotLeaderOrFollower(f"{partition[0]}-{partition[1]} has no leader now")
    reader = core.readers[partition]
    return OffsetRange(
        *partition,
        core.position(partition),
        end,
        str(link.address),
        reader.topic_id,
        leader_epoch=latest.leader_epoch if end <= latest.offset else NO_LEADER_EPOCH,
        start_epoch=reader.epoch,
    )
