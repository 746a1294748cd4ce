"""Record batches as Arrow: columns wrapped or filled by numpy, with no Python object for each record.

What comes out are the columns of Spark's Kafka connector, whichever are asked for, in the order asked for:

=============  ===============================  ========================================================================
key, value     binary (int32 offsets)           nulls kept; the data buffer is the batch's own where one batch alone
                                                makes the Arrow batch and is not compressed, else it is copied once;
                                                string, of the same buffers, when asked for: what is no UTF-8 is
                                                replaced by U+FFFD
topic          string                           the same for all records: built once, then sliced
partition      int32                            the same
offset         int64
timestamp      timestamp[us, tz=UTC]            with LogAppendTime the time of appending for all
timestampType  int32                            0 the producer's time, 1 the time of appending
headers        list<struct<key: string, value:  null where a record has none; copied
               binary>>
=============  ===============================  ========================================================================

Types and layout are those that Spark takes without conversion: nothing is dictionary-encoded, every field is nullable.

This module needs numpy and pyarrow (`pip install 'warmlog[arrow]'`); nothing that `import warmlog` loads imports it.
"""

from collections.abc import Collection, Iterator, Sequence

try:
    import numpy  # noqa: F401 - of the modules below
    import pyarrow as pa
except ImportError as error:  # pragma: no cover - the test environment has both
    raise ImportError(f"{error}; Arrow needs numpy and pyarrow: pip install 'warmlog[arrow]'") from error

from warmlog.arrow.columns import (
    MAX_OFFSET,
    TIMESTAMP_TYPE,
    Stretch,
    binary_array,
    offsets_array,
    repeated_int32,
    repeated_string,
    stretch_of,
    text_array,
    times_ms,
    timestamp_types_array,
    timestamps_array,
)
from warmlog.arrow.headers import HEADERS_TYPE, headers_array
from warmlog.arrow.time_bounds import ALL_TIMES, TimeBounds
from warmlog_protocol.batch import RecordBatch
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
"""An Arrow batch is done when it has so many bytes: Spark is equally fast from some 2,000 records a batch on."""
MAX_BYTES = 4 * 1024 * 1024
"""A stored batch that is larger is cut."""
MAX_ROWS = 128 * 1024
"""So is one with more records: they may take no bytes at all."""

_ROW_BYTES = 16  # what a record weighs beside its key and value: an offset and a timestamp


def arrow_schema(columns: Sequence[str] = KAFKA_COLUMNS, as_text: Collection[str] = ()) -> pa.Schema:
    """The schema of Arrow batches with these columns; those in `as_text`, key or value, are strings.

    InvalidConfig for a column that does not exist.
    """
    if unknown := [name for name in columns if name not in COLUMN_TYPES]:
        raise InvalidConfig(f"there is no column {unknown[0]}: choose among {', '.join(COLUMN_TYPES)}")
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
    """The records of `batch` with offsets in `[from_offset, until_offset)`; none of a control batch.

    Raises CorruptBatch for a damaged body, InvalidTimestamp for a time that microseconds in 64 bits cannot say and
    MessageTooLarge for 2 GiB or more in one column.
    """
    stretch = stretch_of(batch, from_offset, until_offset)
    return _Builder(topic, partition, columns).build([] if stretch is None else [stretch])


class ArrowMerger:
    """Stored batches of one partition in, Arrow batches of 1 to 4 MiB out, in the same order.

    Records whose timestamp is not within `times` are left out.
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
        self._builder = _Builder(topic, partition, columns, as_text)
        self._times = None if times.are_open else times
        self.next_offset = -1
        """One above the last offset that what was yielded goes up to; -1 before."""
        self._pending: list[Stretch] = []
        self._rows = 0
        self._bytes = 0
        self._is_on_border = False  # of the times: pending records may have to be left out

    def add(self, batch: RecordBatch, from_offset: int = 0, until_offset: int = MAX_OFFSET) -> Iterator[pa.RecordBatch]:
        """Take in the records of `batch` in `[from_offset, until_offset)`; yields what is complete. Raises as above."""
        if self._times is not None and self._times.exclude(batch.header):
            return
        whole = stretch_of(batch, from_offset, until_offset)
        for stretch in _cut(whole) if whole is not None else ():
            size_bytes = self._builder.weigh(stretch)
            if self._bytes + size_bytes > MAX_BYTES or self._rows + stretch.count > MAX_ROWS:
                yield from self.flush()
            self._pending.append(stretch)
            self._rows += stretch.count
            self._bytes += size_bytes
            if self._times is not None and not self._times.include(batch.header):
                self._is_on_border = True
            if self._bytes >= MERGE_BYTES:
                yield from self.flush()

    def flush(self) -> Iterator[pa.RecordBatch]:
        """Yields the rest, if there is any."""
        if not self._pending:
            return
        pending, self._pending, self._rows, self._bytes = self._pending, [], 0, 0
        is_on_border, self._is_on_border = self._is_on_border, False
        built = self._builder.build(pending)
        if is_on_border:
            assert self._times is not None
            built = built.filter(pa.array(self._times.mask(times_ms(pending))))
        self.next_offset = pending[-1].next_offset
        if built.num_rows:
            yield built


def _cut(stretch: Stretch) -> Iterator[Stretch]:
    """`stretch` in pieces of about MAX_BYTES, by the average size of its records, and of at most MAX_ROWS."""
    size_bytes = len(stretch.keys) + len(stretch.values) + len(stretch.headers) + stretch.count * _ROW_BYTES
    rows = min(MAX_ROWS, max(1, stretch.count * MAX_BYTES // size_bytes))
    if rows >= stretch.count:
        yield stretch
        return
    for start in range(stretch.start, stretch.stop, rows):
        yield stretch.part(start, min(start + rows, stretch.stop))


class _Builder:
    """Makes Arrow batches of one partition with the columns that were asked for."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str], as_text: Collection[str] = ()) -> None:
        self._topic = topic.encode()
        self._partition = partition
        self._schema = arrow_schema(columns, as_text)
        self._as_text = frozenset(as_text)
        self._names = tuple(columns)
        self._constants: dict[bytes | int, pa.Array] = {}

    def weigh(self, stretch: Stretch) -> int:
        """About how many bytes `stretch` adds to an Arrow batch."""
        size_bytes = stretch.count * _ROW_BYTES
        size_bytes += len(stretch.keys) if "key" in self._names else 0
        size_bytes += len(stretch.values) if "value" in self._names else 0
        return size_bytes + (len(stretch.headers) if "headers" in self._names else 0)

    def build(self, stretches: Sequence[Stretch]) -> pa.RecordBatch:
        """One Arrow batch of all `stretches`."""
        count = sum(stretch.count for stretch in stretches)
        arrays = [self._column(name, stretches, count) for name in self._names]
        arrays = [
            text_array(array) if name in self._as_text else array
            for name, array in zip(self._names, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _column(self, name: str, stretches: Sequence[Stretch], count: int) -> pa.Array:
        match name:
            case "key":
                lengths = [stretch.columns.key_lengths for stretch in stretches]
                return binary_array(stretches, lengths, [stretch.keys for stretch in stretches])
            case "value":
                lengths = [stretch.columns.value_lengths for stretch in stretches]
                return binary_array(stretches, lengths, [stretch.values for stretch in stretches])
            case "offset":
                return offsets_array(stretches)
            case "timestamp":
                return timestamps_array(stretches)
            case "timestampType":
                types = {stretch.timestamp_type for stretch in stretches}
                return self._constant(types.pop(), count) if len(types) == 1 else timestamp_types_array(stretches)
            case "headers":
                return headers_array(stretches)
            case "partition":
                return self._constant(self._partition, count)
        return self._constant(self._topic, count)

    def _constant(self, item: bytes | int, count: int) -> pa.Array:
        """A text or an integer `count` times: a slice of the longest array of it that was needed so far."""
        longest = self._constants.get(item)
        if longest is None or len(longest) < count:
            longest = repeated_string(item, count) if isinstance(item, bytes) else repeated_int32(item, count)
            self._constants[item] = longest
        return longest[:count]
