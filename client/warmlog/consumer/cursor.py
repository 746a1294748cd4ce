"""How far the user has come in what a read has taken of one partition."""

from collections.abc import Iterator, Sequence
from operator import length_hint

from warmlog.consumer.partition_reader import PartitionReader, Place


class Cursor:
    """Counts what was delivered of the items that a read has taken of one partition.

    Items are batches, records, Arrow batches or one table. The last one that was delivered is being handled until the
    next read; what came before it is finished. With n items of which `index` were delivered, item i at `starts[i]`:

    =========  =============  =================
    `index`    `delivered`    `finished`
    =========  =============  =================
    0          begun          begun
    1          starts[1]      begun
    i          starts[i]      starts[i - 1]
    n          end            starts[n - 1]; begun if n = 1
    =========  =============  =================

    An automatic commit commits `finished`, `commit()` what is `delivered`, and reading continues there.
    """

    __slots__ = ("_items", "_starts", "begun", "end", "reader", "settled")

    def __init__(
        self, reader: PartitionReader, begun: Place, end: Place, items: Iterator[object], starts: Sequence[int]
    ) -> None:
        """`begun` is the place before the first item, `end` the place after the last.

        Iterators take from `items`, also in other threads. Cursors of several partitions share the items of a table.
        """
        self.reader = reader
        self.begun = begun
        self.end = end
        self.settled = 0
        """How many of the items were delivered before the last commit by hand."""
        self._items = items
        self._starts = starts

    @property
    def index(self) -> int:
        return len(self._starts) - length_hint(self._items)

    @property
    def delivered(self) -> Place:
        """The place after everything that was delivered."""
        return self._place(self.index)

    @property
    def finished(self) -> Place:
        """The place before the item that was delivered last."""
        return self._place(self.index - 1)

    def close(self) -> None:
        """Note with the reader whether something was delivered since the last commit by hand."""
        if self.index > self.settled:
            self.reader.is_uncommitted = True

    def cut(self, left: int) -> None:
        """Leave the last `left` items, which `items` no longer has, to the next read."""
        index = len(self._starts) - left
        self.end = self._place(index)
        self._starts = self._starts[:index]
        self.reader.put_back(self.end)

    def _place(self, index: int) -> Place:
        if index <= 0:
            return self.begun
        return self.end if index >= len(self._starts) else (self._starts[index], self.end[1])
