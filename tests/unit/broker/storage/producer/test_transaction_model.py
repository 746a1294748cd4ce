"""Transactions of several producers in a log of tiny segments, against a list of what was appended.

Interleaved with rolls, high watermarks that lag, truncation, retention, clean restarts, and crashes that lose a part of
what was not flushed, or the side files of it. After each step the log must say of itself what the list says: what is
stable, what was aborted, and what a reader of committed data gets from anywhere.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from truncating import truncate_to
from unit.broker.storage.log_room import QUICK, LogRoom
from unit.broker.storage.transactions_room import index_entries, read_committed
from warmlog_broker.storage.index.transaction_index import AbortedTxn

NOBODY = 0
PRODUCERS = (1, 2, 3)
producers = st.sampled_from(PRODUCERS)


class Written(NamedTuple):
    """A batch in the list. Markers have no values."""

    first_offset: int
    last_offset: int
    producer_id: int
    values: tuple[bytes, ...]
    commits: bool = False

    @property
    def is_marker(self) -> bool:
        return self.producer_id != NOBODY and not self.values


class Transaction(NamedTuple):
    """`last_offset` is that of the marker; -1 while there is none."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


def transactions_in(written: list[Written]) -> list[Transaction]:
    """In the order of their markers, the open ones last."""
    is_open: dict[int, int] = {}
    ended = []
    for batch in written:
        if batch.producer_id == NOBODY:
            continue
        if not batch.is_marker:
            is_open.setdefault(batch.producer_id, batch.first_offset)
        elif batch.producer_id in is_open:
            first_offset = is_open.pop(batch.producer_id)
            ended.append(Transaction(batch.producer_id, first_offset, batch.first_offset, not batch.commits))
    return ended + [Transaction(producer_id, first, -1, False) for producer_id, first in is_open.items()]


class TransactionsInALog(RuleBasedStateMachine):
    """`written` is the list, without what truncation and crashes took; `high_watermark` what may be read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.holder = TemporaryDirectory(prefix="warmlog-", dir=QUICK)
        self.room: LogRoom
        self.written: list[Written] = []
        self.high_watermark = 0
        self.log_start_offset = 0
        self.number = 0

    @initialize(segment_bytes=st.sampled_from([260, 400, 1000, 100_000]))
    def open(self, segment_bytes: int) -> None:
        self.room = LogRoom(Path(self.holder.name))
        self.room.set_config(segment_bytes=segment_bytes, index_interval_bytes=50)

    def teardown(self) -> None:
        self.room.log.fail("the test is over")
        self.holder.cleanup()

    @property
    def end_offset(self) -> int:
        return self.written[-1].last_offset + 1 if self.written else 0

    def _values(self, count: int) -> tuple[bytes, ...]:
        self.number += 1
        return tuple(b"%d-%d" % (self.number, n) for n in range(count))

    # Appending

    @rule(count=st.integers(1, 3))
    def append_outside_of_transactions(self, count: int) -> None:
        values = self._values(count)
        info = self.room.append(*values)
        assert info.first_offset == self.end_offset
        self.written.append(Written(info.first_offset, info.last_offset, NOBODY, values))

    @rule(producer_id=producers, count=st.integers(1, 4), rows=st.booleans())
    def send(self, producer_id: int, count: int, rows: bool) -> None:
        values = self._values(count)
        sequence = sum(len(batch.values) for batch in self.written if batch.producer_id == producer_id)
        info = self.room.append_in_transaction(*values, producer=(producer_id, 0, sequence), rows=rows)
        assert not info.is_duplicate
        self.written.append(Written(info.first_offset, info.last_offset, producer_id, values))

    @rule(producer_id=producers, commits=st.booleans())
    def end(self, producer_id: int, commits: bool) -> None:
        info = self.room.end_transaction(producer_id, commits=commits)
        self.written.append(Written(info.first_offset, info.last_offset, producer_id, (), commits))

    # What moves

    @rule()
    def flush(self) -> None:
        self.high_watermark = self.room.flush()
        assert self.high_watermark == self.end_offset

    @rule(share=st.floats(0, 1))
    def raise_high_watermark(self, share: float) -> None:
        ends = [batch.last_offset + 1 for batch in self.written if batch.last_offset >= self.high_watermark]
        if ends:
            offset = ends[int(share * (len(ends) - 1))]
            self.high_watermark = self.room.log.bounds.raise_high_watermark(offset)
            assert self.high_watermark == offset

    @rule()
    @precondition(lambda self: self.written and self.room.log.local.active.size_bytes)
    def roll(self) -> None:
        self.room.log.local.roll(self.room.now_ms)

    @rule(share=st.floats(0, 1))
    @precondition(lambda self: self.written)
    def truncate(self, share: float) -> None:
        offset = int(self.log_start_offset + share * (self.end_offset - self.log_start_offset))
        truncate_to(self.room.log, offset, self.room.now_ms)
        self._lose_from(offset)

    @rule(share=st.floats(0, 1))
    def give_up_the_beginning(self, share: float) -> None:
        offset = int(self.log_start_offset + share * (self.high_watermark - self.log_start_offset) / 2)
        self.room.log.bounds.raise_log_start(offset)
        self.room.log.retention.delete_old_segments(self.room.now_ms)
        self.log_start_offset = self.room.log.log_start_offset
        assert self.log_start_offset >= offset

    # Ends and new beginnings

    @rule(loses_indexes=st.booleans())
    def restart(self, loses_indexes: bool) -> None:
        self._checkpoint()
        self.room.close()
        if loses_indexes:
            self._remove_side_files(0)
        self._reopen()

    @rule(loses_indexes=st.booleans())
    def crash(self, loses_indexes: bool) -> None:
        if loses_indexes:
            self._remove_side_files(self.room.log.recovery_point)
        self._checkpoint()
        self.room.crash()
        self.high_watermark = self.room.log.high_watermark
        assert self.high_watermark == self.end_offset

    @rule(share=st.floats(0, 1), torn_bytes=st.integers(0, 20))
    def crash_and_lose_a_part_of_what_was_not_flushed(self, share: float, torn_bytes: int) -> None:
        log = self.room.log
        active = log.local.active
        kept = max(log.recovery_point, self.log_start_offset)
        headers = [(header, at) for header, at in active.records.batches() if header.base_offset >= kept]
        if headers:
            header, position = headers[int(share * (len(headers) - 1))]
            os.truncate(active.path, position + torn_bytes)
            self._lose_from(header.base_offset)
        self._checkpoint()
        self.room.crash()
        self.high_watermark = self.room.log.high_watermark
        assert self.high_watermark == self.room.log.log_end_offset

    def _checkpoint(self) -> None:
        """The checkpoints that the next opening is given hold this: a truncation before need not be remembered."""
        self.room.log.truncation.checkpointed(self.room.log.offsets)

    def _reopen(self) -> None:
        self.room.open()
        self.high_watermark = self.room.log.high_watermark

    def _lose_from(self, offset: int) -> None:
        self.written = [batch for batch in self.written if batch.last_offset < offset]
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self.log_start_offset = min(self.log_start_offset, self.end_offset)

    def _remove_side_files(self, recovery_point: int) -> None:
        """Of all segments that end above `recovery_point`; all of them for 0."""
        bases = [int(name[:20]) for name in self.room.files(".log")]
        for base_offset, following in zip(bases, [*bases[1:], self.end_offset + 1], strict=True):
            if following > recovery_point:
                for kind in (".index", ".txnindex"):
                    self.room.segment_path(base_offset, kind).unlink(missing_ok=True)

    # What must be true

    @invariant()
    def the_stable_offset_is_what_the_list_says(self) -> None:
        unstable = [
            transaction.first_offset
            for transaction in transactions_in(self.written)
            if transaction.last_offset == -1 or transaction.last_offset >= self.high_watermark
        ]
        expected = min(self.high_watermark, max(min(unstable, default=self.high_watermark), self.log_start_offset))
        log = self.room.log
        assert log.log_end_offset == self.end_offset
        assert log.bounds.last_stable_offset == expected
        assert log.bounds.end_of("committed").offset == log.reader.latest("committed").offset == expected

    @invariant()
    def readers_of_committed_data_get_what_was_committed(self) -> None:
        log = self.room.log
        aborted = {
            batch.first_offset
            for transaction in transactions_in(self.written)
            if transaction.is_aborted
            for batch in self.written
            if batch.producer_id == transaction.producer_id
            and transaction.first_offset <= batch.first_offset < transaction.last_offset
        }
        stable = log.bounds.last_stable_offset
        span = max(stable - self.log_start_offset, 1)
        for step in range(3):
            start = self.log_start_offset + self.number * (7 + step) % span
            expected = [
                value
                for batch in self.written
                if batch.first_offset not in aborted
                for offset, value in enumerate(batch.values, batch.first_offset)
                if start <= offset < stable
            ]
            assert read_committed(self.room, min(start, stable), (1, 300, 1 << 20)[step]) == expected

    @invariant()
    def the_indexes_hold_what_was_aborted(self) -> None:
        for segment in self.room.log.local.segments:
            self.room.log.local.load_transaction_index(segment)
        first_base = self.room.log.local.segments.base_offsets[0]
        is_open: dict[int, int] = {}
        expected = []
        for batch in self.written:
            if batch.producer_id == NOBODY:
                continue
            if not batch.is_marker:
                is_open.setdefault(batch.producer_id, batch.first_offset)
            elif batch.producer_id in is_open:
                first_offset = is_open.pop(batch.producer_id)
                stable = min(is_open.values(), default=batch.last_offset + 1)
                if not batch.commits and batch.first_offset >= first_base:
                    expected.append(AbortedTxn(batch.producer_id, first_offset, batch.first_offset, stable))
        assert index_entries(self.room) == expected


TestTransactionsInALog = TransactionsInALog.TestCase
# Without shrinking, which takes minutes here: the steps that fail are few enough to be read.
TestTransactionsInALog.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
