"""The protocol of a systemd service with `Type=notify`: sd_notify(3), without a library.

The service manager names a datagram socket in `NOTIFY_SOCKET`: a path, or an abstract name that begins with "@".
Each datagram holds lines `NAME=value`. `WATCHDOG_USEC` is the interval at which the manager expects a keep-alive; it is
sent twice as often. Without these variables nothing is sent.
"""

import logging
import os
import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"
ALIVE = "WATCHDOG=1"
EXTENSION_US = 30_000_000

_log = logging.getLogger(__name__)


def is_journal(descriptor: int, environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether what is written to `descriptor` goes to the journal: systemd.exec(5), JOURNAL_STREAM."""
    found = os.fstat(descriptor)
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def status(text: str) -> str:
    """Format the line that `systemctl status` shows."""
    return f"STATUS={text}"


def extend_timeout(microseconds: int = EXTENSION_US) -> str:
    """Format a request for this much more time, from now on, before a start or stop counts as failed."""
    return f"EXTEND_TIMEOUT_USEC={microseconds}"


class ServiceManager:
    """The service manager that started this process, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._alive_interval_s = _watchdog_interval_s(environment) / 2
        self._alive_s = 0.0

    def tell(self, *lines: str) -> None:
        """Send `lines` at once. A failure is logged and otherwise ignored."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
                notify.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            _log.warning("cannot notify the service manager at %r: %s", self._address, error)

    def keep_alive(self, now_s: float) -> None:
        """Send the keep-alive if it is due; to be called often."""
        if self._alive_interval_s and now_s - self._alive_s >= self._alive_interval_s:
            self._alive_s = now_s
            self.tell(ALIVE)


def _watchdog_interval_s(environment: Mapping[str, str]) -> float:
    """Return the interval at which the service manager expects a keep-alive; 0: never."""
    interval, process = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not interval.isdecimal() or (process and process != str(os.getpid())):
        return 0.0
    return int(interval) / 1_000_000
