"""How far sending has come: counted, told about once a second on a terminal, and summed up at the end."""

import sys
import time

MB = 1_000_000
STATUS_INTERVAL_S = 0.5


class Progress:
    """Counts acknowledged records and their bytes. `shows_status`: rewrites a line on stderr as it goes."""

    def __init__(self, *, shows_status: bool) -> None:
        self.records = 0
        self.value_bytes = 0
        self._shows_status = shows_status
        self._started_at = time.perf_counter()
        self._told_at = self._started_at
        self._has_status = False

    def add(self, records: int, value_bytes: int) -> None:
        """So many more records are acknowledged."""
        self.records += records
        self.value_bytes += value_bytes
        if self._shows_status and time.perf_counter() - self._told_at >= STATUS_INTERVAL_S:
            self._tell()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return max(time.perf_counter() - self._started_at, 1e-9)

    def clear(self) -> None:
        """Takes the status line away."""
        if self._has_status:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._has_status = False

    def summary(self) -> str:
        """One line for people."""
        seconds = self.seconds
        return (
            f"{self.records:,} records, {self.value_bytes / MB:,.1f} MB in {seconds:.2f} s: "
            f"{self.records / seconds:,.0f} records/s, {self.value_bytes / seconds / MB:,.1f} MB/s"
        )

    def figures(self) -> dict[str, int | float]:
        """The same for scripts."""
        seconds = self.seconds
        return {
            "records": self.records,
            "bytes": self.value_bytes,
            "seconds": round(seconds, 6),
            "records_per_s": round(self.records / seconds, 1),
            "mb_per_s": round(self.value_bytes / seconds / MB, 3),
        }

    def _tell(self) -> None:
        self._told_at = time.perf_counter()
        self._has_status = True
        sys.stderr.write(f"\r\x1b[K{self.summary()}")
        sys.stderr.flush()
