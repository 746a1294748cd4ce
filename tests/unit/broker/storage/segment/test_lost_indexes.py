"""Index files that vanish, or are cut, while the log is in use: reads go on, and the files are there again."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from present import present
from truncating import truncate_to
from unit.broker.storage.log_room import START_MS, LogRoom, make_batch, read_batches, read_values
from unit.broker.storage.time_lookups import record_at
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.segment import segment_indexes
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_indexes import LostIndex

VALUE = b"v" * 100
BATCH = len(make_batch(VALUE))
CONFIG = LogConfig(
    segment_bytes=20 * BATCH, index_interval_bytes=BATCH, segment_index_bytes=2400, retention_ms=UNLIMITED
)
CLOSED, ACTIVE = 20, 40
KINDS = [(".index",), (".timeindex",), (".index", ".timeindex")]


def unlink(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    os.truncate(path, 0)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    """Segments at 0, 20 and 40, the last one active; all indexes have been used."""
    room = LogRoom(quick_path, CONFIG)
    fill(room, 55)
    assert room.files(".log") == [f"{base:020d}.log" for base in (0, 20, 40)]
    expect(room, 55)
    return room


@pytest.fixture
def is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small a log is, its indexes are rebuilt in a thread."""
    monkeypatch.setattr(segment_indexes, "REBUILT_AT_ONCE_BYTES", 0)


def fill(room: LogRoom, count: int) -> None:
    """Batches of one record, each a millisecond later than the one before."""
    for _ in range(count):
        room.append(VALUE, timestamp_ms=START_MS + room.log.log_end_offset)
    room.flush()


def expect(room: LogRoom, count: int) -> None:
    """Each record is found by its offset and by its time."""
    assert [read_batches(room.log, n, max_bytes=1)[0].base_offset for n in range(count)] == list(range(count))
    found = [record_at(room.log, START_MS + n) for n in range(count)]
    assert [record and record.offset for record in found] == list(range(count))


def segment(room: LogRoom, base_offset: int) -> LogSegment:
    return present(room.log.local.segments.get(base_offset))


def evict(segment: LogSegment) -> None:
    """As OpenFiles does when too many files are open; all entries are in the files by then."""
    for index in segment.indexes.loaded():
        index.write_out()
        index.let_go()


@pytest.mark.parametrize("base_offset", [CLOSED, ACTIVE])
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("lose", [unlink, empty, halve])
@pytest.mark.parametrize("is_evicted", [True, False])
def test_reads_and_appends_go_on_and_the_next_start_finds_whole_indexes(
    room: LogRoom,
    base_offset: int,
    kinds: tuple[str, ...],
    lose: Callable[[Path], None],
    is_evicted: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    evict(segment(room, base_offset))
    if not is_evicted:
        expect(room, 55)
    for kind in kinds:
        lose(room.segment_path(base_offset, kind))
    expect(room, 55)
    if is_evicted or lose is not unlink:
        assert "rebuilding the indexes from the log" in caplog.text
        assert [room.segment_path(base_offset, kind).stat().st_size > 0 for kind in kinds] == [True] * len(kinds)
    fill(room, 45)
    expect(room, 100)
    room.close()
    caplog.clear()
    room.open()
    expect(room, 100)
    assert "rebuilding" not in caplog.text or lose is unlink


@pytest.mark.parametrize("lose", [unlink, empty])
@pytest.mark.parametrize("is_evicted", [True, False])
def test_a_segment_whose_indexes_are_lost_is_closed_all_the_same(
    room: LogRoom, lose: Callable[[Path], None], is_evicted: bool
) -> None:
    if is_evicted:
        evict(segment(room, ACTIVE))
    for kind in (".index", ".timeindex"):
        lose(room.segment_path(ACTIVE, kind))
    fill(room, 100)
    assert not room.log.local.failure
    expect(room, 155)
    room.close()
    room.open()
    expect(room, 155)


@pytest.mark.usefixtures("is_slow")
class TestInAThread:
    def lose(self, room: LogRoom, base_offset: int) -> LostIndex:
        """The error of a read in a segment that has just lost its indexes."""
        evict(segment(room, base_offset))
        for kind in (".index", ".timeindex"):
            room.segment_path(base_offset, kind).unlink()
        with pytest.raises(LostIndex, match=r"its indexes are being rebuilt: .* is gone") as caught:
            room.log.reader.read(base_offset + 1, 1)
        return caught.value

    @pytest.mark.parametrize("base_offset", [CLOSED, ACTIVE])
    def test_a_read_waits_for_the_rebuild_which_all_share(
        self, room: LogRoom, threads: ThreadPoolExecutor, base_offset: int
    ) -> None:
        rebuild = self.lose(room, base_offset).rebuild
        with pytest.raises(LostIndex) as caught:
            room.log.reader.read(base_offset + 2, 1)
        assert caught.value.rebuild is rebuild
        assert rebuild.begin(threads) is rebuild.begin(threads)
        rebuild.begin(threads).result(25)
        for _ in range(2):
            rebuild.finish()
        expect(room, 55)
        assert not room.files(".rebuilt")
        fill(room, 45)
        expect(room, 100)

    def test_what_is_appended_meanwhile_gets_its_entries(self, room: LogRoom, threads: ThreadPoolExecutor) -> None:
        rebuild = self.lose(room, ACTIVE).rebuild
        fill(room, 4)
        rebuild.begin(threads).result(25)
        rebuild.finish()
        expect(room, 59)
        index = present(segment(room, ACTIVE).indexes.for_offsets())
        assert index.last_offset >= 57
        room.restart()
        expect(room, 59)

    @pytest.mark.parametrize("end", ["closed", "deleted", "cut", "moved"])
    def test_a_rebuild_of_what_is_not_there_any_more_leaves_nothing(
        self, room: LogRoom, threads: ThreadPoolExecutor, end: str, tmp_path: Path
    ) -> None:
        rebuild = self.lose(room, ACTIVE).rebuild
        rebuild.begin(threads).result(25)
        if end == "closed":
            room.close()
        elif end == "deleted":
            truncate_to(room.log, 30, room.now_ms)
            for deletion in room.log.local.take_due_deletions(room.now_ms + 10**9):
                deletion()
        elif end == "cut":
            truncate_to(room.log, 45, room.now_ms)
        else:
            room.log.local.rename_directory(room.directory.with_name("elsewhere-0"))
        if end == "moved":
            with pytest.raises(FileNotFoundError):
                rebuild.finish()
            return
        rebuild.finish()
        assert not room.files(".rebuilt")

    def test_a_disk_that_refuses_leaves_the_segment_for_the_next_read(
        self, room: LogRoom, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rebuild = self.lose(room, CLOSED).rebuild
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", _refuse)
            with pytest.raises(OSError, match="no such luck"):
                rebuild.begin(threads).result(25)
        rebuild.finish()
        assert not room.files(".rebuilt")
        with pytest.raises(LostIndex) as caught:
            room.log.reader.read(CLOSED, 1)
        assert caught.value.rebuild is not rebuild
        caught.value.rebuild.begin(threads).result(25)
        caught.value.rebuild.finish()
        expect(room, 55)

    def test_splits_are_as_large_as_a_segment_until_its_index_is_rebuilt(
        self, room: LogRoom, threads: ThreadPoolExecutor
    ) -> None:
        def cuts() -> list[int]:
            return [len(extents) for extents, _ in room.log.reader.find_extents(0, 55, 2 * BATCH)]

        before = cuts()
        assert min(before) > 5
        rebuild = self.lose(room, CLOSED).rebuild
        assert cuts() == [before[0], 1, before[2]]
        rebuild.begin(threads).result(25)
        rebuild.finish()
        assert cuts() == before
        assert len(read_values(room.log)) == 55


def _refuse(_fd: int) -> None:
    raise OSError("no such luck")
