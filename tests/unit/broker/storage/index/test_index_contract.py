"""What every index does, whatever its entries are: files, maps, room, closing."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from unit.broker.storage.index.index_files import (
    BASE,
    AnyIndex,
    AnyIndexClass,
    add,
    entry_of,
    fill,
    looked_up,
    new_index,
)
from unit.broker.storage.log_files import no_file_grows_beyond
from warmlog_broker.storage.index.abstract_index import MAX_UNWRITTEN, CorruptIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import ClosedFile, OpenFiles


def pairs(count: int) -> list[tuple[int, int]]:
    return [(slot + 1, slot + 1) for slot in range(count)]


def entries_in(path: Path, index_class: AnyIndexClass) -> list[tuple[int, ...]]:
    """The entries of a file, zeros left out."""
    data = path.read_bytes()
    unpacked = index_class.layout.iter_unpack(data[: len(data) - len(data) % index_class.entry_bytes])
    return [entry for entry in unpacked if any(entry)]


class IndexContract:
    index_class: ClassVar[AnyIndexClass]

    def room(self, slots: int) -> int:
        return slots * self.index_class.entry_bytes

    def opened(self, path: Path, **options: Any) -> AnyIndex:
        return self.index_class(path, BASE, open_files=OpenFiles(), **options)

    # Room

    def test_room_is_made_when_the_file_is_created_rounded_down_to_whole_entries(self, tmp_path: Path) -> None:
        path = tmp_path / "index"
        expected = 10_485_760 - 10_485_760 % self.index_class.entry_bytes
        with self.opened(path, max_index_bytes=10_485_760) as index:
            assert (index.file_bytes, path.stat().st_size, index.entries) == (expected, expected, 0)
            assert path.stat().st_blocks == 0
        assert path.stat().st_size == 0

    def test_an_index_needs_room_for_an_entry(self, tmp_path: Path) -> None:
        too_small = self.index_class.entry_bytes - 1
        with pytest.raises(ValueError, match=f"{too_small} bytes"):
            self.opened(tmp_path / "index", max_index_bytes=too_small)

    def test_resizing_keeps_the_entries_and_refuses_to_cut_them(self, tmp_path: Path) -> None:
        with fill(tmp_path / "index", self.index_class, pairs(8)) as index:
            assert index.resize(index.file_bytes) is False
            for slots in (1000, 8, 12_500, 9):
                assert index.resize(self.room(slots) + 1) is True
                assert looked_up(index, 100) == entry_of(index, 8, 8)
                assert index.max_entries == slots
                index.write_out()
            with pytest.raises(ValueError, match="do not fit"):
                index.resize(self.room(8) - 1)

    def test_a_reset_drops_everything_and_makes_room(self, tmp_path: Path) -> None:
        path = tmp_path / "index"
        path.write_bytes(b"\xff" * 1001)
        with self.opened(path, max_index_bytes=self.room(50)) as index:
            index.reset()
            assert (index.entries, index.max_entries, index.file_bytes) == (0, 50, self.room(50))
            assert path.read_bytes() == bytes(self.room(50))
        with self.opened(path) as index, pytest.raises(ValueError, match="cannot hold"):
            index.reset()

    # Entries in memory and in the file

    def test_entries_are_written_some_at_a_time_and_found_before(self, tmp_path: Path) -> None:
        path = tmp_path / "index"
        index = new_index(path, self.index_class)
        for number in range(1, 3 * MAX_UNWRITTEN):
            add(index, 10 * number, number)
            for key, found in ((10 * number, number), (10 * number - 1, number - 1), (10 * number + 5, number)):
                if found:
                    assert looked_up(index, key) == entry_of(index, 10 * found, found)
            assert index.entry(number - 1) == entry_of(index, 10 * number, number)
            in_file = len(entries_in(path, self.index_class))
            assert number - MAX_UNWRITTEN <= in_file <= number
            assert in_file % MAX_UNWRITTEN == 0
        index.write_out()
        assert entries_in(path, self.index_class) == [(10 * n, n) for n in range(1, 3 * MAX_UNWRITTEN)]
        index.close()

    def test_lookups_find_entries_wherever_their_keys_are_by_now(self, tmp_path: Path) -> None:
        index = new_index(tmp_path / "index", self.index_class, slots=6000)
        for number in range(1, 5001):
            add(index, 3 * number, number)
            if number % 97 == 0:
                for back in (0, 1, 63, 64, 65, 600, 681, 682, 1023, 1024, 1025, 2000, 4000):
                    if back < number:
                        found = number - back
                        assert looked_up(index, 3 * found + 1) == entry_of(index, 3 * found, found)
        for number in (4990, 4000, 3000, 10):
            offset = BASE + (3 * number if self.index_class is OffsetIndex else number)
            index.truncate_to(offset)
            assert looked_up(index, 10**6) == entry_of(index, 3 * (number - 1), number - 1)
            assert looked_up(index, 16) == entry_of(index, 15, 5)
            add(index, 3 * number, number)
            assert looked_up(index, 10**6) == entry_of(index, 3 * number, number)
        index.close()

    def test_another_opener_of_an_index_in_use_sees_what_is_written(self, tmp_path: Path) -> None:
        index = fill(tmp_path / "index", self.index_class, pairs(5))
        index.resize(self.room(100))
        with self.opened(index.path, is_writable=False) as reader:
            assert reader.entries == 0
        index.write_out()
        with self.opened(index.path, is_writable=False) as reader:
            assert list(reader) == list(index)
        index.close()

    def test_dropped_entries_are_zeroed_so_that_a_crash_does_not_bring_them_back(self, tmp_path: Path) -> None:
        path = tmp_path / "index"
        index = fill(path, self.index_class, pairs(10))
        index.write_out()
        index.truncate_to(BASE + 4)
        assert path.read_bytes()[self.room(3) :].strip(b"\0") == b""
        assert index.entries == 3
        index.close_handles()

    def test_a_full_disk_is_an_error_and_leaves_the_index_as_it_was(self, tmp_path: Path) -> None:
        index = fill(tmp_path / "index", self.index_class, pairs(8))
        index.write_out()
        index.resize(self.room(200))
        for number in range(9, 9 + MAX_UNWRITTEN):
            add(index, number, number)
        last = 8 + MAX_UNWRITTEN
        for limit in (self.room(8), self.room(8) + 4, self.room(20)):
            with no_file_grows_beyond(limit):
                with pytest.raises(OSError):  # noqa: PT011 - EFBIG, or a short write
                    add(index, last + 1, last + 1)
                with pytest.raises(OSError):  # noqa: PT011
                    index.write_out()
            assert index.entries == last
            assert looked_up(index, 10_000) == entry_of(index, last, last)
        add(index, last + 1, last + 1)
        index.close()
        assert entries_in(index.path, self.index_class) == pairs(last + 1)

    # Crashes and tools

    @pytest.mark.parametrize("entries", [0, 1, 2, 3, 500])
    def test_a_crashed_index_is_readable_for_tools_but_does_not_pass_as_sane(
        self, entries: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "index"
        index = fill(path, self.index_class, pairs(entries))
        index.resize(10_000)
        index.write_out()
        index.close_handles()

        found = self.opened(path, is_writable=False)
        assert found.entries == entries
        assert found.is_padded
        with pytest.raises(CorruptIndex, match="zeros"):
            found.sanity_check()
        found.close()
        assert path.stat().st_size == 10_000 - 10_000 % self.index_class.entry_bytes

    def test_a_length_of_no_whole_entries_is_corrupt(self, tmp_path: Path) -> None:
        with fill(tmp_path / "index", self.index_class, pairs(5)) as index:
            index.sanity_check()
        with self.opened(index.path) as again:
            again.sanity_check()
        index.path.write_bytes(index.path.read_bytes()[:-1])
        with self.opened(index.path) as again, pytest.raises(CorruptIndex, match=f"{self.room(5) - 1} bytes"):
            again.sanity_check()

    def test_opening_read_only_creates_and_changes_nothing(self, tmp_path: Path) -> None:
        missing = tmp_path / "missing"
        with pytest.raises(FileNotFoundError):
            self.opened(missing, is_writable=False)
        assert not missing.exists()

        path = tmp_path / "index"
        fill(path, self.index_class, pairs(2)).close()
        path.chmod(0o444)
        before = (path.read_bytes(), path.stat().st_mtime_ns)
        with self.opened(path, is_writable=False) as index:
            assert index.entries == 2
            changes: list[Callable[[], object]] = [
                index.truncate,
                lambda: index.resize(1200),
                lambda: index.truncate_to(0),
                lambda: add(index, 9, 9),
            ]
            for change in changes:
                with pytest.raises(PermissionError):
                    change()
            flags = int(Path(f"/proc/self/fdinfo/{index.open_file().fd}").read_text().split("flags:")[1].split()[0], 8)
            assert flags & os.O_ACCMODE == os.O_RDONLY
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before

    def test_a_file_cut_by_somebody_else_is_an_error_and_not_the_end_of_the_process(self, tmp_path: Path) -> None:
        index = fill(tmp_path / "index", self.index_class, pairs(2))
        index.write_out()
        index.let_go()
        os.truncate(index.path, 0)
        with pytest.raises(CorruptIndex, match="shorter"):
            looked_up(index, 1)

    # Names and the end

    def test_renaming_moves_the_file_and_goes_on_working(self, tmp_path: Path) -> None:
        index = fill(tmp_path / "index", self.index_class, pairs(1))
        index.rename_to(tmp_path / "other")
        index.let_go()
        assert looked_up(index, 1) == entry_of(index, 1, 1)
        add(index, 2, 2)
        assert not (tmp_path / "index").exists()
        index.close()
        assert entries_in(tmp_path / "other", self.index_class) == pairs(2)

    def test_closing_twice_is_harmless_and_use_after_it_a_clear_error(self, tmp_path: Path) -> None:
        for count in (0, 1):
            index = fill(tmp_path / f"{count}", self.index_class, pairs(count))
            index.close()
            index.close()
            index.close_handles()
            uses: list[Callable[[], object]] = [
                lambda index=index: looked_up(index, 1),
                lambda index=index: index.entry(0),
                lambda index=index: add(index, 9, 9),
                lambda index=index: index.truncate_to(BASE),
                lambda index=index: index.resize(800),
                index.truncate,
                index.open_file,
            ]
            for use in uses:
                with pytest.raises(ClosedFile, match="was closed"):
                    use()

    def test_deleting_unmaps_and_says_whether_there_was_a_file(self, tmp_path: Path) -> None:
        index = fill(tmp_path / "index", self.index_class, pairs(1))
        assert index.delete() is True
        assert index.delete() is False
        assert not index.path.exists()
        assert str(index.path) not in Path("/proc/self/maps").read_text()

    # Descriptors and maps

    def test_descriptors_and_maps_are_released_at_once(self, tmp_path: Path) -> None:
        def open_descriptors() -> int:
            links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
            return sum(tmp_path in link.parents for link in links)

        with new_index(tmp_path / "open", self.index_class):
            assert open_descriptors() > 0
        for number in range(20):
            index = fill(tmp_path / f"{number}", self.index_class, pairs(1))
            index.write_out()
            looked_up(index, 1)
            assert str(index.path) in Path("/proc/self/maps").read_text()
            index.close()
        assert open_descriptors() == 0
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()

    def test_resizing_again_and_again_leaves_one_map(self, tmp_path: Path) -> None:
        """KAFKA-7442, KAFKA-19390: old maps stayed until a garbage collection, up to the system's bound on maps."""
        with fill(tmp_path / "index", self.index_class, pairs(3)) as index:
            index.write_out()
            for slots in range(100, 200):
                index.resize(self.room(slots))
                looked_up(index, 2)
                assert Path("/proc/self/maps").read_text().count(str(index.path)) == 1

    def test_shrinking_unmaps_first_and_growing_shows_what_is_written_later(self, tmp_path: Path) -> None:
        """Were the old map kept, touching its lost pages would kill this process with SIGBUS."""
        index = fill(tmp_path / "index", self.index_class, pairs(1))
        index.write_out()
        index.resize(1 << 20)
        assert looked_up(index, 1) == entry_of(index, 1, 1)
        old_map = index._map
        assert old_map is not None
        index.trim()
        assert old_map.closed
        assert looked_up(index, 1) == entry_of(index, 1, 1)
        index.resize(1 << 20)
        for number in range(2, 2000):
            add(index, number, number)
            assert looked_up(index, number) == entry_of(index, number, number)
        index.write_out()
        for number in range(2, 2000):
            assert looked_up(index, number) == entry_of(index, number, number)
        index.close()


class TestOffsetIndex(IndexContract):
    index_class = OffsetIndex


class TestTimeIndex(IndexContract):
    index_class = TimeIndex
