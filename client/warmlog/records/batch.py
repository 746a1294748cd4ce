"""What a consumer delivers: batches and the records in them."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from warmlog.errors import CorruptBatch, UnreadableBatch
from warmlog_protocol.batch import RecordBatch

if TYPE_CHECKING:
    import pyarrow as pa

    from warmlog.arrow.reader import ArrowMerger

Header = tuple[str, bytes | None]
T = TypeVar("T")
_NO_HEADERS: Sequence[Header] = ()


class Record(Struct, frozen=True, gc=False):
    """One record. `value` None is a tombstone; `timestamp_ms` counts from 1970 (UTC).

    A msgspec Struct because it is made in a third of the time of a NamedTuple.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


class Batch:
    """Consecutive records of one partition with offsets in `[base_offset, next_offset)`. Iterating gives Records.

    The columns `offsets`, `timestamps_ms`, `keys`, `values` and `headers` are lists of the same length, decoded on
    first use; they raise UnreadableBatch if the body of the batch is malformed.
    """

    __slots__ = (
        "_columns",
        "_record_batch",
        "_rows",
        "base_offset",
        "high_watermark",
        "is_whole",
        "leader_epoch",
        "next_offset",
        "partition",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        record_batch: RecordBatch,
        *,
        high_watermark: int,
        from_offset: int = 0,
        until_offset: int | None = None,
    ) -> None:
        """The records of `record_batch` with offsets in `[from_offset, until_offset)`."""
        header = record_batch.header
        self.topic = topic
        self.partition = partition
        self.high_watermark = high_watermark
        self.leader_epoch = header.partition_leader_epoch
        base_offset, next_offset = header.base_offset, header.next_offset
        self.base_offset = max(base_offset, from_offset)
        self.next_offset = next_offset if until_offset is None else min(next_offset, until_offset)
        self.is_whole = self.base_offset == base_offset and self.next_offset == next_offset
        """Whether these are all records of the stored batch."""
        self._record_batch = record_batch
        self._columns: dict[str, list[Any]] = {}
        self._rows: slice | None = None

    def __len__(self) -> int:
        if self.is_whole:
            return self._record_batch.record_count
        rows = self._rows_within()
        return int(rows.stop - rows.start)

    def __iter__(self) -> Iterator[Record]:
        offsets = self.offsets  # decodes the batch, or raises
        return map(
            Record,
            repeat(self.topic),
            repeat(self.partition),
            offsets,
            self.timestamps_ms,
            self.keys,
            self.values,
            self.headers if self.has_headers else repeat(_NO_HEADERS),
        )

    def __repr__(self) -> str:
        return f"Batch({self.topic}-{self.partition}, offsets {self.base_offset} to {self.next_offset - 1})"

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker set the timestamps (message.timestamp.type=LogAppendTime), and not the producer."""
        return self._record_batch.header.is_log_append_time

    @property
    def offsets(self) -> list[int]:
        return self._column("offsets", self._record_batch.offsets)

    @property
    def timestamps_ms(self) -> list[int]:
        return self._column("timestamps_ms", self._record_batch.timestamps_ms)

    @property
    def keys(self) -> list[bytes | None]:
        return self._column("keys", self._record_batch.keys)

    @property
    def values(self) -> list[bytes | None]:
        return self._column("values", self._record_batch.values)

    @property
    def has_headers(self) -> bool:
        """Whether any record of the stored batch has headers."""
        return self._decoded(lambda: self._record_batch.columns.header_lengths) is not None

    @property
    def headers(self) -> list[Sequence[Header]]:
        return self._column("headers", self._record_batch.headers)

    def to_arrow(self, columns: Sequence[str] | None = None) -> "pa.RecordBatch":
        """Return the records as Arrow (see warmlog.arrow.reader). Raises ImportError, with the extra to install."""
        from warmlog.arrow.reader import KAFKA_COLUMNS, columns_to_arrow

        return self._decoded(
            lambda: columns_to_arrow(
                self._record_batch,
                topic=self.topic,
                partition=self.partition,
                columns=KAFKA_COLUMNS if columns is None else columns,
                from_offset=self.base_offset,
                until_offset=self.next_offset,
            )
        )

    def merge_into(self, merger: "ArrowMerger") -> "Iterator[tuple[pa.RecordBatch, int]]":
        """Add the records to `merger`; yield the Arrow batches that they complete, each with the offset after it."""
        for built in merger.add(self._record_batch, self.base_offset, self.next_offset):
            yield built, merger.next_offset

    # --- within -----------------------------------------------------------------------------------------------------

    def _column(self, name: str, decode: Callable[[], list[Any]]) -> list[Any]:
        column = self._columns.get(name)
        if column is None:
            column = self._decoded(decode)
            self._columns[name] = column = column if self.is_whole else column[self._rows_within()]
        return column

    def _rows_within(self) -> slice:
        """Which rows of the stored batch are in `[base_offset, next_offset)`."""
        if self._rows is None:
            offsets = self._decoded(self._record_batch.offsets)
            self._rows = slice(bisect_left(offsets, self.base_offset), bisect_left(offsets, self.next_offset))
        return self._rows

    def _decoded(self, decode: Callable[[], T]) -> T:
        try:
            return decode()
        except CorruptBatch as error:
            batch = self._record_batch
            raise UnreadableBatch(
                str(error), self.topic, self.partition, batch.base_offset, batch.next_offset
            ) from error
