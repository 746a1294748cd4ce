"""A file system whose power a test can cut: the process that serves it, and what is left after each cut."""

import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Self

from broker_process import BrokerProcess

MOUNT_TIMEOUT_S = 180.0
TESTS = Path(__file__).parents[2]


def why_not() -> str:
    """Why no such file system can be had here; empty when it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is not there, or not open to this user"
    if shutil.which("fusermount3") is None:
        return "fusermount3 is missing (Debian: apt-get install fuse3)"
    if find_spec("mfusepy") is None:
        return "mfusepy is missing (pip install mfusepy)"
    return ""


class PoweredDisk:
    """Mounted at `path` while the context lasts. After `cut` and `restore` it has what the cut has left."""

    def __init__(self, workspace: Path) -> None:
        self.path = workspace / "mount"
        self._workspace = workspace
        self._contents = workspace / "contents-0"
        self._generation = 0
        self._server: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._contents.mkdir(parents=True)
        self.path.mkdir()
        self._mount()
        return self

    def __exit__(self, *_: object) -> None:
        self._unmount()

    @property
    def is_off(self) -> bool:
        return bool(self._ask(do="operations")["is_off"])

    @property
    def operations(self) -> int:
        """How many changes there were since it was mounted."""
        return int(self._ask(do="operations")["operations"])

    def cut_after(self, operations: int) -> None:
        """Lets the power go with the change that comes so many after the last one."""
        self._ask(do="cut_after", operations=operations)

    def cut(self) -> float:
        """Lets the power go now, if it has not gone; when it went, by time.monotonic."""
        return float(self._ask(do="cut")["off_at_s"])

    def restore(self, seed: int) -> None:
        """Puts the power on again: what is found then depends on `seed`. Nobody may have a file open."""
        self._generation += 1
        target = self._workspace / f"contents-{self._generation}"
        self._ask(do="survivors", target=str(target), seed=seed)
        self._unmount()
        shutil.rmtree(self._contents)
        self._contents = target
        self._mount()

    def fail_syncs(self, count: int) -> None:
        """Lets the next so many syncs of files fail, and forgets what they were to write."""
        self._ask(do="fail_syncs", count=count)

    def limit(self, *, free_bytes: int | None) -> None:
        """From now on there is so much room left; None: no end of it."""
        used_bytes = self._ask(do="limit", capacity_bytes=None)["used_bytes"]
        if free_bytes is not None:
            self._ask(do="limit", capacity_bytes=used_bytes + free_bytes)

    def _mount(self) -> None:
        scratch = self._workspace / f"scratch-{self._generation}"
        command = [sys.executable, "-m", "faults.power.server", str(self.path), str(self._contents), str(scratch)]
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        deadline_s = time.monotonic() + MOUNT_TIMEOUT_S
        while not self.path.is_mount():
            if self._server.poll() is not None or time.monotonic() > deadline_s:
                raise RuntimeError(f"the file system could not be mounted at {self.path}")
            time.sleep(0.01)

    def _unmount(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=False, capture_output=True)
        _pipe(server.stdin).close()
        try:
            server.wait(MOUNT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        _pipe(server.stdout).close()

    def _ask(self, **command: object) -> dict[str, Any]:
        assert self._server is not None
        stdin, stdout = _pipe(self._server.stdin), _pipe(self._server.stdout)
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def lose_power(disk: PoweredDisk, broker: BrokerProcess, seed: int) -> None:
    """Cut the power under a running broker, and start it again on what is left."""
    disk.cut()
    broker.kill()
    disk.restore(seed)
    broker.start()
