"""Compare index entries with the batches of a log, during one scan from its start.

Each check gets the entries as they were before the scan began, and then every batch. An entry must match an existing
batch. Entries within a damaged range cannot be checked and are skipped.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from warmlog_broker.storage.index.offset_index import OffsetPosition
from warmlog_broker.storage.index.time_index import TimestampOffset
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.verify.report import Report
from warmlog_protocol.batch.header import NO_TIMESTAMP, BatchHeader

Entry = TypeVar("Entry", OffsetPosition, TimestampOffset)


class _IndexCheck(Generic[Entry]):
    """The entries in order. Their value, a position or an offset, says to which batch each belongs."""

    def __init__(self, path: Path, entries: Iterable[Entry], report: Report) -> None:
        self.last: Entry | None = None
        """The last entry that was compared: the log after it is scanned by lookups."""
        self._path = path
        self._report = report
        self._entries: Iterator[Entry] = self._rising(entries)
        self._next: Entry | None = next(self._entries, None)

    def _rising(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries whose key is above the previous one's and whose value is not below; report the others."""
        previous: Entry | None = None
        for entry in entries:
            if previous is not None and (entry[0] <= previous[0] or entry[1] < previous[1]):
                self._find(f"an entry after {previous}", f"{entry}", entry.offset)
                continue
            previous = entry
            yield entry

    def _take_below(self, value: float, fault: str = "") -> None:
        """Take the entries with a lower value; report each if they have that fault."""
        while self._next is not None and self._next[1] < value:
            self._judge(self._next, fault)

    def _judge(self, entry: Entry, fault: str) -> None:
        """Take `entry`, and report it if it has a fault."""
        if fault:
            self._find(self._expected(entry), fault, entry.offset)
        self.last = entry
        self._report.counts.index_entries += 1
        self._next = next(self._entries, None)

    def _expected(self, entry: Entry) -> str:
        raise NotImplementedError

    def _find(self, expected: str, found: str, offset: int | None = None) -> None:
        self._report.find(self._path, offset=offset, expected=expected, found=found)


class OffsetIndexCheck(_IndexCheck[OffsetPosition]):
    """Every entry leads to the batch that ends with its offset; offsets and positions rise."""

    def on_batch(self, header: BatchHeader, position: int) -> None:
        self._take_below(position, "none begins there")
        if self._next is not None and self._next.position == position:
            is_right = self._next.offset == header.last_offset
            self._judge(self._next, "" if is_right else f"one that ends with offset {header.last_offset}")

    def skip_to(self, position: int, _offset: int) -> None:
        """The log is damaged up to `position`."""
        self._take_below(position)

    def finish(self, log_bytes: int) -> None:
        """The log ended after `log_bytes`."""
        self._take_below(float("inf"), f"the end of the log at {log_bytes}")

    def _expected(self, entry: OffsetPosition) -> str:
        return f"a batch at position {entry.position} that ends with offset {entry.offset}"


class TimeIndexCheck(_IndexCheck[TimestampOffset]):
    """Every entry has the batch that raised the largest timestamp to the entry's; both values rise."""

    _largest_ms = NO_TIMESTAMP

    def on_batch(self, header: BatchHeader, _position: int) -> None:
        self._largest_ms = max(self._largest_ms, header.max_timestamp_ms)
        self._take_below(header.base_offset, "no batch has that offset")
        entry, fault = self._next, ""
        if entry is None or entry.offset > header.last_offset:
            return
        if entry.offset != header.last_offset:
            fault = f"a batch that ends with offset {header.last_offset}"
        elif not entry.timestamp_ms == header.max_timestamp_ms == self._largest_ms:
            fault = f"{header.max_timestamp_ms} there, {self._largest_ms} up to there"
        self._judge(entry, fault)

    def skip_to(self, _position: int, offset: int) -> None:
        """The log is damaged up to `offset`, so the largest timestamp of that range is known only from entries."""
        self._take_below(offset)
        self._largest_ms = max(self._largest_ms, self._last_ms)

    def finish(self, *, must_end_with_largest: bool) -> None:
        """The log has ended. The last entry of an inactive segment is its largest timestamp."""
        self._take_below(float("inf"), "the log ends before it")
        if must_end_with_largest and self._last_ms < self._largest_ms:
            self._find(f"a last entry with timestamp {self._largest_ms}", str(self._last_ms))

    @property
    def _last_ms(self) -> int:
        return NO_TIMESTAMP if self.last is None else self.last.timestamp_ms

    def _expected(self, entry: TimestampOffset) -> str:
        return f"timestamp {entry.timestamp_ms} in the batch that ends with offset {entry.offset}"


class TransactionIndexCheck:
    """Each aborted transaction of the segment has an entry, and each entry an aborted transaction."""

    def __init__(self, path: Path, entries: Iterable[AbortedTxn], report: Report) -> None:
        self._path = path
        self._entries = {entry.last_offset: entry for entry in entries}
        self._report = report
        report.counts.index_entries += len(self._entries)

    def on_abort(
        self, header: BatchHeader, derived: AbortedTxn | None, *, is_thinned: bool, may_be_missing: bool
    ) -> None:
        """The log has an ABORT marker, in the batch with `header`; `derived` is the entry that the log implies.

        None if the transaction had no data, or compaction has removed all of it; an entry is then optional. With
        `is_thinned` batches are missing, so transactions may have begun earlier than the log tells: entries keep their
        offsets. An entry that `may_be_missing` is of an abort above the recovery point: the next start adds it.
        """
        producer_id, last_offset = header.producer_id, header.last_offset
        entry = self._entries.pop(last_offset, None)
        if entry is None:
            if derived is not None and not may_be_missing:
                self._find(last_offset, f"{derived}", "no entry: its records would be read as committed")
        elif entry.producer_id != producer_id:
            self._find(last_offset, f"an aborted transaction of producer {producer_id}", f"{entry}")
        elif derived is not None and entry != derived:
            is_earlier = (
                entry.first_offset <= derived.first_offset and entry.last_stable_offset <= derived.last_stable_offset
            )
            if not (is_thinned and is_earlier):
                self._find(last_offset, f"{derived}", f"{entry}")

    def skip_to(self, _position: int, offset: int) -> None:
        """The log is damaged up to `offset`."""
        self._entries = {last: entry for last, entry in self._entries.items() if last >= offset}

    def finish(self) -> None:
        """The log has ended."""
        for last_offset, entry in self._entries.items():
            self._find(last_offset, "a transaction that was aborted there", f"none, but {entry}")

    def _find(self, offset: int, expected: str, found: str) -> None:
        self._report.find(self._path, offset=offset, expected=expected, found=found)
