"""A column of unsigned integers, as stored in the body of a columnar batch.

The bytes are little-endian: `width` bytes for each of `count` values, or, if width is 0, one u64 as the value of every
record. On a little-endian machine they are read in place; on a big-endian one `array.byteswap` converts a copy.
"""

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress, repeat
from operator import ge
from typing import Self

from warmlog_protocol.errors import CorruptBatch

CONSTANT_BYTES = 8
PIECE_VALUES = 16 * 1024
"""A longer column is processed in pieces. One call over millions of values would hold the interpreter lock too long,
and a list of them would take eight times the memory, or more."""
_SWAP = sys.byteorder == "big"
_TYPECODES = {width: next(code for code in "BHILQ" if array(code).itemsize == width) for width in (1, 2, 4, 8)}


class IntColumn:
    """`count` unsigned integers of `width` bytes (0: all the same) in `data`, which numpy can wrap."""

    __slots__ = ("_values", "count", "data", "width")

    def __init__(self, width: int, data: memoryview | bytes, count: int) -> None:
        self.width = width
        self.data = data
        self.count = count
        self._values: list[int] | None = None

    @classmethod
    def constant_of(cls, value: int, count: int) -> Self:
        """A column in which every record has `value`."""
        return cls(0, value.to_bytes(CONSTANT_BYTES, "little"), count)

    @property
    def is_constant(self) -> bool:
        return self.width == 0

    @property
    def constant(self) -> int:
        """The value of every record; only valid if `is_constant`."""
        assert self.width == 0
        return int.from_bytes(self.data, "little")

    @property
    def bound(self) -> int:
        """The largest value that the width allows; the value itself if all are the same."""
        return self.constant if self.width == 0 else (1 << 8 * self.width) - 1

    def tolist(self) -> list[int]:
        """The values. The list is kept for the next caller: do not change it."""
        if self._values is None:
            self._values = [self.constant] * self.count if self.width == 0 else _unpack(self.width, self.data)
        return self._values

    def pieces(self) -> Iterable[Sequence[int]]:
        """The values, at most PIECE_VALUES at a time."""
        if self.count > PIECE_VALUES:
            starts = range(0, self.count, PIECE_VALUES)
            return (self.part(start, min(start + PIECE_VALUES, self.count)).tolist() for start in starts)
        return (bytes(self.data) if self.width == 1 else self.tolist(),)

    def total(self) -> int:
        if self.width == 0:
            return self.constant * self.count
        return sum(map(sum, self.pieces()))

    def largest(self) -> int:
        """The largest value; 0 if there is none."""
        if self.width == 0:
            return self.constant if self.count else 0
        return max(max(piece, default=0) for piece in self.pieces())

    def zeros(self) -> int:
        """How many of the values are 0."""
        if self.width == 0:
            return 0 if self.constant else self.count
        return sum([piece.count(0) for piece in self.pieces()])

    def is_increasing(self) -> bool:
        """Whether each value is above the one before it."""
        if self.width == 0:
            return self.count < 2
        last = -1
        for piece in self.pieces():
            if any(map(ge, chain((last,), piece), piece)):
                return False
            last = piece[-1] if piece else last
        return True

    def select(self, keep: Sequence[object]) -> "IntColumn":
        """The values for which `keep`, one item per value, is true."""
        if self.width == 0:
            return IntColumn.constant_of(self.constant, sum(map(bool, keep)))
        return pack_ints(list(compress(self.tolist(), keep)))

    def part(self, start: int, stop: int) -> "IntColumn":
        """The values from index `start` up to `stop`, in place."""
        data = self.data[start * self.width : stop * self.width] if self.width else self.data
        return IntColumn(self.width, data, stop - start)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return repeat(self.constant, self.count) if self.width == 0 else iter(self.tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IntColumn) and self.count == other.count and self.tolist() == other.tolist()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"IntColumn(width={self.width}, count={self.count})"


def pack_ints(values: Sequence[int]) -> IntColumn:
    """Pack `values` in the least width that holds them all. ValueError if one is negative or does not fit 64 bits."""
    count = len(values)
    if count == 0:
        return IntColumn.constant_of(0, 0)
    first = values[0]
    if values[-1] == first and values.count(first) == count:
        _check_range(first)
        return IntColumn.constant_of(first, count)
    for width, typecode in _TYPECODES.items():
        try:
            packed = array(typecode, values)
        except OverflowError:
            continue
        if _SWAP:
            packed.byteswap()
        return IntColumn(width, packed.tobytes(), count)
    _check_range(min(values))
    _check_range(max(values))
    raise AssertionError("integers within 64 bits fit a column of 8 bytes each")


def read_column(
    body: memoryview, position: int, count: int, column_type: type[IntColumn] = IntColumn
) -> tuple[IntColumn, int]:
    """Return the column of `count` values at `position`, and the position after it. CorruptBatch if it does not fit."""
    if position >= len(body):
        raise CorruptBatch(f"integer column expected at byte {position}, where the body ends")
    width = body[position]
    if width != 0 and width not in _TYPECODES:
        raise CorruptBatch(f"integer column at byte {position}: width {width} does not exist")
    start = position + 1
    end = start + (width * count if width else CONSTANT_BYTES)
    if end > len(body):
        raise CorruptBatch(f"integer column at byte {position}: {end - start} bytes expected, {len(body) - start} left")
    return column_type(width, body[start:end], count), end


def _unpack(width: int, data: memoryview | bytes) -> list[int]:
    if width == 1:
        return list(data)
    values = array(_TYPECODES[width])
    values.frombytes(data)
    if _SWAP:
        values.byteswap()
    return values.tolist()


def _check_range(value: int) -> None:
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{value} is not an unsigned integer of 64 bits")
