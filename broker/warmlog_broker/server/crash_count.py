"""Refuses to start a broker again and again if it crashes before it serves.

`.warmlog_starts` in the first data directory has one line for each start that has neither served nor ended in order:
its time, in milliseconds since 1970. A broker that serves removes the file, so later crashes and kills do not count. A
start that ends with a reported error, or is told to stop, removes its own line. Other lines, such as those of 0.1.0,
are ignored. A file that cannot be read or written does not prevent a start.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_protocol.errors import WarmlogError

FILE_NAME = ".warmlog_starts"

_log = logging.getLogger(__name__)


class CrashLoop(WarmlogError):
    """Too many starts have crashed before the broker served."""


class CrashCount:
    """The crashed starts of the broker of one data directory."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int] = now_ms) -> None:
        """`now_ms` is the time of day."""
        self.path = config.data_paths[0].absolute() / FILE_NAME
        self._limit = config.crash_loop_limit
        self._window_ms = config.crash_loop_window_ms
        self._now_ms = now_ms
        self._crashed_ms: list[int] | None = None
        """When the starts that count were; None if this start is not recorded."""

    def begin(self) -> None:
        """Record this start durably. Raises CrashLoop if `crash.loop.limit` starts have crashed within the window.

        A crash in the future counts too: the clock may have been wrong.
        """
        if not self._limit:
            return
        now_ms = self._now_ms()
        crashed_ms = [at_ms for at_ms in self._read() if abs(now_ms - at_ms) <= self._window_ms][-self._limit :]
        if len(crashed_ms) == self._limit:
            raise CrashLoop(
                f"the last {self._limit} starts crashed before the broker served, at {_listed(crashed_ms)}: look for "
                f"the cause in the log of these starts. Then remove {self.path}, or start once with "
                f"crash.loop.limit=0; {self._window_ms // 60_000} minutes after the first of them it may start again "
                "without that"
            )
        if crashed_ms:
            _log.warning("starts that crashed before the broker served: %s", _listed(crashed_ms))
        self._write([*crashed_ms, now_ms])
        self._crashed_ms = crashed_ms

    def begun_in_vain(self) -> None:
        """Note that this start has ended without a crash: earlier ones still count."""
        if self._crashed_ms is not None:
            self._write(self._crashed_ms)

    def served(self) -> None:
        """Forget all crashes."""
        self._crashed_ms = None
        self._write([])

    def _read(self) -> list[int]:
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning("earlier crashes are unknown, as %s cannot be read: %s", self.path, error)
            return []
        return [int(line) for line in lines if line.isdigit()]

    def _write(self, starts_ms: Sequence[int]) -> None:
        try:
            if starts_ms:
                replace_file(self.path, "".join(f"{at_ms}\n" for at_ms in starts_ms).encode())
            else:
                self.path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be written, so crashes may be counted wrongly: %s", self.path, error)


def _listed(times_ms: Sequence[int]) -> str:
    return ", ".join(f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" for at_ms in times_ms)
