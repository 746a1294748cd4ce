"""The log against a list: whatever is appended, flushed, lost, cut or reopened, both hold the same records."""

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from truncating import truncate_fully, truncate_to
from unit.broker.storage.log_files import batch_of
from unit.broker.storage.log_room import QUICK, TINY, LogRoom, read_values
from unit.broker.storage.time_lookups import record_at
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.directory.data_dir import StoredState
from warmlog_broker.storage.log.flush_plan import FlushPlan
from warmlog_broker.storage.segment.segment_files import run_deletions
from warmlog_protocol.errors import OffsetOutOfRange

PRODUCER = 7
CONFIGS = [
    TINY,
    replace(TINY, segment_bytes=300, index_interval_bytes=0, segment_index_bytes=24),
    replace(TINY, segment_bytes=2000, preallocate=True),
]


class LogMachine(RuleBasedStateMachine):
    """`records` is what the log must hold from offset 0 on, None for a gap; `boundaries` are batches' ends.

    `flushed` is the recovery point, `committed` the high watermark. `checkpoint` is what the data directory's files
    say of the log, which may be from long ago; a crash finds them as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.temporary = TemporaryDirectory(dir=QUICK)
        self.records: list[bytes | None] = []
        self.boundaries: list[int] = [0]
        self.times_ms: list[int | None] = []
        self.epochs: list[int | None] = []
        self.sent: list[tuple[int, int]] = []
        self.start = 0
        self.flushed = self.committed = 0
        self.plan: FlushPlan | None = None
        self.number = 0

    @initialize(config=st.sampled_from(CONFIGS))
    def open(self, config: LogConfig) -> None:
        self.room = LogRoom(Path(self.temporary.name), config)
        self.checkpoint = self.room.log.offsets

    def teardown(self) -> None:
        self.temporary.cleanup()

    def values(self, count: int) -> list[bytes]:
        self.number += count
        return [b"%d" % n for n in range(self.number - count, self.number)]

    def appended(self, values: list[bytes]) -> None:
        self.records.extend(values)
        self.boundaries.append(len(self.records))
        self.times_ms.extend([self.room.now_ms] * len(values))
        self.epochs.extend([self.room.leader_epoch] * len(values))

    def leave_out(self, count: int) -> None:
        """A gap."""
        self.records.extend([None] * count)
        self.times_ms.extend([None] * count)
        self.epochs.extend([None] * count)

    @rule(batches=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 0, 1, 5])), max_size=4))
    def append_as_follower(self, batches: list[tuple[int, int]]) -> None:
        """Batches of so many records with gaps before some of them, in one buffer that ends with a piece of another."""
        parts = []
        for count, gap in batches:
            values = self.values(count + 1)
            self.leave_out(gap)
            parts.append(
                batch_of(
                    [value.decode() for value in values],
                    offset=len(self.records),
                    timestamps_ms=self.room.now_ms,
                    leader_epoch=self.room.leader_epoch,
                )
            )
            self.appended(values)
        info = self.room.log.follower.append(b"".join(parts) + bytes(20), now_ms=self.room.now_ms)
        assert info.last_offset == len(self.records) - 1

    def cut(self, end: int) -> None:
        """What is at `end` and after it was never there."""
        self.records = self.records[:end]
        self.times_ms = self.times_ms[:end]
        self.epochs = self.epochs[:end]
        self.boundaries = [offset for offset in self.boundaries if offset <= end]
        self.sent = [(offset, count) for offset, count in self.sent if offset < end]

    @rule(count=st.integers(1, 4), rows=st.booleans())
    def append(self, count: int, rows: bool) -> None:
        values = self.values(count)
        info = self.room.append(*values, rows=rows)
        assert info[:2] == (len(self.records), len(self.records) + count - 1)
        self.appended(values)

    @rule(count=st.integers(1, 3))
    def send_with_producer(self, count: int) -> None:
        sequence = sum(batch_count for _, batch_count in self.sent)
        values = self.values(count)
        info = self.room.append(*values, producer=(PRODUCER, 0, sequence))
        assert not info.is_duplicate
        self.sent.append((info.first_offset, count))
        self.appended(values)

    @precondition(lambda self: self.sent)
    @rule(back=st.integers(1, 8))
    def send_again(self, back: int) -> None:
        place = max(len(self.sent) - back, 0)
        offset, count = self.sent[place]
        if offset < self.start:
            return
        sequence = sum(batch_count for _, batch_count in self.sent[:place])
        info = self.room.append(*[b"again"] * count, producer=(PRODUCER, 0, sequence))
        assert info[:2] == (offset, offset + count - 1)
        assert info.is_duplicate

    @rule(milliseconds=st.integers(1, 5000))
    def time_passes(self, milliseconds: int) -> None:
        self.room.now_ms += milliseconds
        run_deletions(self.room.log.local.take_due_deletions(self.room.now_ms))

    @rule()
    def flush(self) -> None:
        self.finish_flush()
        self.room.flush()
        self.flushed = self.committed = len(self.records)

    @rule()
    def begin_flush(self) -> None:
        if self.plan is None:
            self.plan = self.room.log.flusher.prepare()

    @rule()
    def finish_flush(self) -> None:
        plan, self.plan = self.plan, None
        if plan is None:
            return
        plan.run()
        before, self.flushed = self.flushed, self.room.log.flusher.mark_flushed(plan)
        assert before <= self.flushed <= len(self.records)
        self.committed = max(self.committed, self.room.log.bounds.raise_high_watermark(self.flushed))

    @rule()
    def roll(self) -> None:
        self.room.log.local.roll(self.room.now_ms)

    @rule()
    def restart(self) -> None:
        self.finish_flush()
        self.room.restart()
        self.checkpoint = self.room.log.offsets
        self.flushed = self.committed = len(self.records)
        assert self.room.log.recovery_report.is_uneventful
        assert self.room.log.recovery_report.was_clean

    @rule()
    def write_checkpoint(self) -> None:
        self.checkpoint = self.room.log.offsets
        self.room.log.truncation.checkpointed(self.checkpoint)

    @rule()
    def another_leader(self) -> None:
        self.room.leader_epoch += 1

    @rule()
    def crash(self) -> None:
        """All files are as they were left."""
        self.crashed(len(self.records))

    def crashed(self, end: int) -> None:
        self.plan = None
        self.room.stored = StoredState(self.checkpoint, None)
        log = self.room.open()
        assert log.recovery_report.damage == []
        self.cut(end)
        self.flushed = self.committed = end
        assert log.log_start_offset <= self.start
        self.start = log.log_start_offset

    @rule(part=st.floats(0, 1.2))
    def truncate(self, part: float) -> None:
        """To an offset between the start and a little after the end; the batch that holds it is removed as a whole."""
        log = self.room.log
        offset = int(part * (len(self.records) + 1))
        bases = [base for base in log.local.segments.base_offsets if base <= offset]
        is_cut = truncate_to(log, offset, self.room.now_ms)
        assert is_cut == (offset < len(self.records))
        if is_cut:
            ends = [end for end in self.boundaries if end <= offset]
            self.truncated(max(bases[0], *ends) if bases else offset)

    def truncated(self, end: int) -> None:
        self.cut(end)
        self.boundaries.append(end)
        self.start = min(self.start, end)
        self.flushed = end
        self.committed = min(self.committed, end)

    @rule(offset=st.integers(0, 200))
    def begin_anew(self, offset: int) -> None:
        truncate_fully(self.room.log, offset, self.room.now_ms)
        self.cut(offset)
        self.leave_out(offset - len(self.records))
        self.boundaries, self.sent = [offset], []
        self.start = self.flushed = self.committed = offset

    @rule(keep=st.floats(0, 1), tail=st.sampled_from([b"", b"\0" * 50, b"torn", b"\xff" * 70]))
    def crash_and_lose_what_was_not_flushed(self, keep: float, tail: bytes) -> None:
        """Batches from some point above the recovery point on are gone; the last file may end with garbage."""
        survivors = [offset for offset in self.boundaries if offset >= self.flushed]
        end = survivors[min(int(keep * len(survivors)), len(survivors) - 1)]
        self.room.lose_from(end, tail)
        self.crashed(end)

    @rule(part=st.floats(0, 1))
    def give_up_the_beginning(self, part: float) -> None:
        offset = int(part * self.room.log.high_watermark)
        if self.room.log.bounds.raise_log_start(offset):
            self.start = offset
        self.room.log.retention.delete_old_segments(self.room.now_ms)

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        """Not durable before the checkpoint is written, as it is before anybody is told."""
        offset = int(part * self.room.log.high_watermark)
        self.start = max(self.start, offset)
        assert self.room.log.retention.delete_records(offset) == self.start
        self.write_checkpoint()

    @rule(retention_ms=st.integers(0, 6000))
    def retain_by_time(self, retention_ms: int) -> None:
        self.room.set_config(retention_ms=retention_ms)
        self.room.log.retention.delete_old_segments(self.room.now_ms)
        self.room.set_config(retention_ms=UNLIMITED)
        start = self.room.log.log_start_offset
        assert self.start <= start <= self.flushed
        given_up = [time_ms for time_ms in self.times_ms[self.start : start] if time_ms is not None]
        assert all(self.room.now_ms - time_ms > retention_ms for time_ms in given_up)
        self.start = start

    @rule(retention_bytes=st.integers(0, 3000))
    def retain_by_size(self, retention_bytes: int) -> None:
        size = self.room.log.local.segments.size_bytes
        self.room.set_config(retention_bytes=retention_bytes)
        self.room.log.retention.delete_old_segments(self.room.now_ms)
        self.room.set_config(retention_bytes=UNLIMITED)
        assert (
            self.room.log.local.segments.size_bytes >= min(size, retention_bytes)
            or self.room.log.log_start_offset == self.start
        )
        self.start = self.room.log.log_start_offset

    @rule(data=st.data())
    def read_somewhere(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, len(self.records)))
        assert read_values(self.room.log, offset) == self.there(offset, len(self.records))
        committed = read_values(self.room.log, offset, bound="high_watermark")
        assert committed == self.there(offset, self.committed)

    def there(self, first: int, end: int) -> list[bytes]:
        return [value for value in self.records[first:end] if value is not None]

    @precondition(lambda self: self.start)
    @rule()
    def read_below_the_start(self) -> None:
        try:
            self.room.log.reader.read(self.start - 1, 100)
        except OffsetOutOfRange:
            return
        raise AssertionError("an offset below the start was served")

    @rule(data=st.data())
    def look_up_a_time(self, data: st.DataObject) -> None:
        times = [(n, t) for n, t in enumerate(self.times_ms) if n >= self.start and t is not None]
        some_time = data.draw(st.sampled_from([*(time_ms for _, time_ms in times), self.room.now_ms + 1]))
        wanted = some_time - data.draw(st.integers(0, 3))
        found = record_at(self.room.log, wanted)
        expected = next((offset for offset, time_ms in times if time_ms >= wanted), None)
        assert (found.offset if found else None) == expected

    @invariant()
    def ends_agree(self) -> None:
        if not hasattr(self, "room"):
            return
        log = self.room.log
        assert log.log_end_offset == len(self.records)
        assert log.log_start_offset == self.start
        assert log.recovery_point == self.flushed
        assert log.high_watermark == max(self.committed, self.start)
        assert self.start <= log.high_watermark <= len(self.records)
        for offset in range(self.start, len(self.records)):
            assert self.epochs[offset] in (None, log.epochs.epoch_at(offset))


def test_a_log_that_is_cut_behind_a_gap_ends_before_the_gap() -> None:
    log = LogMachine()
    log.open(TINY)
    log.append(1, False)
    log.append_as_follower([(0, 0), (0, 0), (0, 0), (0, 1)])
    log.truncate(0.75)
    for happens in (log.ends_agree, log.crash, log.ends_agree):
        happens()
        assert read_values(log.room.log, 3) == log.there(3, 4)
    log.teardown()


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLogAgainstAList = LogMachine.TestCase
