"""A console as a process of its own, for tests."""

import os
import re
import signal
import subprocess
import threading
from pathlib import Path
from typing import Self

from forked import Forked
from integration.command_line import WARMLOG

ADDRESS = re.compile(r"the console is at (\S+)")


class ConsoleProcess:
    """`warmlog console` at a port of its own; entering waits until it listens, leaving ends it."""

    def __init__(
        self, broker: str, *options: str, variables: dict[str, str] | None = None, is_forked: bool = False
    ) -> None:
        """A fork starts in a tenth of the time; its memory is not that of a program of its own."""
        given = () if "--listen" in options else ("--listen", "127.0.0.1:0")
        self._arguments = ["console", "--no-open", "--broker", broker, *given, *options]
        self._is_forked = is_forked
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("WARMLOG_")}
        self._environment |= {"WARMLOG_CONFIG": "", "XDG_CONFIG_HOME": "/nonexistent", **(variables or {})}
        self.address = ""
        """As it prints it: with the token, if there is one."""
        self.output = ""

    @property
    def url(self) -> str:
        """The address of the first page, without a slash at its end."""
        return re.sub(r"/(login\?.*)?$", "", self.address)

    @property
    def rss_bytes(self) -> int:
        """The memory that is resident."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def port(self) -> int:
        """The port at which it listens, whatever address it prints."""
        links = [link for link in Path(f"/proc/{self.process.pid}/fd").iterdir() if link.is_symlink()]
        inodes = {link.readlink().name.removeprefix("socket:[").removesuffix("]") for link in links}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                return int(fields[1].partition(":")[2], 16)
        raise LookupError("it does not listen")

    def __enter__(self) -> Self:
        reading, writing = os.pipe()
        self._stderr = open(reading)
        self.process = self._launch(writing)
        os.close(writing)
        for line in self._stderr:
            self.output += line
            if found := ADDRESS.search(line):
                self.address = found[1]
                break
        else:
            self._stderr.close()
            raise RuntimeError(f"the console ended with exit code {self.process.wait()}: {self.output}")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _launch(self, stderr: int) -> "subprocess.Popen[bytes] | Forked":
        if self._is_forked:
            return Forked("warmlog.console", self._arguments, (0, 1, stderr), self._environment)
        return subprocess.Popen([*WARMLOG, *self._arguments], stderr=stderr, env=self._environment)

    def _read(self) -> None:
        for line in self._stderr:
            self.output += line

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self._reader.join(40)
            self._stderr.close()
