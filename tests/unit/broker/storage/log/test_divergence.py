"""A reader is told that the log was cut under it exactly when what it read last is not in the log any more."""

from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from present import present
from unit.broker.storage.cleaner.compaction_room import CompactionRoom
from unit.broker.storage.log_room import QUICK, LogRoom, read_batches
from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME

EPOCH_POSITION = 12
"""Where a batch's header has its leader epoch."""


class Reader(NamedTuple):
    """A position, the epoch that is known there, and what the log held before it when it was read."""

    offset: int
    epoch: int
    seen: tuple[int, ...]


class CutLog:
    """A log that is appended to, read, cut and made smaller, and its readers.

    `history` has a number for each offset, another one for each append: also where compaction has removed the record.
    Each step takes a number from 0 to 4, which says how much.
    """

    def __init__(self, root: Path, *, loses_epochs: bool) -> None:
        self.room = CompactionRoom(root)
        self.room.set_config(cleanup_policy="compact,delete", write_caching=True)
        self.loses_epochs = loses_epochs
        self.is_compacted = False
        self.history: list[int] = []
        self.boundaries = [0]
        self.readers: list[Reader] = []
        self.number = 0
        self.start_serving()

    def start_serving(self) -> None:
        """What a broker does with a log that it has loaded."""
        log = self.room.log
        log.bounds.raise_high_watermark(log.log_end_offset)
        if self.room.leader_epoch > log.epochs.latest_epoch:
            log.begin_epoch(self.room.leader_epoch)

    def append(self, count: int) -> None:
        for records in range(1, count + 2):
            self.number += 1
            self.room.put(*[(b"%d" % key, b"%d" % self.number) for key in range(records)], rows=count == 3)
            self.history += [self.number] * records
            self.boundaries.append(len(self.history))

    def append_and_read(self, count: int) -> None:
        self.append(count)
        self.readers.append(Reader(len(self.history), self.room.leader_epoch, tuple(self.history)))

    def read(self, part: int) -> None:
        """From somewhere on, one batch."""
        log = self.room.log
        offset = log.log_start_offset + (log.log_end_offset - log.log_start_offset) * part // 5
        for batch in read_batches(log, offset)[:1]:
            epoch, end = batch.header.partition_leader_epoch, batch.next_offset
            self.readers.append(Reader(end, epoch, tuple(self.history[:end])))

    def ask_for_the_end(self, _: int) -> None:
        """A consumer that starts at the latest offset."""
        latest = self.room.log.reader.latest()
        self.readers.append(Reader(latest.offset, latest.leader_epoch, tuple(self.history)))

    def flush(self, _: int) -> None:
        self.room.flush()

    def compact(self, _: int) -> None:
        self.room.roll()
        self.room.compact()
        self.is_compacted = True

    def give_up_the_beginning(self, part: int) -> None:
        self.room.log.bounds.raise_log_start(self.room.log.high_watermark * part // 4)
        self.room.log.retention.delete_old_segments(self.room.now_ms)

    def stop_cleanly_and_start(self, _: int) -> None:
        self.room.restart()
        self.start_serving()

    def lose_power(self, lost_batches: int) -> None:
        """So many batches that were not flushed are gone; where `loses_epochs`, the file of the leader epochs, too."""
        recovery_point = self.room.log.recovery_point
        survivors = [recovery_point, *(offset for offset in self.boundaries if offset > recovery_point)]
        self.room.lose_from(survivors[max(-1 - lost_batches, -len(survivors))])
        if self.loses_epochs:
            (self.room.directory / EPOCHS_NAME).unlink(missing_ok=True)
        self.room.leader_epoch += 1
        end = self.room.crash().log_end_offset
        self.start_serving()
        del self.history[end:]
        self.boundaries = [offset for offset in self.boundaries if offset < end] + [end]

    def check(self) -> None:
        """AssertionError where a reader is told wrongly, or is not told."""
        log = self.room.log
        for reader in self.readers:
            found = log.reader.divergence(reader.offset, reader.epoch)
            common = _common(reader.seen, self.history)
            is_cut = common < reader.offset and reader.offset > log.log_start_offset
            if self.loses_epochs and self.is_compacted:  # epochs whose batches are gone are not known any more
                assert found is None or is_cut, (reader, log.epochs.entries)
            else:
                assert (found is not None) == is_cut, (reader, log.epochs.entries)
                assert found is None or found.end_offset == max(common, log.log_start_offset)


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many numbers both begin with."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


STEPS: list[Callable[[CutLog, int], None]] = [
    *[CutLog.append_and_read, CutLog.lose_power] * 3,
    *[CutLog.append, CutLog.read] * 2,
    CutLog.ask_for_the_end,
    CutLog.flush,
    CutLog.compact,
    CutLog.give_up_the_beginning,
    CutLog.stop_cleanly_and_start,
]


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 4)), min_size=4, max_size=40), st.booleans())
@settings(max_examples=150, deadline=None)
def test_readers_are_told_exactly_when_what_they_read_is_gone(
    steps: list[tuple[Callable[[CutLog, int], None], int]], loses_epochs: bool
) -> None:
    with TemporaryDirectory(dir=QUICK) as root:
        log = CutLog(Path(root), loses_epochs=loses_epochs)
        for step, number in steps:
            step(log, number)
            log.check()
        log.room.log.fail("the test is over")


def test_the_epoch_of_what_a_crash_left_unflushed_is_known_after_the_next_one() -> None:
    with TemporaryDirectory(dir=QUICK) as root:
        log = CutLog(Path(root), loses_epochs=False)
        log.append(0)
        log.flush(0)
        log.append_and_read(4)
        log.lose_power(1)
        log.append(2)
        log.room.log.local.roll(log.room.now_ms)
        log.append(0)
        for lost_batches in (1, 0):
            log.lose_power(lost_batches)
            log.check()
        log.room.log.fail("the test is over")


@pytest.fixture
def room(tmp_path: Path) -> LogRoom:
    room = LogRoom(tmp_path)
    room.set_config(write_caching=True)
    return room


def test_a_damaged_epoch_in_a_batch_is_no_divergence_for_who_reads_it(room: LogRoom) -> None:
    """No CRC covers it: readers get it as it is."""
    for epoch in range(3):
        room.leader_epoch = epoch
        room.fill(2)
    for base_offset in range(6):
        for bit in range(32):
            damage_epoch(room, base_offset, bit)
            (header,) = [batch.header for batch in read_batches(room.log, base_offset)][:1]
            assert room.log.reader.divergence(base_offset + 1, header.partition_leader_epoch) is None
            damage_epoch(room, base_offset, bit)
    assert room.log.reader.divergence(2, 1 << 20) == (-1, -1), "an epoch that the log never had"


def damage_epoch(room: LogRoom, base_offset: int, bit: int) -> None:
    segment = present(room.log.local.segments.floor(base_offset))
    found = present(segment.lookup.find_batch(base_offset))
    with segment.path.open("r+b") as file:
        file.seek(found.position + EPOCH_POSITION)
        damaged = int.from_bytes(file.read(4), "big") ^ 1 << bit
        file.seek(found.position + EPOCH_POSITION)
        file.write(damaged.to_bytes(4, "big"))


def test_what_lies_before_the_log_start_does_not_count(room: LogRoom) -> None:
    room.fill(4)
    room.log.bounds.raise_log_start(3)
    assert room.log.reader.divergence(2, 7) is None, "the read is refused as out of range"
    assert room.log.reader.divergence(3, 0) is None
