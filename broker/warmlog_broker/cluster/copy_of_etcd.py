"""The copy that each broker keeps of what etcd has: a cluster whose etcd is lost is rebuilt from these.

It is the file `cluster.view` in the first data directory, JSON, which its owner alone may read::

    {"v": 1, "cluster_id": "c", "node": 1, "generation": 0, "revision": 4711, "items": {"/warmlog/c/topics/t": {…}, …}}

`items` has all keys (`keys`) but the registrations of brokers, as of `revision`. A change is in
the file within a second.
"""

import asyncio
import logging
import threading
from concurrent.futures import Executor
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from warmlog_broker.cluster.keys import Keys
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import Change, Item, Revision
from warmlog_broker.metadata.log_file import PRIVATE
from warmlog_broker.replication.membership import NodeMarks
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_protocol.errors import StorageError

FILE_NAME = "cluster.view"
KEPT_S = 0.5
"""The least time between two copies."""
_writing = threading.Lock()

_log = logging.getLogger(__name__)


class CopyOfEtcd(Struct, frozen=True):
    """What one broker knew last."""

    v: int
    cluster_id: str
    node: int
    generation: int
    revision: int
    items: dict[str, msgspec.Raw]

    def marks(self, marks: NodeMarks) -> NodeMarks:
        """Return the marks of the node file, with what the copy knows of etcd beside them: it is written more often."""
        known, seen = (marks.generation, marks.revision), (self.generation, self.revision)
        generation, revision = max(known, seen)
        return replace(marks, generation=generation, revision=revision)

    def view(self) -> View:
        """Return a view that has all of it."""
        at, view = self.revision, View(None, Keys(self.cluster_id), self.node)
        view.take(Revision(at, [Change(key, Item(key, bytes(value), at, at)) for key, value in self.items.items()]))
        return view


def read_copy(data_dir: Path) -> CopyOfEtcd | None:
    """Return the copy in a data directory; None without one. StorageError if it cannot be read."""
    path = data_dir / FILE_NAME
    try:
        found = msgspec.json.decode(path.read_bytes(), type=CopyOfEtcd)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StorageError(f"{path} is damaged ({error}): remove it, another broker's copy counts then") from None
    if found.v != 1:
        raise StorageError(f"{path} has the version {found.v}, this warmlog reads 1: install the newer version")
    return found


async def store_copy(view: View, data_dir: Path, threads: Executor) -> None:
    """Write the copy, durably. An error of the disk is logged: the next change is tried again."""
    registrations = view.keys.broker_prefix
    items = {key: msgspec.Raw(item.value) for key, item in view.items.items() if not key.startswith(registrations)}
    copy = CopyOfEtcd(1, view.keys.cluster_id, view.node, view.generation, view.revision, items)
    content = msgspec.json.encode(copy)

    def write() -> None:
        with _writing:  # a write goes on in its thread if its task is cancelled
            replace_file(data_dir / FILE_NAME, content, mode=PRIVATE)

    try:
        await asyncio.get_running_loop().run_in_executor(threads, write)
    except OSError as error:
        _log.error("the copy of what etcd has cannot be written: %s", error)


async def keep_copy(view: View, data_dir: Path, threads: Executor) -> None:
    """Write the copy now and after each change, for as long as the broker runs."""
    while True:
        kept = view.changed
        await store_copy(view, data_dir, threads)
        await asyncio.sleep(KEPT_S)
        while view.changed == kept:
            await view.moved()
