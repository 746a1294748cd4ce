"""Integer columns of a batch as numpy arrays, read in place, and numpy arrays as integer columns.

With `ArrayColumn` the decoder's checks of a batch run in numpy. `integers_of` also takes the plain columns of batches
that are decoded otherwise, such as rows.
"""

from typing import Any

import numpy as np

from warmlog_protocol.batch import IntColumn

_DTYPES: dict[int, np.dtype[Any]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_WIDEST_SUMMABLE = 4
"""Fewer than 2^31 integers of so many bytes add up to less than 2^63."""


class ArrayColumn(IntColumn):
    """A column that is summed and compared by numpy."""

    __slots__ = ()

    def total(self) -> int:
        """The exact sum of the values."""
        if self.width == 0:
            return self.constant * self.count
        if self.width <= _WIDEST_SUMMABLE:
            return int(integers_of(self).sum(dtype=np.uint64))
        return self.largest() and sum(integers_of(self).tolist())

    def largest(self) -> int:
        """The largest value; 0 if there is none."""
        return super().largest() if self.width == 0 else int(integers_of(self).max(initial=0))

    def zeros(self) -> int:
        """How many of the values are 0."""
        return super().zeros() if self.width == 0 else self.count - int(np.count_nonzero(integers_of(self)))

    def is_increasing(self) -> bool:
        """Whether each value is above the one before it."""
        if self.width == 0:
            return super().is_increasing()
        values = integers_of(self)
        return bool((values[1:] > values[:-1]).all())


def integers_of(column: IntColumn, start: int = 0, stop: int | None = None) -> Any:
    """Records `start` to `stop` of `column`, unsigned and in its own width; one number if all are equal."""
    width = column.width
    if width == 0:
        return np.frombuffer(column.data, _DTYPES[8], count=1)
    stop = column.count if stop is None else stop
    return np.frombuffer(column.data, _DTYPES[width], stop - start, start * width)


def pack_array(numbers: Any) -> ArrayColumn:
    """Return these integers, at least one and none negative, as a column of the least width, as `pack_ints` does."""
    least, most = int(numbers.min()), int(numbers.max())
    if least == most:
        return ArrayColumn.constant_of(most, len(numbers))
    width = next(width for width in _DTYPES if most < 1 << 8 * width)
    return ArrayColumn(width, numbers.astype(_DTYPES[width]).view(np.uint8).data, len(numbers))
