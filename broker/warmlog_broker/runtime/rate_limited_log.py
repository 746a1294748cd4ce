"""Rate-limited log lines, for events that peers cause at any rate: the first of each kind in a period, then a count.

Used for errors of connections, and for requests that failed because of the disk. Bugs are always logged.
"""

import logging

from msgspec import Struct

LINES = 10
"""The lines of each kind that are logged in a period."""
PERIOD_S = 10.0
MOST_PEERS = 1000
"""The peers with lines of their own: what further ones cause is counted together."""


class _Kind(Struct):
    since_s: float
    lines: int
    period_s: float
    count: int = 0
    last: str = ""


class RepeatedLines:
    """Logs the first lines of each kind, and counts the others.

    Kinds are few constants, or begin with one and end with a peer's address: no text of a peer is kept.
    """

    def __init__(self, log: logging.Logger, *, lines: int = LINES, period_s: float = PERIOD_S) -> None:
        self._log = log
        self._lines = lines
        self._period_s = period_s
        self._kinds: dict[str, _Kind] = {}

    def write(self, level: int, kind: str, message: str, now_s: float) -> None:
        """Log `message`, or count it if enough of its kind were logged."""
        self._write(level, kind, message, _Kind(now_s, self._lines, self._period_s))

    def write_of_peer(self, level: int, kind: str, host: str, message: str, now_s: float) -> None:
        """Log `message`, unless one of its kind was logged for `host` within a minute."""
        is_known = len(self._kinds) < MOST_PEERS or f"{kind} from {host}" in self._kinds
        self._write(level, f"{kind} from {host if is_known else 'others'}", message, _Kind(now_s, 1, 60.0))

    def _write(self, level: int, kind: str, message: str, new: _Kind) -> None:
        state = self._kinds.setdefault(kind, new)
        state.count += 1
        state.last = message
        if state.count <= state.lines:
            self._log.log(level, "%s", message)

    def tick(self, now_s: float) -> None:
        """Log the counts of kinds whose period is over. To be called periodically."""
        for kind, state in list(self._kinds.items()):
            if now_s - state.since_s >= state.period_s:
                del self._kinds[kind]
                self._sum_up(kind, state, now_s)

    def finish(self, now_s: float) -> None:
        """Log all counts, at the end."""
        for kind, state in self._kinds.items():
            self._sum_up(kind, state, now_s)
        self._kinds.clear()

    def _sum_up(self, kind: str, state: _Kind, now_s: float) -> None:
        left_out = state.count - state.lines
        if left_out > 0:
            self._log.info("%s: %d more in %.0f s, the last: %s", kind, left_out, now_s - state.since_s, state.last)
