"""What a consumer has taken of one partition and delivers item by item."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Generic, TypeVar

from warmlog.consumer.partition_reader import PartitionReader, Place

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class Hand(Generic[T]):
    """Records or Arrow batches, each of which begins at one of `offsets`.

    Iterators, also in other threads, take from `items`, which is empty once the hand was put back.
    """

    reader: PartitionReader
    begun: Place
    """Where what the user handles began when only the first item was delivered."""
    items: Iterator[T]
    offsets: Sequence[int]
    settled_count: int = 0
    """How many of the items were delivered before their partition was settled."""

    @property
    def delivered_count(self) -> int:
        return len(self.offsets) - length_hint(self.items)

    @property
    def next_offset(self) -> int:
        left = length_hint(self.items)
        return self.offsets[-left] if left else self.reader.position

    @property
    def last_offset(self) -> int:
        """The offset of the item that was delivered last."""
        return self.offsets[self.delivered_count - 1]

    @property
    def finished_place(self) -> Place:
        """The place after what the user has handled: what was delivered last is being handled."""
        return self.begun if self.delivered_count < 2 else (self.last_offset, self.reader.epoch)

    def put_back(self) -> None:
        """Leave what is not delivered to the next read."""
        count = len(self.offsets) - len(list(self.items))  # takes all at once: another thread may be taking one
        left, self.offsets = self.offsets[count:], self.offsets[:count]
        if left:
            self.reader.put_back(left[0])
