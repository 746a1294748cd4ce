"""The keeper brings the end of every active index into memory, and does no harm if that is cut, closed or evicted."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page_cache import evict, resident_pages
from unit.broker.storage.index.index_files import new_index, write_file
from unit.broker.storage.log_files import no_file_grows_beyond
from warmlog_broker.storage.index.lazy_index import LazyIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.search import warm_cold_search
from warmlog_broker.storage.index.warm_keeper import WarmPass, WarmRange, keep_warm, populate, warm_range, warm_targets
from warmlog_broker.storage.io.open_files import OpenFiles

WARM = 8192
ENTRIES = 100_000
PAGES = ENTRIES * 8 // 4096 + 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An index of 196 pages, which is not in the page cache."""
    path = tmp_path / "index"
    write_file(path, OffsetIndex, [(slot, slot) for slot in range(1, ENTRIES + 1)])
    evict(path)
    if resident_pages(path):
        pytest.skip("this file system keeps its pages")
    return path


def lazy(path: Path, open_files: OpenFiles | None = None) -> LazyIndex[OffsetIndex]:
    return LazyIndex(path, OffsetIndex, 1000, open_files or OpenFiles(), 10_000_000)


def warm_pages() -> set[int]:
    position, size_bytes = warm_range(ENTRIES * 8, WARM + 8)
    return set(range(position // 4096, (position + size_bytes) // 4096))


# What to keep


@given(index_bytes=st.integers(0, 2**31), warm_bytes=st.integers(1, 2**20), page_bytes=st.sampled_from([4096, 65536]))
def test_a_range_is_the_whole_pages_of_the_last_bytes(index_bytes: int, warm_bytes: int, page_bytes: int) -> None:
    position, size_bytes = warm_range(index_bytes, warm_bytes, page_bytes)
    assert position % page_bytes == size_bytes % page_bytes == 0
    assert position <= max(0, index_bytes - warm_bytes) < position + page_bytes
    assert position + size_bytes - page_bytes < index_bytes <= position + size_bytes or size_bytes == index_bytes == 0


def test_open_indexes_come_first_and_closed_ones_not_at_all(tmp_path: Path) -> None:
    lazies = [lazy(tmp_path / f"{number}") for number in range(4)]
    for number in (1, 2, 3):
        lazies[number].get().append(1001, 0)
    lazies[2].close()
    lazies[3].get().close_handles()
    targets = warm_targets(lazies, WARM)
    assert [(target.path.name, target.index_bytes) for target in targets] == [("1", 8), ("0", None)]
    lazies[1].close()


def test_entries_that_wait_in_memory_are_written_and_a_full_disk_leaves_them_there(tmp_path: Path) -> None:
    one = lazy(tmp_path / "index")
    one.get().append(1001, 0)
    with no_file_grows_beyond(0):
        assert warm_targets([one], WARM) == []
    assert one.get().entries == 1
    assert len(warm_targets([one], WARM)) == 1
    assert (tmp_path / "index").read_bytes()[:8] == bytes([0, 0, 0, 1, 0, 0, 0, 0])
    one.close()


@pytest.mark.parametrize("entry_bytes", [8, 12])
def test_what_is_kept_is_all_that_a_lookup_at_the_end_reads(entry_bytes: int) -> None:
    warm_entries = WARM // entry_bytes
    for entries in [*range(1, 40), *range(5000, 5000 + 4096 // entry_bytes + 2)]:
        slots: list[int] = []
        warm_cold_search(lambda slot, slots=slots: slots.append(slot) or slot, entries, warm_entries, entries)  # type: ignore[misc]
        position, size_bytes = warm_range(entries * entry_bytes, WARM + entry_bytes)
        assert position <= min(slots) * entry_bytes
        assert (max(slots) + 1) * entry_bytes <= position + size_bytes <= position + 16_384


# Keeping it


def test_an_index_that_is_not_open_is_read_without_being_opened(path: Path) -> None:
    one = lazy(path)
    done = keep_warm(warm_targets([one], WARM), 1 << 20)
    assert (done.kept, done.left_out) == (1, 0)
    assert warm_pages() <= resident_pages(path)
    assert one.loaded is None
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_an_open_index_is_read_and_its_pages_are_mapped(path: Path) -> None:
    one = lazy(path)
    index = one.get()
    index.lookup(1000)
    mapped = index.mapped
    assert mapped is not None
    done = keep_warm(warm_targets([one], WARM), 1 << 20)
    assert done.kept == 1
    assert warm_pages() <= resident_pages(path)
    smaps = Path("/proc/self/smaps").read_text()
    rss = smaps.split(str(path))[1].split("Rss:")[1].split()[0]
    assert int(rss) >= 4 * len(warm_pages())
    one.close()


def test_an_index_that_has_let_go_of_its_map_gets_no_new_one(path: Path) -> None:
    one = lazy(path)
    one.get().lookup(1000)
    one.get().let_go()
    assert keep_warm(warm_targets([one], WARM), 1 << 20).kept == 1
    assert one.get().mapped is None
    assert str(path) not in Path("/proc/self/maps").read_text()
    one.close()


@pytest.mark.parametrize(
    "happen",
    [
        lambda one: one.get().close_handles(),
        lambda one: one.close(),
        lambda one: one.delete(),
        lambda one: one.rename_to(one.path.with_suffix(".deleted")),
        lambda one: one.get().truncate(),
        lambda one: one.get().let_go(),
    ],
    ids=["failed", "closed", "deleted", "renamed", "cut", "evicted"],
)
def test_what_happens_to_an_index_after_it_was_chosen_does_no_harm(
    path: Path, happen: Callable[[LazyIndex[OffsetIndex]], None]
) -> None:
    one = lazy(path)
    one.get().lookup(1000)
    targets = warm_targets([one], WARM)
    happen(one)
    assert one.loaded is not None
    before = one.loaded.mapped
    keep_warm(targets, 1 << 20)
    assert one.loaded.mapped is before
    one.close()


def test_populating_says_whether_there_was_something(tmp_path: Path) -> None:
    index = new_index(tmp_path / "index", OffsetIndex, slots=2000)
    assert not populate(index.mapped, WarmRange(0, 4096))
    index.append(1001, 5)  # type: ignore[attr-defined]
    index.write_out()
    index.entry(0)
    mapped = index.mapped
    assert populate(mapped, WarmRange(0, 4096))
    assert not populate(mapped, WarmRange(40960, 4096))
    index.close()
    assert not populate(mapped, WarmRange(0, 4096))


def test_the_budget_bounds_what_is_kept(tmp_path: Path) -> None:
    lazies = [lazy(tmp_path / f"{number}") for number in range(5)]
    for one in lazies:
        write_file(one.path, OffsetIndex, [(slot, slot) for slot in range(1, 5000)])
    targets = warm_targets(lazies, WARM)
    whole = keep_warm(targets, 1 << 30)
    assert (whole.kept, whole.left_out) == (5, 0)
    a_file = whole.kept_bytes // 5
    assert keep_warm(targets, 2 * a_file) == WarmPass(2, 2 * a_file, 3)
    assert keep_warm(targets, 0) == WarmPass(0, 0, 5)


CUTS_UNDER_THE_KEEPER = """
import sys, threading
from pathlib import Path
from warmlog_broker.storage.index.search import warm_cold_search
from warmlog_broker.storage.index.lazy_index import LazyIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.index.warm_keeper import keep_warm, warm_targets

path = Path(sys.argv[1])
lazy = LazyIndex(path, OffsetIndex, 0, OpenFiles(), 1 << 20)
targets, is_done, rounds = [], False, 0

def keep():
    global rounds
    while not is_done:
        keep_warm(list(targets), 1 << 30)
        rounds += 1

threads = [threading.Thread(target=keep) for _ in range(3)]
for thread in threads:
    thread.start()
index = lazy.get()
for turn in range(60):
    for number in range(1, 8_000):
        index.append(number, number)
    targets[:] = warm_targets([lazy], 1 << 20)
    index.lookup(1), index.lookup(7_990)
    index.trim()
    targets[:] = warm_targets([lazy], 1 << 20)
    index.lookup(7_990)
    index.truncate_to(10 + turn)
    index.lookup(1)
    index.resize(1 << 20)
    index.lookup(1)
    index.truncate()
lazy.close()
keep_warm(list(targets), 1 << 30)
is_done = True
for thread in threads:
    thread.join()
print("alive" if rounds > 20 else f"only {rounds} rounds")
"""


def test_an_index_may_be_cut_and_unmapped_while_the_keeper_reads_it(tmp_path: Path) -> None:
    """A touch of a page that the file has lost would end that process with SIGBUS."""
    done = subprocess.run(
        [sys.executable, "-c", CUTS_UNDER_THE_KEEPER, str(tmp_path / "index")],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
