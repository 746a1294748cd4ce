"""Names of a segment's files, and their deletion after `file.delete.delay.ms`.

A name is the base offset in 20 digits and a kind; a suffix such as `.deleted` may follow. The `.log` is renamed and
deleted first: without it, the next start removes the others.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

LOG_KIND = ".log"
OFFSET_INDEX_KIND = ".index"
TIME_INDEX_KIND = ".timeindex"
TRANSACTION_INDEX_KIND = ".txnindex"
KINDS = (LOG_KIND, OFFSET_INDEX_KIND, TIME_INDEX_KIND, TRANSACTION_INDEX_KIND)
"""In the order in which they are renamed and deleted."""


def segment_file_name(base_offset: int, kind: str, suffix: str = "") -> str:
    """The name of a segment's file; `kind` begins with a dot, and so does `suffix` unless it is empty."""
    return f"{base_offset:020d}{kind}{suffix}"


def split_name(name: str) -> tuple[int, str]:
    """The base offset in a segment's file name and what follows it, kind and suffix; (-1, "") for any other name."""
    digits, rest = name[:20], name[20:]
    return (int(digits), rest) if rest and digits.isascii() and digits.isdecimal() else (-1, "")


def base_offsets_in(directory: Path) -> list[int]:
    """The base offsets of the `.log` files in a partition's directory, in order; none if there is no such directory.

    Raises OSError if it cannot be read: a log that is not seen would count as empty.
    """
    try:
        names = os.listdir(directory)  # noqa: PTH208 - a start after a crash asks for each partition
    except (FileNotFoundError, NotADirectoryError):
        return []
    logs = [split_name(name) for name in names if name.endswith(LOG_KIND)]
    return sorted(base_offset for base_offset, kind in logs if kind == LOG_KIND)


class DelayedDeletions:
    """Deletions that wait, in the order in which they were added. Housekeeping polls for due ones.

    The wait of each begins with the first `take_due` after it was added, so that only one caller needs a clock.
    """

    def __init__(self) -> None:
        self._new: list[Callable[[], None]] = []
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._new) + len(self._waiting)

    def add(self, deletion: Callable[[], None]) -> None:
        """Schedule `deletion`, to be called once, after those that were added before it."""
        self._new.append(deletion)

    def take_due(self, elapsed_ms: int, delay_ms: int) -> list[Callable[[], None]]:
        """Remove and return what has waited for `delay_ms`. `elapsed_ms` is a clock that never goes back."""
        self._waiting.extend((elapsed_ms, deletion) for deletion in self._new)
        self._new.clear()
        due = []
        while self._waiting and self._waiting[0][0] + delay_ms <= elapsed_ms:
            due.append(self._waiting.popleft()[1])
        return due


def run_deletions(deletions: Iterable[Callable[[], object]]) -> None:
    """Call all of `deletions`, in any thread, then raise the first OSError; a failed one is not retried."""
    first_error: OSError | None = None
    for deletion in deletions:
        try:
            deletion()
        except OSError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
