"""How far something long has come, on stderr: a line that is rewritten on a terminal, one a second elsewhere."""

import sys
import time

from warmlog.cli.terminal.output import note

INTERVAL_S = 1.0


class Status:
    """Tells at most once a second."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._told_at = time.monotonic()
        self._has_line = False

    @property
    def is_due(self) -> bool:
        """Whether it is time to tell something; before that, `tell` does nothing."""
        return time.monotonic() - self._told_at >= INTERVAL_S

    def tell(self, text: str) -> None:
        if not self.is_due:
            return
        self._told_at = time.monotonic()
        if not self._is_terminal:
            note(text)
            return
        self._has_line = True
        sys.stderr.write(f"\r\x1b[Kwarmlog: {text}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Takes the line away."""
        if self._has_line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_line = False
