"""Which partition each row of Arrow columns goes to, and where one batch ends and the next begins: no I/O.

A row goes to the partition that it names, or else to that of its key (see `partitioner`). Rows without a key, or with
an empty one, stick to one partition until its batch is full, and then to the next. A partition's rows keep their order.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from warmlog.arrow_encoding import ArrowRows, is_empty_or_null, offsets_and_data
from warmlog.errors import MessageTooLarge, UnknownTopicOrPartition
from warmlog.key_hash import crc32_of_keys
from warmlog.record_input import BATCH_OVERHEAD_BYTES

Array = Any
"""A numpy array; numpy's own types say little more here."""

HOLD_BYTES = 64 * 1024 * 1024
"""A row keeps the Arrow batch that it came with in memory: after so much, batches end that are not full."""


class BatchOfRows(NamedTuple):
    """The rows of one batch, and how many bytes they take at most."""

    partition: int
    parts: Sequence[ArrowRows]
    size_bytes: int


class _Filling:
    """A batch that takes rows."""

    __slots__ = ("parts", "size_bytes")

    def __init__(self) -> None:
        self.parts: list[ArrowRows] = []
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
        sizes = rows.sizes_bytes()
        self._check_sizes(sizes)
        numbers = self._partition_of_each(rows, chosen)
        self._held_bytes += int(sizes.sum())
        if numbers is None:
            yield from self._stick(rows, sizes)
        else:
            yield from self._distribute(rows, sizes, numbers)
        if self._held_bytes >= HOLD_BYTES:
            yield from self.flush()

    def flush(self) -> Iterator[BatchOfRows]:
        """Yields all batches that have rows."""
        self._held_bytes = 0
        for partition in sorted(self._filling):
            yield self._seal(partition)

    def _check_sizes(self, sizes: Array) -> None:
        largest = int(sizes.max(initial=0)) + BATCH_OVERHEAD_BYTES
        if largest > self._max_message_bytes:
            raise MessageTooLarge(
                f"a record for topic {self._topic}: {largest} bytes with its batch, larger than "
                f"max.message.bytes={self._max_message_bytes}"
            )

    def _partition_of_each(self, rows: ArrowRows, chosen: pa.Array | None) -> Array | None:
        """The partition of each row, `partitions` for those that stick; None when all stick."""
        numbers = None
        if rows.keys is not None and rows.keys.null_count < len(rows):
            has_no_key = is_empty_or_null(rows.keys)
            offsets, data = offsets_and_data(rows.keys)
            numbers = (crc32_of_keys(offsets, data) % np.uint32(self._partitions)).astype(np.int64)
            numbers[has_no_key] = self._partitions
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
        return numbers

    def _distribute(self, rows: ArrowRows, sizes: Array, numbers: Array) -> Iterator[BatchOfRows]:
        counts = np.bincount(numbers, minlength=self._partitions + 1)
        places = np.flatnonzero(counts).tolist()
        if len(places) > 1:
            # 16 bits are sorted by radix, in a tenth of the time
            order = np.argsort(numbers.astype(np.uint16) if self._partitions < 1 << 16 else numbers, kind="stable")
            rows, sizes = rows.take(order), sizes[order]
        start = 0
        for place in places:
            stop = start + int(counts[place])
            part, part_sizes = rows.slice(start, stop), sizes[start:stop]
            start = stop
            if place == self._partitions:
                yield from self._stick(part, part_sizes)
            else:
                while (taken := self._fill(place, part, part_sizes)) < len(part):
                    yield self._seal(place)
                    part, part_sizes = part.slice(taken, len(part)), part_sizes[taken:]

    def _stick(self, rows: ArrowRows, sizes: Array) -> Iterator[BatchOfRows]:
        while (taken := self._fill(self._sticky, rows, sizes)) < len(rows):
            yield self._seal(self._sticky)
            self._sticky = (self._sticky + 1) % self._partitions
            rows, sizes = rows.slice(taken, len(rows)), sizes[taken:]

    def _fill(self, partition: int, rows: ArrowRows, sizes: Array) -> int:
        """Put the first of `rows` into the partition's batch: how many fit. At least one into an empty batch."""
        if not len(rows):
            return 0
        filling = self._filling.get(partition)
        if filling is None:
            filling = self._filling[partition] = _Filling()
        ends = np.cumsum(sizes)
        fits = int(np.searchsorted(ends, self._limit_bytes - filling.size_bytes, side="right"))
        if fits == 0 and not filling.parts:
            fits = 1
        if fits:
            filling.parts.append(rows.slice(0, fits) if fits < len(rows) else rows)
            filling.size_bytes += int(ends[fits - 1])
        return fits

    def _seal(self, partition: int) -> BatchOfRows:
        filling = self._filling.pop(partition)
        return BatchOfRows(partition, filling.parts, filling.size_bytes)
