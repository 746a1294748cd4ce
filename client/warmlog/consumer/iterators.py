"""The iterators of a consumer: by batch, by record, by Arrow batch; and reading all at once.

They share the consumer's positions, so one may go on where another was left, also in the middle of a batch. The end
that was asked for last counts for all of them.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from threading import Event
from typing import TYPE_CHECKING

from warmlog.cluster.list_offsets import OffsetAt, TopicPartition, list_offsets
from warmlog.cluster.options import ConnectionOptions
from warmlog.consumer.consumer_core import Subscription
from warmlog.consumer.options import ConsumerOptions
from warmlog.consumer.positions import Points
from warmlog.errors import NotLeaderOrFollower, WarmlogError
from warmlog.ranges.offset_range import OffsetRange
from warmlog.records.batch import Batch, Record
from warmlog_protocol.messages import LATEST_TIMESTAMP, NO_LEADER_EPOCH, IsolationLevel

if TYPE_CHECKING:
    import pyarrow as pa


class BatchIterator(AsyncIterator[Batch]):
    """Batches until every partition has reached its end. Goes on after an error."""

    def __init__(self, subscription: Subscription, until: Points | None) -> None:
        self._subscription = subscription
        self._until = until
        self._has_begun = False

    async def begin(self) -> None:
        """Fix where the iteration ends, when its first item is asked for."""
        if not self._has_begun:
            await self._subscription.limit(self._until)
            self._has_begun = True

    async def __anext__(self) -> Batch:
        if not self._has_begun:
            await self.begin()
        batch = await self._subscription.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


class RecordIterator(AsyncIterator[Record]):
    """Records until every partition has reached its end. Goes on after an error."""

    def __init__(self, subscription: Subscription, until: Points | None) -> None:
        self._subscription = subscription
        self._batches = BatchIterator(subscription, until)
        self._has_begun = False

    async def __anext__(self) -> Record:
        if self._has_begun:
            for record in self._subscription.hand:
                return record
        return await self._next_in_next_batch()

    async def _next_in_next_batch(self) -> Record:
        await self._batches.begin()
        self._has_begun = True
        while await self._subscription.next_hand():
            for record in self._subscription.hand:
                return record
        raise StopAsyncIteration


class ArrowIterator(AsyncIterator["pa.RecordBatch"]):
    """Arrow batches of one partition each, of some 1 MiB where so much is here already. Goes on after an error.

    A stored batch that had to be cut because of its size comes whole from the same iterator, or not at all.
    """

    def __init__(self, subscription: Subscription, until: Points | None, columns: Sequence[str] | None) -> None:
        from warmlog.arrow.reader import KAFKA_COLUMNS, ArrowMerger

        self._merger_of = ArrowMerger
        self._columns = KAFKA_COLUMNS if columns is None else tuple(columns)
        self._subscription = subscription
        self._batches = BatchIterator(subscription, until)
        self._made: deque[pa.RecordBatch] = deque()
        self._error: WarmlogError | None = None

    async def __anext__(self) -> "pa.RecordBatch":
        while not self._made:
            error, self._error = self._error, None
            if error is not None:
                raise error
            self._merge(await anext(self._batches))
        return self._made.popleft()

    def _merge(self, first: Batch) -> None:
        """Make Arrow of `first` and of what the same partition has here, until one Arrow batch is full."""
        reader = self._subscription.readers[first.topic, first.partition]
        merger = self._merger_of(reader.topic, reader.partition, self._columns)
        batch: Batch | None = first
        try:
            while batch is not None:
                self._made += batch.merge_into(merger)
                batch = None if self._made else self._subscription.take(reader)
        except WarmlogError as error:
            self._error = error
        self._made += merger.flush()


async def read_table(
    subscription: Subscription,
    until: Points,
    columns: Sequence[str] | None,
    options: ConsumerOptions,
    connection: ConnectionOptions,
) -> "pa.Table":
    """Everything from the positions up to `until` as one table; moves the positions behind it."""
    import pyarrow as pa

    from warmlog.arrow.reader import KAFKA_COLUMNS, arrow_schema
    from warmlog.ranges.range_reader import read_ranges
    from warmlog.ranges.read_settings import Projection, ReadSettings, Remedies

    ends = await subscription.ends(until)
    wanted = {place: end for place, end in ends.items() if end > subscription.position(place)}
    latest = await list_offsets(subscription.cluster, dict.fromkeys(wanted, LATEST_TIMESTAMP))
    ranges = [_range_of(subscription, place, end, latest[place]) for place, end in wanted.items()]
    names = KAFKA_COLUMNS if columns is None else tuple(columns)
    settings = ReadSettings(
        max_wait_ms=options.max_wait_ms,
        deadline_s=options.unavailable_timeout_ms / 1000,
        verifies_crc=options.verify_crc,
        isolation=IsolationLevel(options.isolation),
        remedies=Remedies(
            when_lost="seek to a later offset",
            when_cut="seek to where it was cut",
            when_made_anew="open a new consumer",
            when_damaged="other offsets can be read: seek behind the damaged batch",
        ),
        connection=connection,
    )
    is_over = Event()
    try:
        batches = await asyncio.to_thread(lambda: list(read_ranges(ranges, Projection(names), settings, is_over)))
    finally:
        is_over.set()  # a thread cannot be cancelled, and the end of the loop waits for it
    for planned in ranges:
        subscription.seek_now(planned.place, planned.end, planned.leader_epoch)
    return pa.Table.from_batches(batches, arrow_schema(names))


def _range_of(subscription: Subscription, place: TopicPartition, end: int, latest: OffsetAt) -> OffsetRange:
    link = subscription.cluster.leader(*place)
    if link is None:
        raise NotLeaderOrFollower(f"{place[0]}-{place[1]} has no leader now")
    return OffsetRange(
        *place,
        subscription.position(place),
        end,
        str(link.address),
        subscription.readers[place].topic_id,
        leader_epoch=latest.leader_epoch if end <= latest.offset else NO_LEADER_EPOCH,
        start_epoch=subscription.epoch(place),
    )
