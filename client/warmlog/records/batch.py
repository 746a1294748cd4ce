"""What a consumer hands out: batches, and the records in them."""

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
_MAX_OFFSET = (1 << 63) - 1


class Record(Struct, frozen=True, gc=False):
    """One record. `value` None is a tombstone; `timestamp_ms` counts from 1970 (UTC).

    A msgspec Struct: making one takes a third of the time of a NamedTuple, which was most of the time of a record.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


class Batch:
    """Records of one partition that lie one after another, none below `base_offset`, none from `next_offset` on.

    The columns `offsets`, `timestamps_ms`, `keys`, `values` and `headers` are lists of the same length, made when
    first asked for; they raise UnreadableBatch when the batch's body is malformed. Iterating gives Records.
    """

    __slots__ = (
        "_columns",
        "_record_batch",
        "_stretch",
        "base_offset",
        "high_watermark",
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
        self.base_offset = max(header.base_offset, from_offset)
        self.next_offset = min(header.next_offset, _MAX_OFFSET if until_offset is None else until_offset)
        self._record_batch = record_batch
        self._columns: dict[str, list[Any]] = {}
        self._stretch: slice | None = None

    def __len__(self) -> int:
        if self._is_whole:
            return self._record_batch.record_count
        stretch = self._within()
        return int(stretch.stop - stretch.start)

    def __iter__(self) -> Iterator[Record]:
        has_headers = self._decoded(self._has_headers)
        return map(
            Record,
            repeat(self.topic),
            repeat(self.partition),
            self.offsets,
            self.timestamps_ms,
            self.keys,
            self.values,
            self.headers if has_headers else repeat(_NO_HEADERS),
        )

    def __repr__(self) -> str:
        return f"Batch({self.topic}-{self.partition}, offsets {self.base_offset} to {self.next_offset - 1})"

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
    def headers(self) -> list[Sequence[Header]]:
        return self._column("headers", self._record_batch.headers)

    def to_arrow(self, columns: Sequence[str] | None = None) -> "pa.RecordBatch":
        """The records as an Arrow record batch (see warmlog.arrow). ImportError, naming the extra, without pyarrow."""
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

    def merge_into(self, merger: "ArrowMerger") -> "list[pa.RecordBatch]":
        """The Arrow batches that these records complete."""
        return self._decoded(lambda: list(merger.add(self._record_batch, self.base_offset, self.next_offset)))

    # --- within -----------------------------------------------------------------------------------------------------

    @property
    def _is_whole(self) -> bool:
        header = self._record_batch.header
        return self.base_offset == header.base_offset and self.next_offset == header.next_offset

    def _column(self, name: str, decode: Callable[[], list[Any]]) -> list[Any]:
        column = self._columns.get(name)
        if column is None:
            column = self._decoded(decode)
            self._columns[name] = column = column if self._is_whole else column[self._within()]
        return column

    def _within(self) -> slice:
        """Where the records in `[base_offset, next_offset)` lie among those of the stored batch."""
        if self._stretch is None:
            offsets = self._decoded(self._record_batch.offsets)
            self._stretch = slice(bisect_left(offsets, self.base_offset), bisect_left(offsets, self.next_offset))
        return self._stretch

    def _has_headers(self) -> bool:
        return self._record_batch.columns.header_lengths is not None

    def _decoded(self, decode: Callable[[], T]) -> T:
        try:
            return decode()
        except CorruptBatch as error:
            raise unreadable(self.topic, self.partition, self._record_batch, error) from error


def unreadable(topic: str, partition: int, batch: RecordBatch, error: CorruptBatch) -> UnreadableBatch:
    """`error` with the place of the batch."""
    return UnreadableBatch(
        str(error),
        topic=topic,
        partition=partition,
        base_offset=batch.base_offset,
        next_offset=batch.next_offset,
    )
