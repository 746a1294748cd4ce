"""Holding index entries against the batches of a log, while somebody walks through it from its start.

Each check is given the entries as they were before the walk began, and then every batch. An entry must name a batch
that exists; what lies within damage of the log cannot be judged, and is left out.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from warmlog_broker.storage.index.offset_index import OffsetPosition
from warmlog_broker.storage.index.time_index import NO_TIMESTAMP, TimestampOffset
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.verify.report import Report
from warmlog_protocol.batch.header import BatchHeader

Entry = TypeVar("Entry", OffsetPosition, TimestampOffset)


class OffsetIndexCheck:
    """Every entry leads to the batch that ends with its offset; offsets and positions rise."""

    def __init__(self, path: Path, entries: Iterable[OffsetPosition], report: Report) -> None:
        self.last: OffsetPosition | None = None
        """The last entry that was compared: behind it the log is scanned."""
        self._path = path
        self._entries = _rising(path, entries, report)
        self._report = report
        self._next = next(self._entries, None)

    def on_batch(self, header: BatchHeader, position: int) -> None:
        while self._next is not None and self._next.position < position:
            self._miss(self._next, "none begins there")
        if self._next is not None and self._next.position == position:
            if self._next.offset != header.last_offset:
                self._miss(self._next, f"one that ends with offset {header.last_offset}")
            else:
                self._take()

    def skip_to(self, position: int) -> None:
        """The log is damaged up to `position`."""
        while self._next is not None and self._next.position < position:
            self._take()

    def finish(self, log_bytes: int) -> None:
        """The log ended after `log_bytes`."""
        while self._next is not None:
            self._miss(self._next, f"the end of the log at {log_bytes}")

    def _miss(self, entry: OffsetPosition, found: str) -> None:
        expected = f"a batch at position {entry.position} that ends with offset {entry.offset}"
        self._report.find(self._path, offset=entry.offset, expected=expected, found=found)
        self._take()

    def _take(self) -> None:
        self.last = self._next
        self._report.counts.index_entries += 1
        self._next = next(self._entries, None)


class TimeIndexCheck:
    """Every entry names the batch that raised the largest timestamp so far to its own; both values rise."""

    def __init__(self, path: Path, entries: Iterable[TimestampOffset], report: Report) -> None:
        self._path = path
        self._entries = _rising(path, entries, report)
        self._report = report
        self._largest_ms = NO_TIMESTAMP
        self._last_ms = NO_TIMESTAMP
        self._next = next(self._entries, None)

    def on_batch(self, header: BatchHeader) -> None:
        self._largest_ms = max(self._largest_ms, header.max_timestamp_ms)
        while self._next is not None and self._next.offset < header.base_offset:
            self._find(self._next, "no batch has that offset")
        if self._next is None or self._next.offset > header.last_offset:
            return
        if self._next.offset != header.last_offset:
            self._find(self._next, f"a batch that ends with offset {header.last_offset}")
        elif not self._next.timestamp_ms == header.max_timestamp_ms == self._largest_ms:
            self._find(self._next, f"{header.max_timestamp_ms} there, {self._largest_ms} up to there")
        else:
            self._take()

    def skip_to(self, offset: int) -> None:
        """The log is damaged up to `offset`: what is the largest timestamp from here on cannot be known."""
        while self._next is not None and self._next.offset < offset:
            self._take()
        self._largest_ms = max(self._largest_ms, self._last_ms)

    def finish(self, *, must_end_with_largest: bool) -> None:
        """The log has ended. Once a segment is inactive, its last entry is the largest timestamp of all."""
        while self._next is not None:
            self._find(self._next, "the log ends before it")
        if must_end_with_largest and self._last_ms < self._largest_ms:
            self._report.find(
                self._path, expected=f"a last entry with timestamp {self._largest_ms}", found=str(self._last_ms)
            )

    def _find(self, entry: TimestampOffset, found: str) -> None:
        expected = f"timestamp {entry.timestamp_ms} in the batch that ends with offset {entry.offset}"
        self._report.find(self._path, offset=entry.offset, expected=expected, found=found)
        self._take()

    def _take(self) -> None:
        assert self._next is not None
        self._last_ms = self._next.timestamp_ms
        self._report.counts.index_entries += 1
        self._next = next(self._entries, None)


class TransactionIndexCheck:
    """Each aborted transaction of the segment has its entry, and each entry an aborted transaction."""

    def __init__(self, path: Path, entries: Iterable[AbortedTxn], report: Report) -> None:
        self._path = path
        self._entries = {entry.last_offset: entry for entry in entries}
        self._report = report
        report.counts.index_entries += len(self._entries)

    def on_abort(
        self, producer_id: int, last_offset: int, derived: AbortedTxn | None, *, is_thinned: bool = False
    ) -> None:
        """The log has an ABORT marker at `last_offset`; `derived` is the entry that it should have, if that is known.

        None when the transaction held no data, or compaction has removed all of it; then an entry may be there or not.
        `is_thinned`: batches are missing, so transactions may have begun earlier than the log tells.
        """
        entry = self._entries.pop(last_offset, None)
        if entry is None:
            if derived is not None:
                self._find(last_offset, f"{derived}", "no entry: its records would be read as committed")
        elif entry.producer_id != producer_id:
            self._find(last_offset, f"an aborted transaction of producer {producer_id}", f"{entry}")
        elif derived is not None and not _agree(entry, derived, is_thinned=is_thinned):
            self._find(last_offset, f"{derived}", f"{entry}")

    def skip_to(self, offset: int) -> None:
        """The log is damaged up to `offset`."""
        self._entries = {last: entry for last, entry in self._entries.items() if last >= offset}

    def finish(self) -> None:
        """The log has ended."""
        for last_offset, entry in self._entries.items():
            self._find(last_offset, "a transaction that was aborted there", f"none, but {entry}")

    def _find(self, offset: int, expected: str, found: str) -> None:
        self._report.find(self._path, offset=offset, expected=expected, found=found)


def _agree(entry: AbortedTxn, derived: AbortedTxn, *, is_thinned: bool) -> bool:
    """Compaction may have removed the first records of transactions: entries keep the offsets that they had."""
    if not is_thinned:
        return entry == derived
    return entry.first_offset <= derived.first_offset and entry.last_stable_offset <= derived.last_stable_offset


def _rising(path: Path, entries: Iterable[Entry], report: Report) -> Iterator[Entry]:
    """The entries without those that do not follow on the one before: both values rise, a time's offset may stay."""
    previous: Entry | None = None
    for entry in entries:
        if previous is not None and (entry[0] <= previous[0] or entry[1] < previous[1]):
            report.find(path, offset=entry.offset, expected=f"an entry after {previous}", found=f"{entry}")
            continue
        previous = entry
        yield entry
