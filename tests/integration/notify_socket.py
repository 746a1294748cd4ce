"""A service manager's end of sd_notify(3): the socket that NOTIFY_SOCKET names, and what came in on it."""

import socket
import threading
import time
from pathlib import Path
from typing import Self


class NotifySocket:
    """Collects messages, one list of lines a datagram, with the time of each."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.messages: list[tuple[float, list[str]]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._receive, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as closing:
            closing.sendto(b"", str(self.path))
        self._thread.join()
        self._socket.close()

    @property
    def lines(self) -> list[str]:
        """All lines so far, in the order in which they came."""
        return [line for _, message in self.messages for line in message]

    def wait_for(self, line: str, timeout_s: float = 30.0) -> float:
        """When `line` came, in seconds of time.monotonic(); waits for it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for received_at, message in self.messages:
                if line in message:
                    return received_at
            time.sleep(0.01)
        raise AssertionError(f"{line} did not come within {timeout_s} s; there were {self.lines}")

    def _receive(self) -> None:
        while data := self._socket.recv(65536):
            self.messages.append((time.monotonic(), data.decode().split("\n")))
