"""Many records at once: checked as lists, and cut into batches by slicing."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from warmlog.errors import MessageTooLarge
from warmlog.partitioner import partition_of_key
from warmlog.record_input import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Header,
    Headers,
    as_bytes,
    as_headers,
    as_timestamp,
    record_bytes,
)

_PLAIN = {bytes}
_NULLABLE = {bytes, type(None)}


@dataclass(frozen=True, slots=True)
class BulkRecords:
    """Parallel lists of checked records. One timestamp may stand for all."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[list[Header] | None] | None
    timestamps_ms: int | list[int]

    @classmethod
    def check(
        cls,
        values: Sequence[object],
        keys: Sequence[object] | None,
        headers: Sequence[Headers | None] | None,
        timestamps_ms: int | Sequence[int] | None,
        now_ms: int,
    ) -> "BulkRecords":
        """TypeError and ValueError for what cannot be sent; without timestamps the records have `now_ms`."""
        for name, column in (("keys", keys), ("headers", headers), ("timestamps_ms", timestamps_ms)):
            if column is not None and not isinstance(column, int) and len(column) != len(values):
                raise ValueError(f"{name} has {len(column)} items for {len(values)} values")
        checked_keys = None if keys is None else _all_bytes("key", keys)
        checked_headers = None if headers is None else [as_headers(item) for item in headers]
        return cls(
            _all_bytes("value", values),
            checked_keys if checked_keys and any(key is not None for key in checked_keys) else None,
            checked_headers if checked_headers and any(checked_headers) else None,
            _all_timestamps(timestamps_ms, now_ms),
        )

    def slice(self, start: int, stop: int) -> "BulkRecords":
        return BulkRecords(
            self.values[start:stop],
            None if self.keys is None else self.keys[start:stop],
            None if self.headers is None else self.headers[start:stop],
            self.timestamps_ms if isinstance(self.timestamps_ms, int) else self.timestamps_ms[start:stop],
        )

    def take(self, indices: list[int]) -> "BulkRecords":
        return BulkRecords(
            [self.values[i] for i in indices],
            None if self.keys is None else [self.keys[i] for i in indices],
            None if self.headers is None else [self.headers[i] for i in indices],
            self.timestamps_ms if isinstance(self.timestamps_ms, int) else [self.timestamps_ms[i] for i in indices],
        )

    def sizes_bytes(self) -> list[int]:
        """The most that each record can take in a batch."""
        if self.headers is None and self.keys is None and None not in self.values:
            return [size + RECORD_OVERHEAD_BYTES for size in map(len, self.values)]  # type: ignore[arg-type]
        empty = [None] * len(self.values)
        return list(map(record_bytes, self.values, self.keys or empty, self.headers or empty))

    def by_partition(self, partitions: int) -> Iterator[tuple[int | None, "BulkRecords"]]:
        """The records of each partition that keys choose, and those without a key under None, in their order."""
        if self.keys is None:
            yield None, self
            return
        indices: dict[int | None, list[int]] = {}
        chosen: dict[bytes, int] = {}
        for index, key in enumerate(self.keys):
            if not key:
                indices.setdefault(None, []).append(index)
                continue
            if (partition := chosen.get(key)) is None:
                partition = chosen[key] = partition_of_key(key, partitions)
            indices.setdefault(partition, []).append(index)
        for chosen_partition, own in indices.items():
            yield chosen_partition, self if len(own) == len(self.values) else self.take(own)

    def cut(self, limit_bytes: int, max_message_bytes: int) -> Iterator[tuple["BulkRecords", int]]:
        """Consecutive parts that fit into batches of `limit_bytes`, and their sizes without the batch's own overhead.

        A larger record has a batch for itself; MessageTooLarge, before anything is yielded, for one that no batch can
        hold.
        """
        sizes = self.sizes_bytes()
        if sizes and max(sizes) + BATCH_OVERHEAD_BYTES > max_message_bytes:
            raise MessageTooLarge(
                f"a record of {max(sizes)} bytes: with its batch it is larger than "
                f"max.message.bytes={max_message_bytes}"
            )
        room = limit_bytes - BATCH_OVERHEAD_BYTES
        ends = list(accumulate(sizes))
        start, done_bytes = 0, 0
        while start < len(sizes):
            stop = max(bisect_right(ends, done_bytes + room, start), start + 1)
            yield self.slice(start, stop), ends[stop - 1] - done_bytes
            start, done_bytes = stop, ends[stop - 1]


def _all_bytes(what: str, items: Sequence[object]) -> list[bytes | None]:
    if isinstance(items, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"a list of {what}s expected, not one {type(items).__name__}")
    types = set(map(type, items))
    if types <= _PLAIN or types <= _NULLABLE:
        return items if isinstance(items, list) else list(items)  # type: ignore[arg-type]
    return [as_bytes(what, item) for item in items]


def _all_timestamps(timestamps_ms: int | Sequence[int] | None, now_ms: int) -> int | list[int]:
    if timestamps_ms is None:
        return now_ms
    if isinstance(timestamps_ms, int):
        return as_timestamp(timestamps_ms)
    checked = list(timestamps_ms)
    if set(map(type, checked)) <= {int}:
        if checked:
            as_timestamp(min(checked))
            as_timestamp(max(checked))
        return checked
    return [as_timestamp(item) for item in checked]
