"""A log that is a copy: batches come with their offsets and epochs, and are kept as they came."""

import os
from errno import ENOSPC
from pathlib import Path
from unittest.mock import patch

import pytest

from present import present
from truncating import truncate_fully
from unit.broker.storage.log_files import batch_of
from unit.broker.storage.log_room import START_MS, TINY, LogRoom, read_batches, read_values
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.index.transaction_index import TransactionIndex
from warmlog_broker.storage.log.appender import OffsetsOutOfOrder, UnexpectedAppendOffset
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_protocol.errors import CorruptBatch, DiskFull, FencedLeaderEpoch, OutOfResources, StorageError

FAR_OFFSET = 2**31 + 1


def at(*offsets: int, epoch: int = 0, value: str = "v", count: int = 1) -> bytes:
    """A batch of `count` records at each offset, one after another."""
    return b"".join(
        batch_of([value] * count, offset=offset, timestamps_ms=START_MS + offset, leader_epoch=epoch)
        for offset in offsets
    )


def append(room: LogRoom, batches: bytes) -> tuple[int, int]:
    return room.log.follower.append(batches, now_ms=room.now_ms)[:2]


def offsets_from(room: LogRoom, offset: int, max_bytes: int = 100_000) -> list[int]:
    return [batch.base_offset for batch in read_batches(room.log, offset, max_bytes=max_bytes, bound="log_end")]


class TestOffsets:
    def test_batches_are_kept_byte_for_byte(self, room: LogRoom) -> None:
        batches = at(0, count=3) + at(3, 4, epoch=2)
        assert append(room, batches) == (0, 4)
        assert room.log.log_end_offset == 5
        assert b"".join(part.pread() for part in room.log.reader.read(0, 10_000, bound="log_end").slices) == batches

    def test_ul_02_below_the_log_end_is_unexpected_and_at_it_is_not(self, room: LogRoom) -> None:
        append(room, at(0, count=3))
        with pytest.raises(UnexpectedAppendOffset, match="expected from the log end 3 on") as raised:
            append(room, at(1, count=3))
        assert (raised.value.first_offset, raised.value.last_offset) == (1, 3)
        append(room, at(3, count=3))
        assert room.log.log_end_offset == 6

    def test_ul_35_below_the_start_of_an_empty_log_too(self, room: LogRoom) -> None:
        truncate_fully(room.log, 7, room.now_ms)
        with pytest.raises(UnexpectedAppendOffset) as raised:
            append(room, at(4, count=3))
        assert (raised.value.first_offset, raised.value.last_offset) == (4, 6)

    def test_ul_34_offsets_that_do_not_rise_are_refused_and_nothing_is_appended(self, room: LogRoom) -> None:
        with pytest.raises(OffsetsOutOfOrder, match="offset 2"):
            append(room, at(0, 1, 3, 2, 4))
        assert room.log.log_end_offset == 0
        assert room.log.local.segments.size_bytes == 0

    def test_ul_19_gaps_are_allowed_and_a_read_finds_what_follows(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, LogConfig(segment_bytes=1024, retention_ms=UNLIMITED))
        stored = [*range(50), *range(50, 200, 7)]
        append(room, at(*stored))
        for _ in range(2):
            for offset in range(stored[-1] + 1):
                following = min(each for each in stored if each >= offset)
                for max_bytes in (1, 100, 100_000):
                    assert offsets_from(room, offset, max_bytes)[0] == following
            room.flush()
            room.crash()
            assert room.log.recovery_report.damage == []
            assert room.log.log_end_offset == stored[-1] + 1

    def test_a_gap_that_was_not_flushed_survives_a_crash_as_well(self, room: LogRoom) -> None:
        append(room, at(0, 1, 5, 9))
        room.crash()
        assert offsets_from(room, 0) == [0, 1, 5, 9]
        assert room.log.recovery_report.is_uneventful

    def test_a_piece_at_the_end_and_nothing_at_all_are_no_batches(self, room: LogRoom) -> None:
        whole = at(0, 1)
        assert append(room, whole + at(2)[:-1]) == (0, 1)
        assert append(room, at(2)[:40]) == (2, 1)
        assert append(room, b"") == (2, 1)
        assert room.log.log_end_offset == 2

    def test_a_damaged_batch_is_refused_with_all_that_came_with_it(self, room: LogRoom) -> None:
        batches = bytearray(at(0, 1, 2))
        batches[-1] ^= 1
        with pytest.raises(CorruptBatch, match="offset 2"):
            append(room, bytes(batches))
        assert room.log.log_end_offset == 0


class TestLimits:
    def test_neither_the_size_of_a_batch_nor_that_of_a_segment_is_a_limit(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, LogConfig(segment_bytes=1024, max_message_bytes=100, retention_ms=UNLIMITED))
        for offset in range(3):
            append(room, at(offset, value="x" * 5000))
        assert len(room.log.local.segments) == 3
        assert room.files(".deleted") == []
        append(room, at(3))
        room.flush()
        room.restart()
        assert len(read_values(room.log)) == 4

    def test_ul_32_every_batch_but_the_first_has_an_entry_at_a_small_interval(self, quick_path: Path) -> None:
        room = LogRoom(quick_path, LogConfig(index_interval_bytes=1, retention_ms=UNLIMITED))
        append(room, at(*range(100, 200)))
        index = present(room.log.local.active.indexes.for_times())
        assert index.entries == 99
        assert index.last_entry == (START_MS + 199, 199)

    def test_rc_10_an_offset_too_far_from_the_base_rolls_to_a_segment_of_its_own(self, room: LogRoom) -> None:
        append(room, at(0, FAR_OFFSET))
        assert room.log.local.segments.base_offsets == [0, FAR_OFFSET]
        assert f"{FAR_OFFSET:020d}.snapshot" in room.files()
        append(room, at(FAR_OFFSET + 1, count=3))
        room.flush()
        for reopen in (room.restart, room.crash):
            reopen()
            assert offsets_from(room, 0) == [0]
            assert offsets_from(room, 1)[0] == FAR_OFFSET
            assert room.log.log_end_offset == FAR_OFFSET + 4

    def test_a_full_disk_keeps_what_was_appended_before_it_was_full(self, room: LogRoom) -> None:
        append(room, at(0))
        full = OSError(ENOSPC, "No space left on device")
        results: list[Exception | None] = [full, None, full]  # for all of them at once, and then each

        def write(fd: int, parts: tuple[bytes, ...], position: int) -> int:
            result = results.pop(0)
            if result is not None:
                raise result
            return os.pwritev(fd, parts, position)

        with patch("warmlog_broker.storage.segment.file_records._pwritev", write), pytest.raises(StorageError):
            append(room, at(1, 2, 3))
        assert room.log.log_end_offset == 2
        assert room.log.local.failure == ""
        append(room, at(2, 3))
        assert offsets_from(room, 0) == [0, 1, 2, 3]

    @pytest.mark.parametrize("offset", [1, 5])
    @pytest.mark.parametrize("is_written", [False, True])
    def test_out_of_memory_takes_the_batch_back_and_the_next_try_appends_it(
        self, room: LogRoom, monkeypatch: pytest.MonkeyPatch, offset: int, is_written: bool
    ) -> None:
        append(room, at(0))
        real = FileRecords.append

        def run_out(self: FileRecords, prefix: bytes, covered: bytes) -> int:
            if is_written:
                real(self, prefix, covered)
            raise MemoryError

        with monkeypatch.context() as failing:
            failing.setattr(FileRecords, "append", run_out)
            with pytest.raises(OutOfResources):
                append(room, at(offset, epoch=3))
        assert room.log.log_end_offset == 1
        assert room.log.epochs.latest_epoch == 0
        append(room, at(offset, epoch=3))
        room.leader_epoch = 3
        room.flush()
        room.crash()
        assert offsets_from(room, 0) == [0, offset]
        assert room.log.recovery_report.is_uneventful


class TestEpochs:
    def test_ul_49_epochs_are_kept_and_learnt_from_the_batches(self, room: LogRoom) -> None:
        append(room, at(0, epoch=42))
        append(room, at(1, epoch=42) + at(2, 3, epoch=43))
        assert [batch.header.partition_leader_epoch for batch in read_batches(room.log, 0, bound="log_end")] == [
            42,
            42,
            43,
            43,
        ]
        assert room.log.epochs.entries == ((42, 0), (43, 2))
        room.leader_epoch = 43
        room.flush()
        room.crash()
        assert room.log.epochs.entries == ((42, 0), (43, 2))

    def test_an_epoch_that_falls_is_refused(self, room: LogRoom) -> None:
        append(room, at(0, epoch=5))
        for batches in (at(1, epoch=4), at(1, epoch=6) + at(2, epoch=5)):
            with pytest.raises(FencedLeaderEpoch):
                append(room, batches)
        assert room.log.log_end_offset == 1


class TestProducers:
    def test_ps_02_sequences_are_taken_over_and_not_judged(self, room: LogRoom) -> None:
        elsewhere = room.directory.parent / "source"
        elsewhere.mkdir()
        source = LogRoom(elsewhere, TINY)
        for sequence in range(4):
            source.append(b"v", producer=(7, 0, sequence))
        batches = b"".join(
            part.pread() for n in range(4) for part in source.log.reader.read(n, 1, bound="log_end").slices
        )
        append(room, batches)
        again = at_offset(batches, 4)
        append(room, again)
        assert room.log.log_end_offset == 8
        entry = present(room.log.producers.get(7))
        assert entry.next_sequence == 4
        assert room.append(b"v", producer=(7, 0, 3)).is_duplicate

    def test_transactions_are_taken_over_with_their_ends(self, room: LogRoom) -> None:
        elsewhere = room.directory.parent / "source"
        elsewhere.mkdir()
        source = LogRoom(elsewhere, TINY)
        source.append_in_transaction(b"aborted", producer=(7, 0, 0))
        source.append_in_transaction(b"open", producer=(8, 0, 0))
        source.end_transaction(7, commits=False)
        source.flush()
        append(room, b"".join(part.pread() for n in range(3) for part in source.log.reader.read(n, 1).slices))
        room.flush()
        for _ in range(2):
            room.log.bounds.raise_high_watermark(3)
            assert room.log.bounds.last_stable_offset == source.log.bounds.last_stable_offset == 1
            assert (
                room.log.reader.read(0, 1000, bound="committed").aborted
                == source.log.reader.read(0, 1000, bound="committed").aborted
            )
            assert room.log.reader.read(0, 1000, bound="committed").aborted != ()
            room.crash()

    @pytest.mark.parametrize("error", [OSError(ENOSPC, "No space left on device"), MemoryError()])
    def test_an_abort_whose_index_entry_cannot_be_written_is_taken_back_and_copied_again(
        self, room: LogRoom, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        elsewhere = room.directory.parent / "source"
        elsewhere.mkdir()
        source = LogRoom(elsewhere, TINY)
        source.append_in_transaction(b"aborted", producer=(7, 0, 0))
        source.leader_epoch = 4
        source.end_transaction(7, commits=False)
        data, marker = (
            b"".join(part.pread() for part in source.log.reader.read(n, 1, bound="log_end").slices) for n in range(2)
        )
        append(room, data)

        def refuse(*_: object) -> None:
            raise error

        with monkeypatch.context() as failing:
            failing.setattr(TransactionIndex, "append", refuse)
            with pytest.raises((DiskFull, OutOfResources)):
                append(room, marker)
        assert (room.log.log_end_offset, room.log.local.failure) == (1, "")
        assert room.log.epochs.entries == ((0, 0),)
        assert room.log.producers.in_transactions != []
        append(room, marker)
        room.leader_epoch = 4
        room.flush()
        for _ in range(2):
            room.log.bounds.raise_high_watermark(2)
            assert [txn[:3] for txn in room.log.reader.read(0, 1000, bound="committed").aborted] == [(7, 0, 1)]
            room.crash()

    def test_the_high_watermark_stays_where_it_was(self, room: LogRoom) -> None:
        append(room, at(0, 1))
        assert room.log.high_watermark == 0
        room.log.bounds.raise_high_watermark(1)
        append(room, at(2))
        assert room.log.high_watermark == 1


def at_offset(batches: bytes, first_offset: int) -> bytes:
    """The same batches of one record, from `first_offset` on."""
    size = len(batches) // 4
    return b"".join((first_offset + n).to_bytes(8, "big") + batches[n * size + 8 : (n + 1) * size] for n in range(4))


class TestRuns:
    def test_a_run_of_batches_is_one_call_of_the_system(self, room: LogRoom) -> None:
        append(room, at(0))
        room.set_config(segment_bytes=1 << 20)
        with patch("warmlog_broker.storage.segment.file_records._pwritev", wraps=os.pwritev) as written:
            append(room, at(1, 2, 3, 4))
        assert written.call_count == 1
        append(room, at(5))
        assert offsets_from(room, 0) == [0, 1, 2, 3, 4, 5]
        room.restart()
        assert offsets_from(room, 0) == [0, 1, 2, 3, 4, 5]

    def test_what_the_disk_does_not_take_at_once_is_written_one_by_one(self, room: LogRoom) -> None:
        room.set_config(segment_bytes=1 << 20)
        calls: list[int] = []

        def short(fd: int, pieces: list[bytes], position: int) -> int:
            calls.append(len(pieces))
            return os.pwritev(fd, pieces if len(pieces) == 2 else pieces[:3], position)

        with patch("warmlog_broker.storage.segment.file_records._pwritev", short):
            append(room, at(0, 1, 2))
        assert calls == [6, 2, 2, 2]
        assert offsets_from(room, 0) == [0, 1, 2]

    def test_of_a_run_that_is_not_appended_to_its_end_nothing_stays_in_the_file(self, room: LogRoom) -> None:
        room.set_config(segment_bytes=1 << 20)
        real, count = FileRecords.append, 0

        def run_out(self: FileRecords, prefix: bytes, covered: bytes) -> int:
            nonlocal count
            count += 1
            if count == 2:
                raise OSError(ENOSPC, "No space left on device")
            return real(self, prefix, covered)

        with patch.object(FileRecords, "append", run_out), pytest.raises(StorageError):
            append(room, at(0, 1, 2))
        records = room.log.local.active.records
        assert room.log.log_end_offset == 1
        assert room.log.local.active.path.stat().st_size == records.size_bytes
        append(room, at(1, value="other"))
        assert read_values(room.log) == [b"v", b"other"]
