"""Integer columns of a batch as numpy arrays, read in place: nothing is done record by record in Python.

`ArrayColumn` answers the decoder's questions, on which every check of a batch rests, in numpy's time. Batches that are
decoded otherwise, as rows are, have plain columns: `integers_of` takes both.
"""

from typing import Any

import numpy as np

from warmlog_protocol.batch import IntColumn

_DTYPES: dict[int, np.dtype[Any]] = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}
_WIDEST_SUMMABLE = 4
"""Fewer than 2^31 integers of so many bytes add up to less than 2^63."""


class ArrayColumn(IntColumn):
    """A column that is summed and compared as an array."""

    __slots__ = ()

    def total(self) -> int:
        """The sum of the values, exact whatever their width."""
        if self.width == 0:
            return self.constant * self.count
        if self.width <= _WIDEST_SUMMABLE:
            return int(integers_of(self).sum(dtype=np.uint64))
        return self.largest() and sum(integers_of(self).tolist())

    def largest(self) -> int:
        """The largest value; 0 when there is none."""
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
    """Records `start` to `stop` of `column`, unsigned and in its own width; one number where all are the same."""
    width = column.width
    if width == 0:
        return np.frombuffer(column.data, _DTYPES[8], count=1)
    stop = column.count if stop is None else stop
    return np.frombuffer(column.data, _DTYPES[width], stop - start, start * width)
