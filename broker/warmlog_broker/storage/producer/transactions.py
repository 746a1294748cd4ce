"""The transactions of one log that hold back its last stable offset.

A transaction is open from its producer's first transactional batch to its marker. A completed one still holds the last
stable offset back until its marker is below the high watermark: until then a crash may lose the marker.

Open transactions are in the order of their first offsets, since a new one begins at the end of the log. Completed ones
are removed when the high watermark is next asked about, so there are never more of them than markers between the high
watermark and the end of the log.
"""

from typing import NamedTuple


class CompletedTxn(NamedTuple):
    """A transaction with its marker. Both offsets are inclusive."""

    producer_id: int
    first_offset: int
    last_offset: int
    """The marker's."""


class Transactions:
    """The open transactions, and completed ones whose markers are not below the high watermark."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """The first offset of each open transaction, in rising order, by producer id."""
        self._completed: list[CompletedTxn] = []

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Open a transaction at `first_offset` for a producer that has none."""
        is_last = first_offset > next(reversed(self.open.values()), -1)
        self.open[producer_id] = first_offset
        if not is_last:  # from a snapshot, whose entries are in no order
            self.open = dict(sorted(self.open.items(), key=lambda item: item[1]))

    def stable_after(self, completed: CompletedTxn) -> int:
        """The last stable offset once `completed`, which is still open, has ended below the high watermark.

        It is the first offset of the oldest other open transaction, or without one the offset after the marker.
        """
        others = (first for producer_id, first in self.open.items() if producer_id != completed.producer_id)
        return next(others, completed.last_offset + 1)

    def complete(self, completed: CompletedTxn) -> None:
        del self.open[completed.producer_id]
        self._completed.append(completed)

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of a transaction that is open or whose marker is not below `high_watermark`; None if none.

        Removes completed ones whose marker is below `high_watermark`, which only truncation lowers again.
        """
        first = next(iter(self.open.values()), None)
        if self._completed:
            self.forget_completed_below(high_watermark)
            for txn in self._completed:
                if first is None or txn.first_offset < first:
                    first = txn.first_offset
        return first

    def completed_before(self, offset: int) -> list[CompletedTxn]:
        return [txn for txn in self._completed if txn.last_offset < offset]

    def hold_back(self, completed: list[CompletedTxn]) -> None:
        self._completed += [txn for txn in completed if txn not in self._completed]

    def forget_completed_below(self, offset: int) -> None:
        self._completed = [txn for txn in self._completed if txn.last_offset >= offset]

    def clear(self) -> None:
        self.open.clear()
        self._completed.clear()
