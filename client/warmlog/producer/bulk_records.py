"""Lists of records: checked as a whole, and cut into batches by slicing."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import Any

from warmlog.errors import MessageTooLarge
from warmlog.producer.arrow_columns import ArrowArray, ArrowStream, bytes_of_column, is_column, timestamps_of_column
from warmlog.producer.record_input import (
    BATCH_OVERHEAD_BYTES,
    RECORD_OVERHEAD_BYTES,
    Header,
    Headers,
    as_bytes,
    as_headers,
    as_timestamp,
    content_bytes,
    partition_of_key,
)

_PLAIN = {bytes}
_NULLABLE = {bytes, type(None)}


@dataclass(frozen=True, slots=True)
class BulkRecords:
    """Checked records as parallel lists. `timestamps_ms` is one number if all have the same."""

    values: list[bytes | None]
    keys: list[bytes | None] | None
    headers: list[list[Header] | None] | None
    timestamps_ms: int | list[int]
    is_without_null: bool = False
    """Whether it is known that no value and no key is None."""

    @classmethod
    def check(
        cls,
        values: Sequence[object] | ArrowArray | ArrowStream,
        keys: Sequence[object] | ArrowArray | ArrowStream | None,
        headers: Sequence[Headers | None] | None,
        timestamps_ms: int | Sequence[int] | ArrowArray | ArrowStream | None,
        now_ms: int,
    ) -> "BulkRecords":
        """Check the arguments of `send_many`: TypeError or ValueError. Without timestamps the records get `now_ms`."""
        items, key_items = _as_sequence("value", values), None if keys is None else _as_sequence("key", keys)
        if is_column(timestamps_ms):
            timestamps_ms = timestamps_of_column("timestamps_ms", timestamps_ms, now_ms)
        columns: dict[str, Any] = {"keys": key_items, "headers": headers, "timestamps_ms": timestamps_ms}
        for name, column in columns.items():
            if column is not None and not isinstance(column, int) and len(column) != len(items):
                raise ValueError(f"{name} has {len(column)} items for {len(items)} values")
        checked_keys, are_keys_full = (None, True) if key_items is None else _all_bytes("key", key_items)
        checked_headers = None if headers is None else [as_headers(item) for item in headers]
        checked_values, is_without_null = _all_bytes("value", items)
        return cls(
            checked_values,
            checked_keys if checked_keys and any(key is not None for key in checked_keys) else None,
            checked_headers if checked_headers and any(checked_headers) else None,
            _all_timestamps(timestamps_ms, now_ms),
            is_without_null=is_without_null and are_keys_full,
        )

    def slice(self, start: int, stop: int) -> "BulkRecords":
        return self._pick(lambda column: column[start:stop])

    def take(self, indices: list[int]) -> "BulkRecords":
        return self._pick(lambda column: [column[i] for i in indices])

    def _pick(self, pick: Callable[[list[Any]], list[Any]]) -> "BulkRecords":
        return BulkRecords(
            pick(self.values),
            None if self.keys is None else pick(self.keys),
            None if self.headers is None else pick(self.headers),
            self.timestamps_ms if isinstance(self.timestamps_ms, int) else pick(self.timestamps_ms),
            self.is_without_null,
        )

    def by_partition(self, partitions: int) -> Iterator[tuple[int | None, "BulkRecords"]]:
        """Yield the records of each partition that keys choose, in order; those without a key under None.

        With a single partition all records are under None and keep their order.
        """
        if self.keys is None or partitions == 1:
            yield None, self
            return
        indices: dict[int | None, list[int]] = {}
        note: dict[bytes | None, Callable[[int], None]] = {}
        for key in set(self.keys):
            partition = partition_of_key(key, partitions) if key else None
            note[key] = indices.setdefault(partition, []).append
        for index, key in enumerate(self.keys):
            note[key](index)
        for partition, own in indices.items():
            yield partition, self if len(own) == len(self.values) else self.take(own)

    def cut(self, limit_bytes: int, max_message_bytes: int) -> Iterator[tuple["BulkRecords", int]]:
        """Yield consecutive parts for batches of `limit_bytes`, with their sizes without BATCH_OVERHEAD_BYTES.

        A larger record gets a batch of its own. MessageTooLarge, before anything is yielded, if it exceeds
        `max_message_bytes`.
        """
        parts = list(self._plan(limit_bytes - BATCH_OVERHEAD_BYTES, max_message_bytes - BATCH_OVERHEAD_BYTES))
        for start, stop, size_bytes in parts:
            yield self.slice(start, stop), size_bytes

    def _plan(self, room: int, max_record_bytes: int) -> Iterator[tuple[int, int, int]]:
        """Start, stop and size of each part: as many records as fit if they are like the previous ones, else fewer."""
        if not self.values:
            return
        start = 0
        guess = room // self._size_bytes(0, 1)
        while start < len(self.values):
            stop = min(start + max(guess, 1), len(self.values))
            size_bytes = self._size_bytes(start, stop)
            if size_bytes > room and stop - start > 1:
                stop = start + self._fitting(start, stop, room)
                size_bytes = self._size_bytes(start, stop)
            if size_bytes > max_record_bytes:
                raise MessageTooLarge(
                    f"a record of {size_bytes} bytes: with its batch it is larger than "
                    f"max.message.bytes={max_record_bytes + BATCH_OVERHEAD_BYTES}"
                )
            yield start, stop, size_bytes
            guess = (stop - start) * room // size_bytes
            start = stop

    def _size_bytes(self, start: int, stop: int) -> int:
        return sum(self._content_bytes(start, stop)) + (stop - start) * RECORD_OVERHEAD_BYTES

    def _fitting(self, start: int, stop: int, room: int) -> int:
        """How many of these records fit into `room`, counted from the first one; at least one."""
        stop = min(stop, start + room // RECORD_OVERHEAD_BYTES + 1)
        ends = list(accumulate(self._content_bytes(start, stop)))
        fitting = bisect_right(range(len(ends)), room, key=lambda i: ends[i] + (i + 1) * RECORD_OVERHEAD_BYTES)
        return max(fitting, 1)

    def _content_bytes(self, start: int, stop: int) -> Iterable[int]:
        """The size of each of these records without RECORD_OVERHEAD_BYTES."""
        values = self.values[start:stop]
        if self.headers is None and self.is_without_null:
            lengths = map(len, values)  # type: ignore[arg-type]
            return lengths if self.keys is None else map(add, lengths, map(len, self.keys[start:stop]))  # type: ignore[arg-type]
        empty = [None] * len(values)
        keys = empty if self.keys is None else self.keys[start:stop]
        headers = empty if self.headers is None else self.headers[start:stop]
        return map(content_bytes, values, keys, headers)


def _as_sequence(what: str, items: Any) -> Sequence[object]:
    """Return the items as a sequence. TypeError for text, bytes, and collections without an order."""
    if is_column(items):
        return bytes_of_column(f"{what}s", items)
    if isinstance(items, (str, bytes, bytearray, memoryview, Set, Mapping)) or not isinstance(items, Iterable):
        raise TypeError(f"a list of {what}s expected, not one {type(items).__name__}")
    return items if isinstance(items, Sequence) else list(items)


def _all_bytes(what: str, items: Sequence[object]) -> tuple[list[bytes | None], bool]:
    """Return the items as a list of immutable bytes, and whether it is known that none of them is None."""
    types = set(map(type, items))
    if types <= _PLAIN or types <= _NULLABLE:
        return items if isinstance(items, list) else list(items), types <= _PLAIN  # type: ignore[arg-type]
    return [as_bytes(what, item) for item in items], False


def _all_timestamps(timestamps_ms: Any, now_ms: int) -> int | list[int]:
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
