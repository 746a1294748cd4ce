"""Nothing is opened before it is used, and everything else works without opening."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from warmlog_broker.storage.index.lazy_index import LazyIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.io.open_files import ClosedFile, OpenFiles


def lazy_index(path: Path, openings: list[Path] | None = None) -> LazyIndex[OffsetIndex]:
    class NotedIndex(OffsetIndex):
        def __init__(self, path: Path, *args: Any, **options: Any) -> None:
            if openings is not None:
                openings.append(path)
            super().__init__(path, *args, **options)

    return LazyIndex(path, NotedIndex, 45, OpenFiles(), 240)


def test_the_file_is_created_by_the_first_use_and_opened_once(tmp_path: Path) -> None:
    openings: list[Path] = []
    lazy = lazy_index(tmp_path / "index", openings)
    assert not lazy.path.exists()
    assert lazy.loaded is None
    index = lazy.get()
    assert lazy.path.stat().st_size == 240
    assert lazy.get() is index is lazy.loaded
    assert openings == [lazy.path]
    lazy.close()


def test_threads_that_ask_at_the_same_time_get_the_same_index(tmp_path: Path) -> None:
    openings: list[Path] = []
    lazies = [lazy_index(tmp_path / f"{number}", openings) for number in range(50)]
    with ThreadPoolExecutor(8) as pool:
        for lazy in lazies:
            get: Callable[[object], OffsetIndex] = lambda _, lazy=lazy: lazy.get()  # noqa: E731
            assert len({id(index) for index in pool.map(get, range(8))}) == 1
            lazy.close()
    assert len(openings) == 50


@pytest.mark.parametrize("is_loaded", [False, True])
def test_renaming_moves_what_there_is(is_loaded: bool, tmp_path: Path) -> None:
    lazy = lazy_index(tmp_path / "index")
    if is_loaded:
        lazy.get()
    lazy.rename_to(tmp_path / "other")
    assert lazy.path == tmp_path / "other"
    assert lazy.path.exists() == is_loaded
    assert not (tmp_path / "index").exists()
    lazy.get().append(50, 5)
    lazy.close()
    assert (tmp_path / "other").stat().st_size == 8


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_index_follows_its_directory(is_loaded: bool, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    lazy = lazy_index(old / "index")
    if is_loaded:
        lazy.get().append(50, 5)
        lazy.get().let_go()
    old.rename(new)
    lazy.moved_to(new / "index")
    assert lazy.get().lookup(60) == ((50, 5) if is_loaded else (45, 0))
    lazy.close()


@pytest.mark.parametrize("is_loaded", [False, True])
def test_deleting_says_whether_there_was_a_file(is_loaded: bool, tmp_path: Path) -> None:
    lazy = lazy_index(tmp_path / "index")
    if is_loaded:
        lazy.get()
    assert lazy.delete() == is_loaded
    assert not lazy.path.exists()
    with pytest.raises(ClosedFile):
        lazy.get().lookup(50)


def test_closing_opens_nothing_and_ends_all_use(tmp_path: Path) -> None:
    openings: list[Path] = []
    lazy = lazy_index(tmp_path / "index", openings)
    lazy.close()
    lazy.close()
    lazy.close_handles()
    assert openings == []
    with pytest.raises(ClosedFile):
        lazy.get()


def test_entries_are_counted_by_size_until_the_index_is_open(tmp_path: Path) -> None:
    lazy = lazy_index(tmp_path / "index")
    assert (lazy.count_entries(), lazy.file_exists()) == (0, False)
    lazy.path.write_bytes(bytes.fromhex("0000000600000000 0000000700000045"))
    assert (lazy.count_entries(), lazy.file_exists()) == (2, True)
    lazy.get().resize(240)
    assert lazy.count_entries() == 2
    lazy.close()
