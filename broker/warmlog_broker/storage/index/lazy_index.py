"""An index that is opened when it is first used (KAFKA-7283).

A broker with thousands of segments must neither open their indexes at its start nor close them at its stop, which took
tens of minutes. Until `get` is called there is only a path, and renaming, deleting and closing need no more.
"""

import os
import threading
from pathlib import Path
from typing import Any, Generic, TypeVar

from warmlog_broker.storage.index.abstract_index import AbstractIndex
from warmlog_broker.storage.io.open_files import ClosedFile, NamedFile, OpenFiles

Index = TypeVar("Index", bound=AbstractIndex[Any])

_OPENING = threading.Lock()
"""Held while any index is opened: two threads that ask for one get the same object (KAFKA-9156)."""


class LazyIndex(NamedFile, Generic[Index]):
    """A path, and from the first `get` on the index there."""

    __slots__ = ("_base_offset", "_max_bytes", "_open_files", "index_class", "is_closed", "loaded")

    def __init__(
        self, path: Path | str, index_class: type[Index], base_offset: int, open_files: OpenFiles, max_bytes: int
    ) -> None:
        """The first `get` opens the index, and creates a missing file with room for `max_bytes`."""
        super().__init__(path)
        self.index_class = index_class
        self._base_offset = base_offset
        self._open_files = open_files
        self._max_bytes = max_bytes
        self.loaded: Index | None = None
        self.is_closed = False

    def get(self) -> Index:
        """The index, opened (and created) if necessary. ClosedFile after `close` and `delete`."""
        index = self.loaded
        return index if index is not None else self._load()

    def resume(self, entries: int) -> Index:
        """Open the index after a crash, with so many entries that were on disk; see AbstractIndex."""
        self.forget()
        return self._load(entries)

    def file_exists(self) -> bool:
        return self.loaded is not None or self.is_there()

    def count_entries(self) -> int:
        """How many entries there are; if the index is not open, how many its file has room for."""
        if self.loaded is not None:
            return self.loaded.entries
        try:
            return os.stat(self._path).st_size // self.index_class.entry_bytes  # noqa: PTH116 - each append after a start
        except FileNotFoundError:
            return 0

    def moved_to(self, path: Path) -> None:
        self._path = path
        if self.loaded is not None:
            self.loaded.moved_to(path)

    def forget(self) -> None:
        """Unmap what is open, as if it had never been opened: for a file that is gone or was replaced."""
        index, self.loaded = self.loaded, None
        if index is not None:
            index.close_handles()

    def close(self) -> None:
        """Trim and unmap an open index; it is not opened for this. Closing again is harmless."""
        self.is_closed = True
        if self.loaded is not None:
            self.loaded.close()

    def close_handles(self) -> None:
        self.is_closed = True
        if self.loaded is not None:
            self.loaded.close_handles()

    def _load(self, entries: int | None = None) -> Index:
        with _OPENING:
            if self.is_closed:
                raise ClosedFile(f"{self.path} was closed or deleted")
            if self.loaded is None:
                self.loaded = self.index_class(
                    self.path,
                    self._base_offset,
                    open_files=self._open_files,
                    max_index_bytes=self._max_bytes,
                    entries=entries,
                )
            return self.loaded
