"""Rate-limited log lines, for events that peers cause at any rate: the first of each kind in a period, then a count.

Used for errors of connections, and for requests that failed because of the disk. Bugs are always logged.
"""

import logging

from msgspec import Struct

LINES = 10
"""The lines of each kind that are logged in a period."""
PERIOD_S = 10.0


class _Kind(Struct):
    since_s: float
    count: int = 0
    last: str = ""


class RepeatedLines:
    """Logs the first lines of each kind, and counts the others. Kinds are few constants: no text of a peer is kept."""

    def __init__(self, log: logging.Logger, *, lines: int = LINES, period_s: float = PERIOD_S) -> None:
        self._log = log
        self._lines = lines
        self._period_s = period_s
        self._kinds: dict[str, _Kind] = {}

    def write(self, level: int, kind: str, message: str, now_s: float) -> None:
        """Log `message`, or count it if enough of its kind were logged."""
        state = self._kinds.get(kind)
        if state is None:
            state = self._kinds[kind] = _Kind(now_s)
        state.count += 1
        state.last = message
        if state.count <= self._lines:
            self._log.log(level, "%s", message)

    def tick(self, now_s: float) -> None:
        """Log the counts of kinds whose period is over. To be called periodically."""
        for kind, state in list(self._kinds.items()):
            if now_s - state.since_s >= self._period_s:
                del self._kinds[kind]
                self._sum_up(kind, state, now_s)

    def finish(self, now_s: float) -> None:
        """Log all counts, at the end."""
        for kind, state in self._kinds.items():
            self._sum_up(kind, state, now_s)
        self._kinds.clear()

    def _sum_up(self, kind: str, state: _Kind, now_s: float) -> None:
        left_out = state.count - self._lines
        if left_out > 0:
            self._log.info("%s: %d more in %.0f s, the last: %s", kind, left_out, now_s - state.since_s, state.last)
