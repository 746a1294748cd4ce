"""Record batches as Arrow: columns wrapped or filled by numpy, without a Python object for each record.

The columns are those of Spark's Kafka connector, in the requested order:

=============  ===============================  ========================================================================
key, value     binary (int32 offsets)           nulls kept; the data buffer is the batch's own if a single uncompressed
                                                batch makes the Arrow batch, else it is copied once; string on request,
                                                with U+FFFD for invalid UTF-8
topic          string                           the same for all records: built once, then sliced
partition      int32                            the same
offset         int64
timestamp      timestamp[us, tz=UTC]            with LogAppendTime the time of appending for all
timestampType  int32                            0 the producer's time, 1 the time of appending
headers        list<struct<key: string, value:  null if a record has none; copied
               binary>>
=============  ===============================  ========================================================================

Spark takes these types and this layout without conversion: nothing is dictionary-encoded, every field is nullable.

This module needs numpy and pyarrow (the extra `arrow`); `import warmlog` does not load it.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from warmlog.errors import CorruptBatch, UnreadableBatch
from warmlog.extras import install_hint

try:
    import numpy as np
    import pyarrow as pa
except ImportError as error:  # pragma: no cover - the test environment has both
    raise ImportError(f"{error}; Arrow needs numpy and pyarrow: {install_hint('arrow')}") from error

from warmlog.arrow.columns import (
    MAX_OFFSET,
    TIMESTAMP_TYPE,
    BatchPart,
    binary_array,
    offsets_array,
    part_of,
    repeated_string,
    text_array,
    times_ms,
    timestamp_types_array,
    timestamps_array,
)
from warmlog.arrow.headers import HEADERS_TYPE, headers_array
from warmlog_protocol.batch import MAGIC_COLUMNS, BatchHeader, RecordBatch
from warmlog_protocol.errors import InvalidConfig

COLUMN_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIMESTAMP_TYPE,
    "timestampType": pa.int32(),
    "headers": HEADERS_TYPE,
}
"""Every column and its type, Kafka's seven first."""
KAFKA_COLUMNS = tuple(name for name in COLUMN_TYPES if name != "headers")

MERGE_BYTES = 1024 * 1024
"""An Arrow batch of this size is complete: Spark is equally fast from about 2,000 records a batch."""
MAX_BYTES = 4 * 1024 * 1024
"""A larger stored batch is split."""
MAX_ROWS = 128 * 1024
"""So is one with more records, which may have no bytes."""

_ROW_BYTES = 16  # what a record weighs beside its key and value: an offset and a timestamp


def arrow_schema(columns: Sequence[str] = KAFKA_COLUMNS, as_text: Collection[str] = ()) -> pa.Schema:
    """Return the schema of these columns; those in `as_text`, key or value, are strings. Raises InvalidConfig."""
    if unknown := [name for name in columns if name not in COLUMN_TYPES]:
        raise InvalidConfig(f"there is no column {unknown[0]}: choose among {', '.join(COLUMN_TYPES)}")
    if unread := [name for name in as_text if name not in columns]:
        raise InvalidConfig(f"as_text has {unread[0]!r}, which is no column that is read; as in as_text=['value']")
    return pa.schema([(name, pa.string() if name in as_text else COLUMN_TYPES[name]) for name in columns])


def columns_to_arrow(
    batch: RecordBatch,
    *,
    topic: str,
    partition: int,
    columns: Sequence[str] = KAFKA_COLUMNS,
    from_offset: int = 0,
    until_offset: int = MAX_OFFSET,
) -> pa.RecordBatch:
    """Return the records of `batch` with offsets in `[from_offset, until_offset)`; none of a control batch.

    Raises CorruptBatch for a damaged body, InvalidTimestamp for a time beyond 64 bits of microseconds, and
    MessageTooLarge for 2 GiB or more in one column.
    """
    part = part_of(batch, from_offset, until_offset)
    return _Builder(topic, partition, columns).build([] if part is None else [part])


class TimeBounds(NamedTuple):
    """Milliseconds since 1970 in `[from_ms, until_ms)`; None leaves a side open.

    Whole batches are left out or taken by their header if that is enough. The largest timestamp of a batch is in its
    header. The smallest is the base timestamp of a batch in columns; with LogAppendTime all records have the largest.
    The header of a batch in rows, which Kafka wrote, does not have the smallest: it can be left out only for being too
    old.
    """

    from_ms: int | None = None
    until_ms: int | None = None

    def exclude(self, header: BatchHeader) -> bool:
        """Whether no record of the batch can be within the bounds."""
        if self.from_ms is not None and header.max_timestamp_ms < self.from_ms:
            return True
        smallest_ms = _smallest_ms(header)
        return self.until_ms is not None and smallest_ms is not None and smallest_ms >= self.until_ms

    def include(self, header: BatchHeader) -> bool:
        """Whether every record of the batch is within the bounds."""
        if self.until_ms is not None and header.max_timestamp_ms >= self.until_ms:
            return False
        smallest_ms = _smallest_ms(header)
        return self.from_ms is None or (smallest_ms is not None and smallest_ms >= self.from_ms)

    def mask(self, times_ms: Any) -> Any:
        """Which of these times, a numpy array, are within."""
        is_within = times_ms == times_ms
        if self.from_ms is not None:
            is_within &= times_ms >= self.from_ms
        if self.until_ms is not None:
            is_within &= times_ms < self.until_ms
        return is_within


ALL_TIMES = TimeBounds()


def _smallest_ms(header: BatchHeader) -> int | None:
    if header.is_log_append_time:
        return header.max_timestamp_ms
    return header.base_timestamp_ms if header.magic == MAGIC_COLUMNS else None


class ArrowMerger:
    """Merges the stored batches of one partition into Arrow batches of 1 to 4 MiB, in the same order.

    Leaves out records whose timestamp is not within `times`.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        columns: Sequence[str] = KAFKA_COLUMNS,
        *,
        as_text: Collection[str] = (),
        times: TimeBounds = ALL_TIMES,
    ) -> None:
        self._tp = topic, partition
        self._builder = _Builder(topic, partition, columns, as_text)
        self._times = None if times == ALL_TIMES else times
        self.next_offset = -1
        """One above the last offset of what was yielded; -1 before."""
        self._pending: list[BatchPart] = []
        self._rows = 0
        self._bytes = 0
        self._is_on_border = False  # of the times: some pending records may be outside

    def add(self, batch: RecordBatch, from_offset: int = 0, until_offset: int = MAX_OFFSET) -> Iterator[pa.RecordBatch]:
        """Add the records of `batch` in `[from_offset, until_offset)` and yield what is complete.

        Raises as above, but UnreadableBatch in place of CorruptBatch: for this batch, which is not added; or for an
        earlier one, whose record headers are decoded only now, and then what follows that one is dropped.
        """
        if self._times is not None and self._times.exclude(batch.header):
            return
        try:
            whole = part_of(batch, from_offset, until_offset)
        except CorruptBatch as error:
            first_offset = max(from_offset, batch.base_offset)
            raise UnreadableBatch(str(error), *self._tp, first_offset, batch.next_offset) from error
        for part in _cut(whole) if whole is not None else ():
            size_bytes = self._builder.weigh(part)
            if self._bytes + size_bytes > MAX_BYTES or self._rows + part.count > MAX_ROWS:
                yield from self.flush()
            self._pending.append(part)
            self._rows += part.count
            self._bytes += size_bytes
            if self._times is not None and not self._times.include(batch.header):
                self._is_on_border = True
            if self._bytes >= MERGE_BYTES:
                yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yield the rest, if there is any. Raises as `add`."""
        if not self._pending:
            return
        pending, self._pending, self._rows, self._bytes = self._pending, [], 0, 0
        is_on_border, self._is_on_border = self._is_on_border, False
        yield from self._built(pending, is_on_border=is_on_border)

    def _built(self, parts: list[BatchPart], *, is_on_border: bool) -> Iterator[pa.RecordBatch]:
        """Yield `parts` as one Arrow batch. If one of them is malformed, yield those before it, and raise."""
        try:
            built = self._builder.build(parts)
        except CorruptBatch as error:
            if len(parts) == 1:
                first_offset, next_offset = parts[0].offset_of(parts[0].start), parts[0].next_offset
                raise UnreadableBatch(str(error), *self._tp, first_offset, next_offset) from error
            for part in parts:
                yield from self._built([part], is_on_border=is_on_border)
            return
        if is_on_border:
            assert self._times is not None
            built = built.filter(pa.array(self._times.mask(times_ms(parts))))
        self.next_offset = parts[-1].next_offset
        if built.num_rows:
            yield built


def _cut(part: BatchPart) -> Iterator[BatchPart]:
    """Split `part` into about MAX_BYTES each, by the average size of its records, and at most MAX_ROWS."""
    size_bytes = len(part.keys) + len(part.values) + len(part.headers) + part.count * _ROW_BYTES
    rows = min(MAX_ROWS, max(1, part.count * MAX_BYTES // size_bytes))
    if rows >= part.count:
        yield part
        return
    for start in range(part.start, part.stop, rows):
        yield BatchPart(part.columns, part.base_offset, part.timestamp_type, start, min(start + rows, part.stop))


class _Builder:
    """Makes Arrow batches of one partition with the requested columns."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str], as_text: Collection[str] = ()) -> None:
        self._topic = topic.encode()
        self._partition = partition
        self._schema = arrow_schema(columns, as_text)
        self._as_text = frozenset(as_text)
        self._names = tuple(columns)
        self._constants: dict[bytes | int, pa.Array] = {}

    def weigh(self, part: BatchPart) -> int:
        """Estimate how many bytes `part` adds to an Arrow batch."""
        size_bytes = part.count * _ROW_BYTES
        size_bytes += len(part.keys) if "key" in self._names else 0
        size_bytes += len(part.values) if "value" in self._names else 0
        return size_bytes + (len(part.headers) if "headers" in self._names else 0)

    def build(self, parts: Sequence[BatchPart]) -> pa.RecordBatch:
        count = sum(part.count for part in parts)
        arrays = []
        for name in self._names:
            array = self._column(name, parts, count)
            arrays.append(text_array(array) if name in self._as_text else array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, parts: Sequence[BatchPart], count: int) -> pa.Array:
        match name:
            case "key":
                lengths = [part.columns.key_lengths for part in parts]
                return binary_array(parts, lengths, [part.keys for part in parts])
            case "value":
                lengths = [part.columns.value_lengths for part in parts]
                return binary_array(parts, lengths, [part.values for part in parts])
            case "offset":
                return offsets_array(parts)
            case "timestamp":
                return timestamps_array(parts)
            case "timestampType":
                types = {part.timestamp_type for part in parts}
                return self._constant(types.pop(), count) if len(types) == 1 else timestamp_types_array(parts)
            case "headers":
                return headers_array(parts)
            case "partition":
                return self._constant(self._partition, count)
        return self._constant(self._topic, count)

    def _constant(self, item: bytes | int, count: int) -> pa.Array:
        """A text or an integer `count` times: a slice of the longest such array so far."""
        longest = self._constants.get(item)
        if longest is None or len(longest) < count:
            longest = (
                repeated_string(item, count) if isinstance(item, bytes) else pa.array(np.full(count, item, np.int32))
            )
            self._constants[item] = longest
        return longest[:count]
