"""Which partition each row of Arrow columns goes to, and where one batch ends and the next begins: no I/O.

A row goes to the partition that it names, or else to that of its key (see `partitioner`). Rows without a key, or with
an empty one, stick to one partition until its batch is full, and then to the next. A partition's rows keep their order,
whatever chose it: where some rows stick and others do not, those that stick are given their partitions first, by what
there is room for in batches, and then all are sorted by partition.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from warmlog.arrow_write.key_hash import crc32_of_keys
from warmlog.arrow_write.rows import Array, ArrowRows, BytesColumn, PreparedRows, RowSpan
from warmlog.errors import MessageTooLarge, UnknownTopicOrPartition
from warmlog.producer.record_input import BATCH_OVERHEAD_BYTES

HOLD_BYTES = 64 * 1024 * 1024
"""A row keeps the Arrow batch that it came with in memory: after so much, batches end that are not full."""


class BatchOfRows(NamedTuple):
    """The rows of one batch, and how many bytes they take at most."""

    partition: int
    spans: Sequence[RowSpan]
    size_bytes: int


class _Filling:
    """A batch that takes rows."""

    __slots__ = ("size_bytes", "spans")

    def __init__(self) -> None:
        self.spans: list[RowSpan] = []
        self.size_bytes = BATCH_OVERHEAD_BYTES


class TopicBatches:
    """Rows of one topic in, batches of at most `limit_bytes` out, but for single records that are larger."""

    def __init__(
        self, topic: str, partitions: int, *, limit_bytes: int, max_message_bytes: int, first_sticky: int
    ) -> None:
        """`first_sticky` is best chosen at random: otherwise all writers march in step."""
        self._topic = topic
        self._partitions = partitions
        self._limit_bytes = min(limit_bytes, max_message_bytes)
        self._max_message_bytes = max_message_bytes
        self._sticky = first_sticky % partitions
        self._filling: dict[int, _Filling] = {}
        self._held_bytes = 0

    def add(self, rows: ArrowRows, chosen: pa.Array | None = None) -> Iterator[BatchOfRows]:
        """Take in `rows`; `chosen` has the partition of each, null where its key decides. Yields what is full.

        MessageTooLarge for a record that no batch can hold, UnknownTopicOrPartition for one with a partition that the
        topic does not have: before any of `rows` is taken.
        """
        numbers = self._partition_of_each(rows, chosen)
        counts = None
        if numbers is not None:
            self._place_sticky(rows, numbers)
            counts = np.bincount(numbers)
            rows = self._sorted(rows, numbers) if np.count_nonzero(counts) > 1 else rows
        prepared = PreparedRows(rows)
        self._check_sizes(prepared)
        self._held_bytes += int(prepared.ends_bytes[-1])
        if counts is None:
            yield from self._stick(prepared.span())
        else:
            yield from self._distribute(prepared, counts)
        if self._held_bytes >= HOLD_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[BatchOfRows]:
        """Yields all batches that have rows."""
        self._held_bytes = 0
        for partition in sorted(self._filling):
            yield self._seal(partition)

    def _sorted(self, rows: ArrowRows, numbers: Array) -> ArrowRows:
        """Rows of one partition after another. 16 bits are sorted by radix, in a tenth of the time."""
        narrow = numbers.astype(np.uint16) if self._partitions < 1 << 16 else numbers
        return rows.take(np.argsort(narrow, kind="stable"))

    def _check_sizes(self, rows: PreparedRows) -> None:
        largest = rows.largest_bytes + BATCH_OVERHEAD_BYTES
        if largest > self._max_message_bytes:
            raise MessageTooLarge(
                f"a record for topic {self._topic}: {largest} bytes with its batch, larger than "
                f"max.message.bytes={self._max_message_bytes}"
            )

    def _partition_of_each(self, rows: ArrowRows, chosen: pa.Array | None) -> Array | None:
        """The partition of each row, `partitions` for those that stick; None when all stick, or have no choice."""
        numbers = None
        if self._partitions > 1 and rows.keys is not None and rows.keys.null_count < len(rows):
            keys = BytesColumn.of(rows.keys)
            numbers = (crc32_of_keys(keys.offsets, keys.content) % np.uint32(self._partitions)).astype(np.int64)
            numbers[keys.is_empty_or_null] = self._partitions
        if chosen is not None and chosen.null_count < len(chosen):
            wanted = chosen.cast(pa.int64()).fill_null(-1).to_numpy()
            is_chosen = chosen.is_valid().to_numpy(zero_copy_only=False)
            beyond = wanted[is_chosen & ((wanted < 0) | (wanted >= self._partitions))]
            if len(beyond):
                raise UnknownTopicOrPartition(
                    f"topic {self._topic} has partitions 0 to {self._partitions - 1}, not {beyond[0]}"
                )
            stuck = np.full(len(rows), self._partitions, np.int64) if numbers is None else numbers
            numbers = np.where(is_chosen, wanted, stuck)
        return None if self._partitions == 1 or numbers is None or numbers.min() == self._partitions else numbers

    def _place_sticky(self, rows: ArrowRows, numbers: Array) -> None:
        """Gives the rows that stick, of those with these `numbers`, a partition: the next one after each full batch."""
        stuck = np.flatnonzero(numbers == self._partitions)
        if not len(stuck):
            return
        sizes = np.diff(PreparedRows(ArrowRows(rows.values, headers=rows.headers)).ends_bytes)[stuck]
        filling = self._filling.get(self._sticky) or _Filling()
        full_bytes = max(1, self._limit_bytes - BATCH_OVERHEAD_BYTES)
        beyond = np.maximum(np.cumsum(sizes) - (self._limit_bytes - filling.size_bytes), 0)
        numbers[stuck] = (self._sticky + (beyond + full_bytes - 1) // full_bytes) % self._partitions
        self._sticky = int(numbers[stuck[-1]])

    def _distribute(self, rows: PreparedRows, counts: Array) -> Iterator[BatchOfRows]:
        """`rows` lie in the order of their partitions, of which each has so many."""
        start = 0
        for partition in np.flatnonzero(counts).tolist():
            span = rows.span(start, start + int(counts[partition]))
            start = span.stop
            while (span := self._fill(partition, span)).count:
                yield self._seal(partition)

    def _stick(self, span: RowSpan) -> Iterator[BatchOfRows]:
        while (span := self._fill(self._sticky, span)).count:
            yield self._seal(self._sticky)
            self._sticky = (self._sticky + 1) % self._partitions

    def _fill(self, partition: int, span: RowSpan) -> RowSpan:
        """Put the first rows of `span` into the partition's batch, at least one into an empty one: those left over."""
        if not span.count:
            return span
        rows, start, stop = span.rows, span.start, span.stop
        filling = self._filling.get(partition)
        if filling is None:
            filling = self._filling[partition] = _Filling()
        ends = rows.ends_bytes
        before_bytes = ends.item(start)
        room_end = before_bytes + self._limit_bytes - filling.size_bytes
        if ends.item(stop) > room_end:
            stop = int(np.searchsorted(ends[: stop + 1], room_end, side="right")) - 1
            if stop <= start:
                if filling.spans:
                    return span
                stop = start + 1
        filling.spans.append(RowSpan(rows, start, stop))
        filling.size_bytes += ends.item(stop) - before_bytes
        return RowSpan(rows, stop, span.stop)

    def _seal(self, partition: int) -> BatchOfRows:
        filling = self._filling.pop(partition)
        return BatchOfRows(partition, filling.spans, filling.size_bytes)
