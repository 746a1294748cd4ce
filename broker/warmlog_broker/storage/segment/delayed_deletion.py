"""Deletes the files of removed segments after `file.delete.delay.ms`."""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count


class DueDeletions:
    """Deletions that wait for their time. Whoever keeps house takes what is due; nothing runs by itself."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_due_ms(self) -> int | None:
        """When the first deletion is due; None when nothing waits."""
        return self._waiting[0][0] if self._waiting else None

    def add(self, due_ms: int, deletions: Iterable[Callable[[], None]]) -> None:
        """Each of `deletions` is called once, from `due_ms` on."""
        for deletion in deletions:
            heappush(self._waiting, (due_ms, next(self._numbers), deletion))

    def take_due(self, now_ms: int, longest_delay_ms: int) -> list[Callable[[], None]]:
        """What is due, in order of its time; it is no longer waited for.

        Nothing waits for longer than `longest_delay_ms` from now on: what seems to was added before the clock was set
        back, and would keep its room on the disk until the clock is there again.
        """
        latest_ms = now_ms + longest_delay_ms
        if self._waiting and self._waiting[0][0] > latest_ms:
            self._waiting = sorted((latest_ms, number, deletion) for _, number, deletion in self._waiting)
        due = []
        while self._waiting and self._waiting[0][0] <= now_ms:
            due.append(heappop(self._waiting)[2])
        return due


def run_deletions(deletions: Iterable[Callable[[], None]]) -> None:
    """Carries out all of `deletions`, in any thread.

    The first OSError is raised when all were tried; what failed is not tried again before the next start.
    """
    first_error: OSError | None = None
    for deletion in deletions:
        try:
            deletion()
        except OSError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
