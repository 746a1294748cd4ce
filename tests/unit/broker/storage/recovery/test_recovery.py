"""Unclean stops: write, damage, expect, and go on appending."""

import errno
import operator
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from present import present
from unit.broker.storage.log_room import QUICK, TINY, LogRoom, make_batch, read_batches, read_values
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.segment.file_records import DamagedLog
from warmlog_protocol.batch import RecordBatch
from warmlog_protocol.errors import CorruptBatch, StorageError

ONE_SEGMENT = LogConfig(retention_ms=UNLIMITED, index_interval_bytes=100)
BATCH = len(make_batch(b"value-0"))


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    return LogRoom(quick_path, ONE_SEGMENT)


def values(count: int) -> list[bytes | None]:
    return [b"value-%d" % n for n in range(count)]


def fill(room: LogRoom, flushed: int, unflushed: int = 0) -> None:
    """Batches of one record `value-N`; the first `flushed` of them are below the recovery point."""
    for n in range(flushed):
        room.append(b"value-%d" % n)
    room.flush()
    for n in range(flushed, flushed + unflushed):
        room.append(b"value-%d" % n)


def expect(room: LogRoom, count: int) -> None:
    """The log holds exactly the first `count` values and goes on from there, now and after a clean restart."""
    assert room.log.log_end_offset == count
    assert read_values(room.log) == values(count)
    assert room.log.recovery_point == room.log.high_watermark == count
    assert room.append(b"value-%d" % count).first_offset == count
    room.flush()
    assert read_values(room.restart()) == values(count + 1)
    assert room.log.recovery_report.is_uneventful


def change(path: Path, edit: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    edit(content)
    path.write_bytes(content)


class TestAboveTheRecoveryPoint:
    def test_whole_batches_that_were_not_flushed_are_kept(self, room: LogRoom) -> None:
        fill(room, 3, 4)
        room.crash()
        assert room.log.recovery_report.is_uneventful
        assert room.log.recovery_report.checked_batches == 7
        expect(room, 7)

    @pytest.mark.parametrize("left", range(BATCH))
    def test_a_batch_cut_anywhere_goes_and_what_was_there_of_it_is_kept_aside(
        self, quick_path: Path, left: int
    ) -> None:
        room = LogRoom(quick_path, ONE_SEGMENT)
        fill(room, 2, 2)
        whole = room.segment_path(0).read_bytes()
        os.truncate(room.segment_path(0), 3 * BATCH + left)
        room.crash()
        report = room.log.recovery_report
        assert report.cut_bytes == left
        assert bool(report.cut_reasons) == bool(left)
        kept = whole[3 * BATCH :][:left].rstrip(b"\0")
        assert [path.read_bytes() for path in report.kept_aside] == ([kept] if kept else [])
        expect(room, 3)

    @pytest.mark.parametrize("tail", [bytes(1), bytes(61), bytes(10_000)])
    def test_zeros_at_the_end_are_cut_and_not_worth_keeping(self, room: LogRoom, tail: bytes) -> None:
        fill(room, 2, 1)
        change(room.segment_path(0), lambda content: content.extend(tail))
        room.crash()
        assert room.log.recovery_report.cut_bytes == len(tail)
        assert room.log.recovery_report.kept_aside == []
        expect(room, 3)

    @pytest.mark.parametrize("tail", [b"x", b"garbage" * 100, make_batch(b"old data"), bytes(60) + b"\xff" * 61])
    def test_garbage_and_old_data_at_the_end_is_cut_and_kept_aside(self, room: LogRoom, tail: bytes) -> None:
        fill(room, 2, 1)
        change(room.segment_path(0), lambda content: content.extend(tail))
        room.crash()
        report = room.log.recovery_report
        assert report.cut_bytes == len(tail)
        (kept,) = report.kept_aside
        assert kept.name == f"{0:020d}.log.tail.cut"
        assert kept.read_bytes() == tail
        assert str(kept) in str(report)
        expect(room, 3)

    @pytest.mark.parametrize("position", range(BATCH))
    def test_a_flipped_bit_anywhere_cuts_the_batch_and_all_after_it(self, quick_path: Path, position: int) -> None:
        room = LogRoom(quick_path, ONE_SEGMENT)
        fill(room, 2, 3)

        def flip(content: bytearray) -> None:
            content[3 * BATCH + position] ^= 2

        change(room.segment_path(0), flip)
        room.stored = room.stored._replace(offsets=room.log.offsets)
        room.open(max_leader_epoch=0)
        assert room.log.recovery_report.cut_bytes == 2 * BATCH
        assert len(room.log.recovery_report.kept_aside) == 1
        expect(room, 3)

    def test_later_segments_are_set_aside_and_not_deleted(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, TINY)
        fill(room, 2, 20)
        damaged = room.log.local.segments.base_offsets[2]
        later = room.log.local.segments.base_offsets[3:]
        contents = [room.segment_path(base).read_bytes() for base in later]
        change(room.segment_path(damaged), lambda content: content.__setitem__(slice(-3, None), b"xxx"))
        room.crash()
        kept = [path for path in room.log.recovery_report.kept_aside if "tail" not in path.name]
        assert [path.name for path in kept] == [f"{base:020d}.log.cut" for base in later]
        assert [path.read_bytes() for path in kept] == contents
        assert room.log.log_end_offset == later[0] - 1
        expect(room, later[0] - 1)

    def test_a_segment_that_does_not_follow_the_one_before_is_set_aside(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, TINY)
        fill(room, 2, 20)
        first, second, *_ = room.log.local.segments.base_offsets
        os.truncate(room.segment_path(first), BATCH * (second - 1))
        room.crash()
        assert f"segment {second} does not follow offset {second - 1}" in str(room.log.recovery_report)
        expect(room, second - 1)

    def test_what_is_kept_aside_never_overwrites_what_was(self, room: LogRoom) -> None:
        fill(room, 1)
        for garbage in (b"first", b"second", b"third"):
            change(room.segment_path(0), lambda content, garbage=garbage: content.extend(garbage))  # type: ignore[misc]
            room.crash()
        kept = [room.path(name).read_bytes() for name in room.files() if ".cut" in name]
        assert kept == [b"first", b"second", b"third"]
        expect(room, 1)

    def test_a_leader_epoch_that_fell_or_that_never_was_is_damage(self, room: LogRoom) -> None:
        room.leader_epoch = 5
        fill(room, 1, 1)

        def set_epoch(epoch: int) -> Callable[[bytearray], None]:
            return lambda content: content.__setitem__(slice(BATCH + 12, BATCH + 16), epoch.to_bytes(4, "big"))

        original = room.segment_path(0).read_bytes()
        room.stored = room.stored._replace(offsets=room.log.offsets)
        for epoch, kept in ((5, 2), (6, 2), (7, 1), (4, 1)):
            room.segment_path(0).write_bytes(original)
            change(room.segment_path(0), set_epoch(epoch))
            assert room.open(max_leader_epoch=6).log_end_offset == kept

    def test_the_files_are_synced_and_dropped_from_the_page_cache_before_they_are_read(
        self, room: LogRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(room, 1, 1)
        calls: list[str] = []
        fdatasync, fadvise, pread = os.fdatasync, os.posix_fadvise, os.pread

        def note_sync(descriptor: int) -> None:
            calls.append("sync")
            fdatasync(descriptor)

        def note_drop(descriptor: int, start: int, length: int, advice: int) -> None:
            calls.append(f"drop {start} {length} {advice}")
            fadvise(descriptor, start, length, advice)

        def note_read(descriptor: int, size: int, position: int) -> bytes:
            calls.append("read")
            return pread(descriptor, size, position)

        monkeypatch.setattr(os, "fdatasync", note_sync)
        monkeypatch.setattr(os, "posix_fadvise", note_drop)
        monkeypatch.setattr("warmlog_broker.storage.segment.file_records._pread", note_read)
        room.crash()
        assert calls[:3] == ["sync", f"drop 0 0 {os.POSIX_FADV_DONTNEED}", "read"]

    def test_a_disk_that_cannot_be_read_is_a_storage_error_and_nothing_is_cut(
        self, room: LogRoom, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill(room, 1, 1)
        content = room.segment_path(0).read_bytes()

        def refuse(*_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr("warmlog_broker.storage.segment.file_records._pread", refuse)
            with pytest.raises(StorageError, match="Input/output error"):
                room.crash()
        assert room.segment_path(0).read_bytes() == content
        room.open()
        expect(room, 2)


class TestBelowTheRecoveryPoint:
    def damage(self, room: LogRoom, offset: int, position: int, *, size: int = 1) -> None:
        def overwrite(content: bytearray) -> None:
            for at in range(offset * BATCH + position, offset * BATCH + position + size):
                content[at] ^= 0xFF

        change(room.segment_path(0), overwrite)

    @pytest.mark.parametrize("position", [p for p in range(BATCH) if not 12 <= p < 16])
    def test_damage_is_stepped_over_reported_and_answered_with_its_position(
        self, quick_path: Path, position: int
    ) -> None:
        room = LogRoom(quick_path, ONE_SEGMENT)
        fill(room, 8, 2)
        self.damage(room, 3, position)
        size = room.segment_path(0).stat().st_size
        room.crash()
        (found,) = room.log.recovery_report.damage
        assert (found.position, found.end_position) == (3 * BATCH, 4 * BATCH)
        assert (found.first_offset, found.next_offset) == (3, 4)
        assert room.log.recovery_report.cut_bytes == 0
        assert room.segment_path(0).stat().st_size == size
        with pytest.raises(CorruptBatch, match=rf"{3 * BATCH} to {4 * BATCH}"):
            room.log.reader.read(3, 1000)
        assert room.log.log_end_offset == 10
        assert read_values(room.log, 4) == values(10)[4:]
        assert [read_batches(room.log, n, max_bytes=1)[0].values() for n in range(3)] == [[v] for v in values(3)]
        assert room.append(b"value-10").first_offset == 10
        room.flush()
        room.restart()
        assert read_values(room.log, 4) == values(11)[4:]

    def test_damage_in_the_middle_does_not_protect_the_tail(self, room: LogRoom) -> None:
        fill(room, 8, 3)
        self.damage(room, 3, 70)
        self.damage(room, 9, 70)
        room.crash()
        assert room.log.log_end_offset == 9
        assert room.log.recovery_report.cut_bytes == 2 * BATCH + 1  # value-10 is longer
        assert read_values(room.log, 4) == values(9)[4:]

    def test_damage_over_several_batches_is_one_hole(self, room: LogRoom) -> None:
        fill(room, 8, 1)
        self.damage(room, 2, 5, size=3 * BATCH)
        room.crash()
        (found,) = room.log.recovery_report.damage
        assert (found.first_offset, found.next_offset) == (2, 6)
        assert read_values(room.log, 6) == values(9)[6:]
        for offset in (2, 3, 4, 5):
            with pytest.raises(CorruptBatch):
                room.log.reader.read(offset, 1000)

    def test_when_all_up_to_the_recovery_point_is_gone_offsets_are_not_given_out_again(self, room: LogRoom) -> None:
        fill(room, 8)
        self.damage(room, 5, 0, size=3 * BATCH)
        content = room.segment_path(0).read_bytes()
        room.crash()
        assert room.log.log_end_offset == 8
        assert room.segment_path(0).read_bytes() == content
        assert room.append(b"value-8").first_offset == 8
        assert read_values(room.log, 8) == [b"value-8"]
        for offset in (5, 6, 7):
            with pytest.raises(CorruptBatch):
                room.log.reader.read(offset, 1000, bound="log_end")
        room.flush()
        room.restart()
        assert read_values(room.log, 8) == [b"value-8"]
        with pytest.raises(CorruptBatch):
            room.log.reader.read(6, 1000)

    def test_a_file_that_became_shorter_is_damage_as_well(self, room: LogRoom) -> None:
        fill(room, 8)
        os.truncate(room.segment_path(0), 6 * BATCH)
        room.crash()
        (found,) = room.log.recovery_report.damage
        assert (found.first_offset, found.next_offset) == (6, 8)
        assert room.log.log_end_offset == 8
        with pytest.raises(CorruptBatch, match="the end of the segment is missing"):
            room.log.reader.read(6, 1000)
        room.append(b"value-8")
        room.flush()
        assert read_values(room.log, 8) == [b"value-8"]

    def test_a_leader_epoch_that_never_was_is_not_believed(self, room: LogRoom) -> None:
        fill(room, 4)
        change(room.segment_path(0), lambda content: content.__setitem__(2 * BATCH + 13, 1))
        room.crash()
        assert room.log.epochs.entries == ((0, 0),)
        expect(room, 4)

    def test_segments_wholly_below_are_not_read(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, TINY)
        fill(room, 30, 2)
        change(room.segment_path(0), lambda content: content.__setitem__(BATCH + 20, 0))
        room.crash()
        assert room.log.recovery_report.is_uneventful
        assert room.log.recovery_report.checked_batches < 8
        change(room.segment_path(0), lambda content: content.__setitem__(BATCH + 16, 9))
        with pytest.raises(DamagedLog) as damaged:
            room.log.reader.read(1, 1000)
        assert damaged.value.position == BATCH

    def test_without_a_checkpoint_everything_is_checked(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, TINY)
        fill(room, 30, 2)
        room.crash(recovery_point=0)
        assert room.log.recovery_report.checked_batches == 32
        expect(room, 32)


Edit = tuple[str, float, int]


def edits() -> st.SearchStrategy[list[Edit]]:
    """What happens to the log files, at which part of all their bytes, and how much of it."""
    kinds = st.sampled_from(["flip", "flip", "zeros", "ones", "cut", "lose"])
    return st.lists(st.tuples(kinds, st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4)


def apply_edit(paths: list[Path], edit: Edit) -> None:
    kind, where, amount = edit
    at = int(where * sum(path.stat().st_size for path in paths if path.exists()))
    for path in paths:
        size = path.stat().st_size if path.exists() else 0
        if at < size:
            break
        at -= size
    else:
        return
    content = bytearray(path.read_bytes())
    if kind == "lose":
        path.unlink()
        return
    if kind == "cut":
        del content[at:]
    elif kind == "flip":
        content[at] ^= amount
    else:
        end = min(at + amount, size)
        content[at:end] = (b"\0" if kind == "zeros" else b"\xff") * (end - at)
    path.write_bytes(content)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 12), st.integers(0, 6), edits())
@example(5, 6, [("flip", 0.7429485968725884, 1)])  # the magic of a batch that was not flushed
@example(5, 0, [("cut", 0.0, 1), ("zeros", 0.0, 8)])  # nothing in the first segment; its base offset in the second
def test_whatever_is_damaged_no_flushed_offset_is_given_out_again_and_no_wrong_record_served(
    flushed: int, unflushed: int, damage: list[Edit]
) -> None:
    with TemporaryDirectory(dir=QUICK) as name:
        room = LogRoom(Path(name), TINY)
        fill(room, flushed, unflushed)
        logs = [room.path(log_name) for log_name in room.files(".log")]
        for edit in damage:
            apply_edit(logs, edit)
        for _ in range(2):
            room.crash()
            end = room.log.log_end_offset
            assert flushed <= end <= flushed + unflushed
            for offset in range(room.log.log_start_offset, end):
                for batch in served(room, offset):
                    assert (batch.base_offset, batch.values()) == (offset, [b"value-%d" % offset])
        assert room.append(b"value-%d" % end).first_offset == end
        room.flush()
        assert read_values(room.log, end) == [b"value-%d" % end]
        assert read_values(room.restart(), end) == [b"value-%d" % end]


@pytest.mark.parametrize("flushed", [0, 12])
@pytest.mark.parametrize("offset", range(12))
def test_a_batch_with_the_magic_of_the_other_format_is_cut_or_refused(
    tmp_path: Path, flushed: int, offset: int
) -> None:
    room = LogRoom(tmp_path, TINY)
    fill(room, flushed, 12 - flushed)
    segment = present(room.log.local.segments.floor(offset))
    found = present(segment.lookup.find_batch(offset))
    change(segment.path, lambda content: operator.setitem(content, found.position + 16, 2))
    room.crash()
    assert room.log.log_end_offset == max(flushed, offset)
    for at in range(flushed):
        values = [batch.values() for batch in served(room, at)]
        assert values == ([] if at == offset else [[b"value-%d" % at]])


def served(room: LogRoom, offset: int) -> Iterator[RecordBatch]:
    """The batch that a reader gets for `offset`, unless it is refused, by the log or by the reader's own checks."""
    try:
        yield from read_batches(room.log, offset, max_bytes=1)
    except CorruptBatch:
        return
