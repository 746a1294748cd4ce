"""Progress of a long command on stderr: a line that is rewritten on a terminal, one line a second elsewhere."""

import sys
import time

from warmlog.cli.terminal.output import counted, note
from warmlog.cli.terminal.tables import harmless, human_size

MB = 1_000_000
INTERVAL_S = 1.0


class Status:
    """A line of text that is updated at most once a second."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._told_at = time.monotonic()
        self._has_line = False

    @property
    def is_due(self) -> bool:
        """Whether `tell` would show something now."""
        return time.monotonic() - self._told_at >= INTERVAL_S

    def tell(self, text: str) -> None:
        if not self.is_due:
            return
        self._told_at = time.monotonic()
        if not self._is_terminal:
            note(text)
            return
        self._has_line = True
        sys.stderr.write(f"\r\x1b[Kwarmlog: {harmless(text)}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Erase the line from the terminal."""
        if self._has_line:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_line = False


class Progress:
    """Counts records and their bytes; with `shows_status` it updates a status line.

    With `total_bytes`, the size of an input of lines, the line shows the percentage and the time left.
    """

    def __init__(self, *, shows_status: bool, total_bytes: int | None = None) -> None:
        self.records = 0
        self.value_bytes = 0
        self._total_bytes = total_bytes
        self._status = Status() if shows_status else None
        self._started_at = time.perf_counter()

    def add(self, records: int, value_bytes: int) -> None:
        """Count further records."""
        self.records += records
        self.value_bytes += value_bytes
        if self._status is not None and self._status.is_due:
            self._status.tell(self.summary() + self._outlook())

    def clear(self) -> None:
        """Erase the status line."""
        if self._status is not None:
            self._status.clear()

    @property
    def _seconds(self) -> float:
        return max(time.perf_counter() - self._started_at, 1e-9)

    def counted_records(self) -> str:
        """Return the count as the subject of a sentence: "1 record was", "2,000 records were"."""
        return f"{counted(self.records, 'record')} {'was' if self.records == 1 else 'were'}"

    def _outlook(self) -> str:
        """Return the share of the input that is done, a newline counted for each record, and the time left."""
        done_bytes = self.value_bytes + self.records
        if not self._total_bytes or not done_bytes:
            return ""
        share = min(done_bytes / self._total_bytes, 1.0)
        return f", {share:.0%}, {self._seconds * (1 / share - 1):.0f} s left"

    def summary(self) -> str:
        """Return counts and rates in one line for people."""
        seconds = self._seconds
        return (
            f"{counted(self.records, 'record')}, {human_size(self.value_bytes)} in {seconds:.2f} s: "
            f"{self.records / seconds:,.0f} records/s, {human_size(round(self.value_bytes / seconds))}/s"
        )

    def figures(self) -> dict[str, int | float]:
        """Return the same for scripts."""
        seconds = self._seconds
        return {
            "records": self.records,
            "bytes": self.value_bytes,
            "seconds": round(seconds, 6),
            "records_per_s": round(self.records / seconds, 1),
            "mb_per_s": round(self.value_bytes / seconds / MB, 3),
        }
