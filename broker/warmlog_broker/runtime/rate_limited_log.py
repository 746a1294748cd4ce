"""Log lines that any peer can cause as often as it likes: the first few of each kind in a period, then a count.

For what peers do to their own connections, and for requests that failed because of the disk. Bugs are always logged.
"""

import logging

LINES = 10
"""Of each kind, in each period."""
PERIOD_S = 10.0


class _Kind:
    __slots__ = ("count", "last", "since_s")

    def __init__(self, now_s: float) -> None:
        self.since_s = now_s
        self.count = 0
        self.last = ""


class RepeatedLines:
    """Writes them. The kinds are few, and named in the code: no text from a peer is kept."""

    def __init__(self, log: logging.Logger, *, lines: int = LINES, period_s: float = PERIOD_S) -> None:
        self._log = log
        self._lines = lines
        self._period_s = period_s
        self._kinds: dict[str, _Kind] = {}

    def write(self, level: int, kind: str, message: str, now_s: float) -> None:
        """Write `message`, or count it if there were enough of its kind."""
        state = self._kinds.get(kind)
        if state is None:
            state = self._kinds[kind] = _Kind(now_s)
        state.count += 1
        state.last = message
        if state.count <= self._lines:
            self._log.log(level, "%s", message)

    def tick(self, now_s: float) -> None:
        """Sum up the kinds whose period is over. To be called now and then."""
        for kind, state in list(self._kinds.items()):
            if now_s - state.since_s >= self._period_s:
                del self._kinds[kind]
                self._sum_up(kind, state, now_s)

    def finish(self, now_s: float) -> None:
        """Sum up everything, at the end."""
        for kind, state in self._kinds.items():
            self._sum_up(kind, state, now_s)
        self._kinds.clear()

    def _sum_up(self, kind: str, state: _Kind, now_s: float) -> None:
        left_out = state.count - self._lines
        if left_out > 0:
            self._log.info("%s: %d more in %.0f s, the last: %s", kind, left_out, now_s - state.since_s, state.last)
