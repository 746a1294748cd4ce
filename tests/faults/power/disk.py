"""A disk that remembers what was synced, and on a power cut forgets, mixes up and tears the rest.

It keeps a tree of files and directories twice: as programs see it (*live*), and as it is sure to be found after the
power came back (*durable*). What POSIX promises, and not more:

- a write or a truncation is durable once its file was synced;
- a name (created, removed, renamed) is durable once its directory was synced: a synced file under a name that was
  not is lost;
- until then a cut may keep all, nothing, or any blocks of what was written, in any order, and the last write in part;
  of the names of a directory it keeps the first so many changes, as file systems with a journal do.

`cut` makes the durable tree, with whatever else luck has kept, a plain directory, to begin again from. One thread at
a time. Contents lie in real files, so that a disk may be larger than memory.
"""

import errno
import os
import random
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

BLOCK_BYTES = 4096
ROOT = 1
SWEEP_EVERY = 500
"""After so many new nodes those are freed that nothing can reach: each file holds a descriptor."""


class Write(NamedTuple):
    """`[start, end)` of a file was written."""

    start: int
    end: int


class Truncate(NamedTuple):
    """A file got this size."""

    size_bytes: int


class NameChange(NamedTuple):
    """A directory's entry now leads to `number`; None: it is gone. `replaced` went in the same step."""

    name: str
    number: int | None
    replaced: str = ""


@dataclass(slots=True)
class Node:
    """A file or a directory."""

    number: int
    mode: int
    mtime_ns: int
    descriptor: int = -1
    durable: Path = Path()
    """What of a file is durable. It is opened when needed: there may be as many files as descriptors."""
    unsynced: list[Write | Truncate] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    durable_names: dict[str, int] = field(default_factory=dict)
    unsynced_names: list[NameChange] = field(default_factory=list)

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def size_bytes(self) -> int:
        return 0 if self.is_directory else os.fstat(self.descriptor).st_size


class PowerIsOff(OSError):
    """What every operation gets from the cut on."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power is off")


class Disk:
    """The tree. Changing operations are counted; the one that `cut_at` names is under way when the power goes."""

    def __init__(self, contents: Path, scratch: Path, *, capacity_bytes: int | None = None) -> None:
        """Begins with the files below `contents`, all of them durable. `scratch` is filled with working files."""
        self.capacity_bytes = capacity_bytes
        self.operations = 0
        self.cut_at: int | None = None
        self.is_off = False
        self.off_at_s = 0.0
        """When the power went, by time.monotonic, which all processes of a machine share."""
        self.refuse_sync: Callable[[], bool] = bool
        """Asked at each sync of a file: True lets it fail, and what was to be synced never reaches the disk."""
        self.open_nodes: Callable[[], Iterable[Node]] = tuple
        """Asked which nodes programs have open: they are kept although no name leads to them."""
        self._scratch = scratch
        self._nodes: dict[int, Node] = {}
        self._next_number = ROOT
        self._sweep_at = SWEEP_EVERY
        scratch.mkdir(parents=True)
        self._load(contents)

    # Looking

    def node(self, path: str) -> Node:
        """The file or directory at `path`, which begins with a slash; OSError where there is none."""
        node = self._nodes[ROOT]
        for name in path.split("/"):
            if not name:
                continue
            number = node.names.get(name)
            if number is None:
                raise OSError(errno.ENOENT if node.is_directory else errno.ENOTDIR, "no such file", path)
            node = self._nodes[number]
        return node

    def parent(self, path: str) -> tuple[Node, str]:
        """The directory that holds `path`, and the last name."""
        parent, _, name = path.rpartition("/")
        return self.node(parent), name

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    @property
    def used_bytes(self) -> int:
        """What all files have together; deleted ones that are still open included."""
        return sum(node.size_bytes for node in self if not node.is_directory)

    # Changing

    def create(self, path: str, mode: int) -> Node:
        self._check_power()
        parent, name = self.parent(path)
        if name in parent.names:
            raise OSError(errno.EEXIST, "exists", path)
        node = self._new_node(mode)
        self._change(parent, NameChange(name, node.number))
        self._count()
        return node

    def write(self, node: Node, data: bytes, offset: int) -> int:
        self._check_power()
        end = offset + len(data)
        self._check_room(end - node.size_bytes)
        os.pwrite(node.descriptor, data, offset)
        last = node.unsynced[-1] if node.unsynced else None
        if isinstance(last, Write) and last.end == offset:
            node.unsynced[-1] = Write(last.start, end)
        else:
            node.unsynced.append(Write(offset, end))
        node.mtime_ns = time.time_ns()
        self._count()
        return len(data)

    def truncate(self, node: Node, size_bytes: int) -> None:
        self._check_power()
        self._check_room(size_bytes - node.size_bytes)
        os.ftruncate(node.descriptor, size_bytes)
        node.unsynced.append(Truncate(size_bytes))
        node.mtime_ns = time.time_ns()
        self._count()

    def sync(self, node: Node) -> None:
        """What was written to a file until now is durable (its name is not)."""
        self._check_power()
        self._count()
        if self.refuse_sync():
            _lose_unsynced(node)
            raise OSError(errno.EIO, "the sync failed")
        with node.durable.open("r+b", buffering=0) as durable:
            for change in node.unsynced:
                _apply(node, change, durable.fileno())
        node.unsynced.clear()

    def sync_directory(self, node: Node) -> None:
        """The names in a directory are durable."""
        self._check_power()
        self._count()
        node.durable_names = dict(node.names)
        node.unsynced_names.clear()

    def rename(self, old: str, new: str) -> None:
        self._check_power()
        old_parent, old_name = self.parent(old)
        new_parent, new_name = self.parent(new)
        node = self.node(old)
        replaced = new_parent.names.get(new_name)
        if replaced is not None and replaced != node.number and self._nodes[replaced].names:
            raise OSError(errno.ENOTEMPTY, "not empty", new)
        if old_parent is new_parent:
            self._change(new_parent, NameChange(new_name, node.number, replaced=old_name))
        else:
            self._change(new_parent, NameChange(new_name, node.number))
            self._change(old_parent, NameChange(old_name, None))
        self._count()

    def remove(self, path: str) -> None:
        """Takes a file's name away, or that of an empty directory."""
        self._check_power()
        parent, name = self.parent(path)
        if self.node(path).names:
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        self._change(parent, NameChange(name, None))
        self._count()

    def link(self, path: str, source: str) -> None:
        self._check_power()
        parent, name = self.parent(path)
        self._change(parent, NameChange(name, self.node(source).number))
        self._count()

    # The power

    def cut(self) -> None:
        """From now on every operation fails, and nothing changes any more."""
        if not self.is_off:
            self.is_off = True
            self.off_at_s = time.monotonic()

    def survivors(self, target: Path, luck: random.Random) -> None:
        """Writes what the power cut has left as plain files below `target`, which is made."""
        target.mkdir(parents=True)
        self._write_directory(self._nodes[ROOT], target, luck)

    def close(self) -> None:
        for node in self:
            self._release(node)
        self._nodes.clear()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check_power(self) -> None:
        if self.is_off:
            raise PowerIsOff

    def _count(self) -> None:
        """Counts one change; PowerIsOff when the power goes with it.

        A sync counts before it is done, everything else after it: what is under way may come through, or not.
        """
        self.operations += 1
        if self.cut_at is not None and self.operations >= self.cut_at:
            self.cut()
            raise PowerIsOff

    def _check_room(self, more_bytes: int) -> None:
        if self.capacity_bytes is not None and more_bytes > 0 and self.used_bytes + more_bytes > self.capacity_bytes:
            raise OSError(errno.ENOSPC, "the disk is full")

    # Nodes

    def _change(self, parent: Node, change: NameChange) -> None:
        _change_names(parent.names, change)
        parent.unsynced_names.append(change)
        parent.mtime_ns = time.time_ns()

    def _new_node(self, mode: int) -> Node:
        if len(self._nodes) >= self._sweep_at:
            self._sweep()
        node = Node(self._next_number, mode, time.time_ns())
        self._next_number += 1
        if not node.is_directory:
            node.descriptor = os.open(self._live(node), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            node.durable = self._scratch / f"{node.number}.durable"
            node.durable.touch()
        self._nodes[node.number] = node
        return node

    def _live(self, node: Node) -> Path:
        return self._scratch / f"{node.number}.live"

    def _sweep(self) -> None:
        """Frees the nodes that no program has open and no name can lead to, whatever a power cut may keep."""
        kept = {ROOT} | {node.number for node in self.open_nodes()}
        found = list(kept)
        while found:
            node = self._nodes[found.pop()]
            changed = (change.number for change in node.unsynced_names if change.number is not None)
            reached = {*node.names.values(), *node.durable_names.values(), *changed} - kept
            kept |= reached
            found.extend(reached)
        for node in [node for node in self if node.number not in kept]:
            del self._nodes[node.number]
            self._release(node)
        self._sweep_at = len(self._nodes) + SWEEP_EVERY

    def _release(self, node: Node) -> None:
        if not node.is_directory:
            os.close(node.descriptor)
            self._live(node).unlink()
            node.durable.unlink()

    def _load(self, contents: Path) -> None:
        self._new_node(stat.S_IFDIR | 0o755)
        numbers = {contents: ROOT}
        for parent, directories, files in os.walk(contents):
            node = self._nodes[numbers[Path(parent)]]
            for name in directories:
                child = self._new_node(stat.S_IFDIR | 0o755)
                numbers[Path(parent, name)] = child.number
                node.names[name] = child.number
            for name in files:
                source = Path(parent, name)
                child = self._new_node(stat.S_IFREG | stat.S_IMODE(source.stat().st_mode))
                for copy in (self._live(child), child.durable):
                    shutil.copyfile(source, copy)
                node.names[name] = child.number
            node.durable_names = dict(node.names)

    def _write_directory(self, node: Node, target: Path, luck: random.Random) -> None:
        names = dict(node.durable_names)
        for change in node.unsynced_names[: luck.randint(0, len(node.unsynced_names))]:
            _change_names(names, change)
        for name, number in sorted(names.items()):
            child = self._nodes[number]
            if child.is_directory:
                (target / name).mkdir()
                self._write_directory(child, target / name, luck)
            else:
                _write_survivor(child, target / name, luck)


def _change_names(names: dict[str, int], change: NameChange) -> None:
    if change.replaced:
        names.pop(change.replaced, None)
    if change.number is None:
        names.pop(change.name, None)
    else:
        names[change.name] = change.number


def _apply(node: Node, change: Write | Truncate, durable: int) -> None:
    """Makes one change of a file durable, with the bytes that it has now."""
    if isinstance(change, Truncate):
        os.ftruncate(durable, change.size_bytes)
    else:
        _copy_range(node, change.start, change.end, durable)


def _lose_unsynced(node: Node) -> None:
    """What a failed sync leaves, as on Linux: pages that count as clean, so that no later sync writes them.

    The kernel's page cache has the new bytes until it drops them; what it reads from the disk then are the old ones.
    """
    with node.durable.open("rb", buffering=0) as durable:
        for change in node.unsynced:
            if isinstance(change, Write):
                old = os.pread(durable.fileno(), change.end - change.start, change.start)
                os.pwrite(node.descriptor, old.ljust(change.end - change.start, b"\0"), change.start)
    node.unsynced = [change for change in node.unsynced if isinstance(change, Truncate)]
    node.unsynced.append(Truncate(node.size_bytes))


def _copy_range(node: Node, start: int, end: int, target: int) -> None:
    data = os.pread(node.descriptor, end - start, start)
    os.pwrite(target, data, start)


def _write_survivor(node: Node, target: Path, luck: random.Random) -> None:
    """One file as the cut leaves it: what is durable, and of the rest what luck has brought to the disk."""
    shutil.copyfile(node.durable, target)
    with target.open("r+b") as file:
        survival = luck.choice((0.0, 1.0, 0.5))
        for number, change in enumerate(node.unsynced):
            is_last = number == len(node.unsynced) - 1
            if isinstance(change, Truncate):
                if luck.random() < survival:
                    os.ftruncate(file.fileno(), change.size_bytes)
                continue
            for start, end in _blocks(change, luck if is_last else None):
                if luck.random() < survival:
                    _copy_range(node, start, end, file.fileno())
        if (
            node.unsynced and luck.random() < 0.25
        ):  # the size came through, the blocks did not: zeros, or a shorter file
            os.ftruncate(file.fileno(), max(os.fstat(file.fileno()).st_size, node.size_bytes))


def _blocks(write: Write, tear: random.Random | None) -> Iterator[tuple[int, int]]:
    """The blocks of a write; with `tear` the last of them is cut off somewhere."""
    start = write.start
    while start < write.end:
        end = min((start // BLOCK_BYTES + 1) * BLOCK_BYTES, write.end)
        if tear is not None and end == write.end:
            end = tear.randint(start, end)
        if end > start:
            yield start, end
        start = (start // BLOCK_BYTES + 1) * BLOCK_BYTES
