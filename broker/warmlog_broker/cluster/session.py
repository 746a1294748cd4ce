"""The registration of a broker: a key with a lease, by which the others know that it is alive, and its broker epoch.

A lease that is lost costs a registration: the broker goes on with what the records say, under its next broker epoch.
While etcd does not answer nothing is lost: it lets no lease run out without a leader of its own.

Every few seconds the broker also writes the next mark of its disks (replication/membership), so that an image of them
that is restored later shows.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from msgspec.structs import replace

from warmlog_broker.cluster.keys import FEATURE_LEVEL, NodeValue, Registration, from_bytes, to_bytes
from warmlog_broker.cluster.settling import new_author, settled
from warmlog_broker.cluster.view import View
from warmlog_broker.data_dirs.loader import StartRefused
from warmlog_broker.etcd.coordination import (
    ChangedAt,
    Coordination,
    CreatedAt,
    Delete,
    Failed,
    LeaseEnded,
    Put,
    Succeeded,
)
from warmlog_broker.metadata.metadata_log import NodeMarked
from warmlog_broker.metadata.store import NodeStore
from warmlog_broker.replication.membership import Mark, NodeMarks, next_incarnation
from warmlog_broker.runtime.version import broker_version
from warmlog_protocol.errors import WarmlogError

BEAT_S = 10.0
RETRY_S = 0.5
"""Before a lease that could not be kept alive is tried again."""

_log = logging.getLogger(__name__)


class NodeInUse(StartRefused):
    """Another broker has this broker's node id."""


class Session:
    """The registration of this broker and the mark of its disks, while it runs."""

    def __init__(
        self, etcd: Coordination, view: View, node: NodeStore, described: Registration, timeout_ms: int
    ) -> None:
        """`described` is what the broker tells of itself."""
        self.broker_epoch = 0
        """The revision at which the broker was registered; 0 while it is not."""
        self.on_registered: Callable[[], None] = lambda: None
        """Called when the broker has another broker epoch, which the view may have had before this knew it."""
        self.has_room: Callable[[], bool] = lambda: True
        """Whether this broker's disks take records; the others are told as the lease is kept alive."""
        self._etcd = etcd
        self._view = view
        self._node = node
        self.described = described
        self._ttl_s = max(1, round(timeout_ms / 1000))
        self._value = described
        self._is_ready = True
        """What the others shall know: a write of it that is lost is made again as the lease is kept alive."""
        self._lease = 0
        self._is_lost = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def incarnation(self) -> int:
        """Of this start of the broker: no other has it."""
        return self._marks.intended.incarnation

    @property
    def _marks(self) -> NodeMarks:
        return self._node.state.marks or NodeMarks()

    def stored_mark(self) -> Mark:
        """Return the mark of this node in etcd; `Mark()` if it has none."""
        key = self._view.keys.node(self._view.node)
        if (item := self._view.items.get(key)) is None:
            return Mark()
        value = from_bytes(key, item.value, NodeValue)
        return Mark(value.incarnation, value.beat)

    async def begin_incarnation(self) -> None:
        """Write the mark of this start. Raises NodeInUse if another broker writes that of the same node id."""
        await self._write_mark(next_incarnation(self._marks, self.stored_mark()))

    async def register(self, *, was_clean: bool) -> None:
        """Register, in place of the former registration of this node, which must be dead."""
        self._is_ready = self._view.node not in self._view.drained
        self._value = replace(self.described, was_clean=was_clean)
        await self.unregister()
        await self._register()

    async def unregister(self) -> None:
        """Delete the registration of this node that the view has, if there is one."""
        key = self._view.keys.broker(self._view.node)
        if (item := self._view.items.get(key)) is not None:
            done = await settled(self._etcd, new_author(self._view.node), [CreatedAt(key, item.created)], [Delete(key)])
            await self._view.reached(done.revision if isinstance(done, Succeeded) else 0)

    def begin(self) -> None:
        """Keep the registration alive, and the mark new."""
        self._tasks = [
            asyncio.create_task(self._keep_alive(), name="keep registration"),
            asyncio.create_task(self._beat(), name="beat"),
        ]

    def renew(self) -> None:
        """Register under another broker epoch, so that what was sent under this one counts no more."""
        self.broker_epoch = 0
        self._is_lost.set()

    async def tell(self, *, is_ready: bool) -> None:
        """Tell the others whether this broker may be elected: not if it stops, or is drained.

        On return they may not know yet, if etcd does not answer: they are told again as the lease is kept alive.
        """
        self._is_ready = is_ready
        if self._view.frozen or not self.broker_epoch:
            return
        key = self._view.keys.broker(self._view.node)
        value = replace(self._value, by=new_author(self._view.node), is_ready=is_ready, has_room=self.has_room())
        compares, put = [CreatedAt(key, self.broker_epoch)], Put(key, to_bytes(value), self._lease)
        try:
            await settled(self._etcd, value.by, compares, [put], timeout_s=RETRY_S)
        except WarmlogError as error:
            _log.warning("the other brokers are not told whether this one may lead: %s", error)

    def abandon(self) -> None:
        """Let the registration run out."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """End the registration. The others notice at once, or when it runs out."""
        self.abandon()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            async with asyncio.timeout(RETRY_S):
                await self._etcd.revoke(self._lease)
        except (WarmlogError, TimeoutError) as error:
            _log.warning("the registration of this broker is left to run out: %s", error)

    async def _register(self) -> None:
        """Return once the broker is registered with a lease of its own, under a new broker epoch."""
        key = self._view.keys.broker(self._view.node)
        while True:
            self._lease = await self._etcd.grant(self._ttl_s)
            value = replace(self._value, uuid=str(uuid4()), by=new_author(self._view.node), is_ready=self._is_ready)
            put = Put(key, to_bytes(value), self._lease)
            try:
                done = await settled(self._etcd, value.by, [CreatedAt(key, 0)], [put])
            except LeaseEnded:
                continue
            if isinstance(done, Failed):
                # Of this process, before its lease was lost: a lease that etcd ends early may be alive elsewhere.
                await self._delete_own(key, done)
                continue
            self._value, self.broker_epoch = value, done.revision
            self._is_lost.clear()
            await self._view.reached(done.revision)
            self.on_registered()
            return

    async def _delete_own(self, key: str, failed: Failed) -> None:
        """Delete a registration with this node's directories. Raises NodeInUse if it is another broker's."""
        if (item := failed.items.get(key)) is None:
            return
        found = from_bytes(key, item.value, Registration)
        if not set(found.directories) & set(self.described.directories):
            raise NodeInUse(in_use(self._view.node, found))
        await settled(self._etcd, new_author(self._view.node), [CreatedAt(key, item.created)], [Delete(key)])

    async def _keep_alive(self) -> None:
        """Keep the lease alive, register again when it was lost, and tell again what the others were not told."""
        pause_s = self._ttl_s / 3
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_lost.wait()
            pause_s = self._ttl_s / 3
            if self._view.frozen:
                self._is_lost.clear()
                continue
            try:
                # The view is not before the registration: it has it no more if it has not.
                own = self._view.brokers.get(self._view.node)
                is_gone = own is None or own.broker_epoch != self.broker_epoch
                if self._is_lost.is_set() or is_gone or not await self._etcd.keep_alive(self._lease):
                    _log.warning("the registration of this broker was lost: it registers again")
                    self.broker_epoch = 0
                    await self.unregister()
                    await self._register()
                own = self._view.brokers.get(self._view.node)
                said = None if own is None else (own.value.is_ready, own.value.has_room)
                if said != (self._is_ready, self.has_room()):
                    await self.tell(is_ready=self._is_ready)
            except Exception as error:
                is_known = isinstance(error, WarmlogError)
                _log.warning("the registration of this broker is not kept alive: %s", error, exc_info=not is_known)
                pause_s = RETRY_S

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if self._view.frozen:
                continue
            mark = self._marks.intended
            try:
                await self._write_mark(mark._replace(beat=mark.beat + 1))
            except NodeInUse as error:
                _log.critical("%s", error)
            except Exception as error:
                is_known = isinstance(error, WarmlogError)
                _log.warning("the mark of this broker's disks is not written: %s", error, exc_info=not is_known)

    async def _write_mark(self, mark: Mark) -> None:
        """Write a mark into the node file, into etcd, and note there that etcd has it."""
        key, by, view = self._view.keys.node(self._view.node), new_author(self._view.node), self._view
        await self._node.commit([NodeMarked(replace(self._marks, intended=mark))])
        value = NodeValue(
            by=by,
            incarnation=mark.incarnation,
            beat=mark.beat,
            directories=self.described.directories,
            rack=self.described.rack,
            version=broker_version(),
            level=FEATURE_LEVEL,
        )
        compare = ChangedAt(key, view.changed_at(key))
        done = await settled(self._etcd, by, [compare], [Put(key, to_bytes(value))])
        if isinstance(done, Failed):
            raise NodeInUse(
                f"another broker writes the mark of node {view.node}: each broker of a cluster needs its own node.id"
            )
        await view.reached(done.revision)
        await self._node.commit([NodeMarked(NodeMarks(mark, mark, view.revision, view.generation))])


def in_use(node: int, found: Registration) -> str:
    """Return what an operator is told whose node id another broker has."""
    places = ", ".join(f"{host}:{port}" for host, port in found.endpoints.values())
    return f"node.id {node} is in use by the broker at {places}: each broker of a cluster needs its own"
