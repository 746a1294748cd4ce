"""Indexes of both kinds for the tests, filled with raw pairs."""

from pathlib import Path
from typing import Any

from warmlog_broker.storage.index.abstract_index import AbstractIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles

BASE = 1000

AnyIndex = AbstractIndex[Any]
AnyIndexClass = type[AnyIndex]


def new_index(path: Path, index_class: AnyIndexClass, *, slots: int = 1000) -> AnyIndex:
    """A new, empty index with base offset BASE."""
    return index_class(path, BASE, open_files=OpenFiles(), max_index_bytes=slots * index_class.entry_bytes)


def add(index: AnyIndex, key: int, value: int) -> None:
    """Adds an entry, given as the file has it."""
    if isinstance(index, OffsetIndex):
        index.append(BASE + key, value)
    else:
        assert isinstance(index, TimeIndex)
        index.maybe_append(key, BASE + value, is_last=True)


def fill(path: Path, index_class: AnyIndexClass, pairs: list[tuple[int, int]]) -> AnyIndex:
    """An index with these raw (key, value) pairs and hardly more room."""
    index = new_index(path, index_class, slots=max(len(pairs) + 2, 4))
    for key, value in pairs:
        add(index, key, value)
    assert index.entries == len(pairs)
    return index


def write_file(path: Path, index_class: AnyIndexClass, pairs: list[tuple[int, int]]) -> None:
    """The file of a closed index, written at once."""
    path.write_bytes(b"".join(index_class.layout.pack(*pair) for pair in pairs))


def entry_of(index: AnyIndex, key: int, value: int) -> tuple[int, int]:
    """The entry that the file has as `key` and `value`."""
    return (BASE + key, value) if isinstance(index, OffsetIndex) else (key, BASE + value)


def looked_up(index: AnyIndex, key: int) -> tuple[int, int]:
    """What a lookup of a raw key gives."""
    if isinstance(index, OffsetIndex):
        return index.lookup(BASE + key)
    assert isinstance(index, TimeIndex)
    return index.lookup(key)


def no_entry(index: AnyIndex) -> tuple[int, int]:
    """What a lookup gives that finds none."""
    return (BASE, 0) if isinstance(index, OffsetIndex) else (-1, BASE)
