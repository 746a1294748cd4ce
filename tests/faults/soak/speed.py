"""How fast the machine is: a small fixed piece of work, done again and again, and the processor time that it takes."""

import threading
import time
from typing import Self

PAUSE_S = 0.05
STEPS = 2500
COPIED_BYTES = 1024 * 1024


class Speedometer:
    """A thread that works for about a millisecond, twenty times a second. A context manager.

    It does what the processes of a soak do: bytecode, dictionaries, and a copy that is larger than the nearest cache.
    What counts is the mean: whoever shares the processor takes more of it in one moment than in the next.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._worked_s = 0.0
        self._lock = threading.Lock()
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def take(self) -> float:
        """Pieces of work in a second of processor time, since the last time; there must have been one."""
        with self._lock:
            rounds, worked_s = self._rounds, self._worked_s
            self._rounds, self._worked_s = 0, 0.0
        return rounds / worked_s

    def _work(self) -> None:
        source, copied = bytes(COPIED_BYTES), bytearray(COPIED_BYTES)
        while not self._is_done.wait(PAUSE_S):
            started_s = time.thread_time()
            seen: dict[int, int] = {}
            for number in range(STEPS):
                seen[number & 1023] = seen.get(number * 7 & 1023, 0) + number
            copied[:] = source
            with self._lock:
                self._rounds += 1
                self._worked_s += time.thread_time() - started_s
