"""Serves a `Disk` as a file system (FUSE), in a process of its own: `python -m faults.power.server` (see `main`).

Commands come as lines of JSON on standard input, and each is answered by a line of JSON on standard output: see
`Commands`. The kernel keeps pages of what was read, as of any file system; writes come here at once. It does not pass
`syncfs` on. libfuse may be of version 2 or 3, whichever mfusepy finds.
"""

import argparse
import errno
import functools
import json
import os
import random
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import mfusepy

from faults.power.disk import Disk, Node, PowerIsOff

BLOCK_BYTES = 4096
AUTO_INVAL_DATA = 1 << 12
"""libfuse 3 asks for this capability of the kernel's by itself: to forget pages when a time of the file changes."""
FREE_BYTES = 1 << 34
"""What a disk without a capacity says to be free."""


def _exclusive(operation: Callable[..., Any]) -> Callable[..., Any]:
    """One at a time, and none once the power is off."""

    @functools.wraps(operation)
    def run(self: "PowerFileSystem", *arguments: Any) -> Any:
        with self._turn:
            if self.disk.is_off:
                raise PowerIsOff
            return operation(self, *arguments)

    return run


class PowerFileSystem(mfusepy.Operations):  # type: ignore[misc]
    """The operations that FUSE asks for. A handle is a number that stands for an open file."""

    use_ns = True
    flag_nopath = flag_nullpath_ok = True

    def __init__(self, disk: Disk, lock: threading.Lock) -> None:
        self.disk = disk
        self._turn = lock
        self._open: dict[int, Node] = {}
        disk.open_nodes = self._open.values
        self._next_handle = 1

    def init_with_config(self, connection: Any, config: Any) -> None:
        """Called once it is mounted: from here on pages stay in the cache, whatever the disk has."""
        connection.want &= ~AUTO_INVAL_DATA

    @_exclusive
    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, int]:
        node = self._node(path, fh)
        size_bytes = node.size_bytes
        times = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), node.mtime_ns)
        blocks = -(-size_bytes // 512)
        links = 2 if node.is_directory else 1
        return {"st_mode": node.mode, "st_nlink": links, "st_size": size_bytes, "st_blocks": blocks, **times}

    @_exclusive
    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *self._node(path, fh).names]

    @_exclusive
    def statfs(self, path: str) -> dict[str, int]:
        used, capacity = self.disk.used_bytes, self.disk.capacity_bytes
        total = capacity if capacity is not None else used + FREE_BYTES
        free = max(0, total - used) // BLOCK_BYTES
        return {
            "f_bsize": BLOCK_BYTES,
            "f_frsize": BLOCK_BYTES,
            "f_blocks": total // BLOCK_BYTES,
            "f_bfree": free,
            "f_bavail": free,
            "f_files": 1 << 20,
            "f_ffree": 1 << 19,
            "f_namemax": 255,
        }

    @_exclusive
    def open(self, path: str, flags: int) -> int:
        return self._handle(self.disk.node(path))

    @_exclusive
    def opendir(self, path: str) -> int:
        return self._handle(self.disk.node(path))

    @_exclusive
    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return self._handle(self.disk.create(path, stat.S_IFREG | stat.S_IMODE(mode)))

    @_exclusive
    def mkdir(self, path: str, mode: int) -> int:
        self.disk.create(path, stat.S_IFDIR | stat.S_IMODE(mode))
        return 0

    @_exclusive
    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        return os.pread(self._open[fh].descriptor, size, offset)

    @_exclusive
    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        return self.disk.write(self._open[fh], data, offset)

    @_exclusive
    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        self.disk.truncate(self._node(path, fh), length)
        return 0

    @_exclusive
    def fsync(self, path: str | None, datasync: int, fh: int) -> int:
        self.disk.sync(self._open[fh])
        return 0

    @_exclusive
    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        self.disk.sync_directory(self._open[fh])
        return 0

    @_exclusive
    def rename(self, old: str, new: str, flags: int = 0) -> int:
        self.disk.rename(old, new)
        return 0

    @_exclusive
    def unlink(self, path: str) -> int:
        self.disk.remove(path)
        return 0

    @_exclusive
    def rmdir(self, path: str) -> int:
        self.disk.remove(path)
        return 0

    @_exclusive
    def link(self, target: str, source: str) -> int:
        self.disk.link(target, source)
        return 0

    @_exclusive
    def chmod(self, path: str, mode: int, fh: int | None = None) -> int:
        node = self._node(path, fh)
        node.mode = stat.S_IFMT(node.mode) | stat.S_IMODE(mode)
        return 0

    @_exclusive
    def chown(self, path: str, uid: int, gid: int, fh: int | None = None) -> int:
        return 0

    @_exclusive
    def utimens(self, path: str | None, times: tuple[int, int] | None = None, fh: int | None = None) -> int:
        if times is not None:
            self._node(path, fh).mtime_ns = times[1]
        return 0

    def release(self, path: str | None, fh: int) -> int:
        with self._turn:
            self._open.pop(fh, None)
        return 0

    def releasedir(self, path: str | None, fh: int) -> int:
        return self.release(path, fh)

    def _node(self, path: str | None, fh: int | None) -> Node:
        if fh and fh in self._open:
            return self._open[fh]
        if path is None:
            raise OSError(errno.ENOENT, "no such file")
        return self.disk.node(path)

    def _handle(self, node: Node) -> int:
        handle, self._next_handle = self._next_handle, self._next_handle + 1
        self._open[handle] = node
        return handle


class _Fuse(mfusepy.FUSE):  # type: ignore[misc]
    """With libfuse 3 an open file has a handle and no path: mfusepy does not hand the former on in these."""

    def truncate_fuse_3(self, path: bytes | None, length: int, file: Any) -> int:
        return int(self.operations.truncate(path and os.fsdecode(path), length, _handle_of(file)))

    def chmod_fuse_3(self, path: bytes | None, mode: int, file: Any) -> int:
        return int(self.operations.chmod(path and os.fsdecode(path), mode, _handle_of(file)))


def _handle_of(file: Any) -> int | None:
    return file.contents.fh if file else None


class Commands:
    """What the test asks of the disk, beside its files."""

    def __init__(self, disk: Disk, lock: threading.Lock) -> None:
        self._disk = disk
        self._lock = lock

    def serve(self) -> None:
        """Answers commands until standard input ends."""
        for line in sys.stdin:
            command = json.loads(line)
            with self._lock:
                answer = getattr(self, command.pop("do"))(**command)
            print(json.dumps(answer), flush=True)

    def operations(self) -> dict[str, object]:
        """How many changes there were, and whether the power is off, and since when."""
        return {"operations": self._disk.operations, "is_off": self._disk.is_off, "off_at_s": self._disk.off_at_s}

    def cut_after(self, operations: int) -> dict[str, object]:
        """The power goes with the change that comes so many after the last one."""
        self._disk.cut_at = self._disk.operations + operations
        return self.operations()

    def cut(self) -> dict[str, object]:
        """The power goes now."""
        self._disk.cut()
        return self.operations()

    def survivors(self, target: str, seed: int) -> dict[str, object]:
        """Writes what is left to the new directory `target`; only after the power went."""
        assert self._disk.is_off
        self._disk.survivors(Path(target), random.Random(seed))
        return self.operations()

    def fail_syncs(self, count: int) -> dict[str, object]:
        """The next so many syncs of files fail."""
        left = [count]

        def refuse() -> bool:
            left[0] -= 1
            return left[0] >= 0

        self._disk.refuse_sync = refuse
        return self.operations()

    def limit(self, capacity_bytes: int | None) -> dict[str, object]:
        """From now on the disk holds so much; None: no end of room."""
        self._disk.capacity_bytes = capacity_bytes
        return {"used_bytes": self._disk.used_bytes}


def main() -> None:
    """Mounts the contents of a directory, which is not changed, until it is unmounted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mount", type=Path)
    parser.add_argument("contents", type=Path)
    parser.add_argument("scratch", type=Path)
    options = parser.parse_args()
    lock = threading.Lock()
    disk = Disk(options.contents, options.scratch)
    threading.Thread(target=Commands(disk, lock).serve, daemon=True).start()
    try:
        with suppress(RuntimeError):  # libfuse takes being unmounted while files are open for an error
            _Fuse(PowerFileSystem(disk, lock), str(options.mount), foreground=True, nothreads=True, hard_remove=True)
    finally:
        disk.close()


if __name__ == "__main__":
    main()
