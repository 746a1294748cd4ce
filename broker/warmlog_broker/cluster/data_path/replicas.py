"""The replicas of one broker, and what they share: time, etcd, the connections to other brokers."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

from warmlog_broker.cluster.data_path.driver import TICK_MS, Driver, Messages, Node
from warmlog_broker.cluster.data_path.log_facts import bounds_of
from warmlog_broker.cluster.records import PartitionKey, Records, Seen
from warmlog_broker.etcd.coordination import CoordinationError
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.alignment import Log as Bounds
from warmlog_broker.replication.replica import Replica, Role
from warmlog_broker.runtime.tasks import Tasks, in_turns

TICK_S = 0.05
TICKED_A_TURN = 50
IDLE_TICKS = round(TICK_MS / 1000 / TICK_S)
"""Of replicas that nothing is wrong with, each takes one tick of so many."""
RESTLESS_TICKS = 10
"""Those that have something to answer after a while take one of so many."""
LOOK_TICKS = 4
"""After so many, they look whether it is time to answer."""
QUIET_S = 0.2
"""While none is restless, a tick comes so much later."""

_log = logging.getLogger(__name__)


class Replicas:
    """All replicas on this broker. It is the `Shell` of their drivers.

    The view of the cluster calls `record_seen` and `sessions_seen`, `Topics` calls `serve`.
    """

    def __init__(self, node: Node, records: Records, messages: Messages) -> None:
        self.node = node
        self.records = records
        self.messages = messages
        self.tasks = Tasks()
        self.restless: set[Driver] = set()
        self._has_restless = asyncio.Event()
        self.sessions: ev.Sessions = {}
        self._loop = asyncio.get_running_loop()
        self._drivers: dict[PartitionKey, Driver] = {}
        self._seen: dict[PartitionKey, Seen] = {}
        """The latest records, also of partitions that are not served yet."""
        self._broker_epoch = 0
        self._ticking: asyncio.Task[None] | None = None
        self._ticked = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self._is_read_due = False

    def __iter__(self) -> Iterator[Driver]:
        """Iterate over the replicas as they are now."""
        return iter(list(self._drivers.values()))

    def find(self, key: PartitionKey) -> Driver | None:
        return self._drivers.get(key)

    def is_member(self, key: PartitionKey) -> bool:
        """Return whether the latest record that the replica here knows names this broker: the view may lag."""
        driver = self._drivers.get(key)
        return driver is not None and self.node.node in driver.replica.record.replicas

    def leader_of(self, key: PartitionKey) -> int | None:
        """Return the registered broker that leads a partition, which may be on other brokers; None if there is none."""
        seen = self._seen.get(key)
        return seen.record.leader if seen is not None and seen.record.leader in self.sessions else None

    def begin(self) -> None:
        """Begin to take elections and retries by time."""
        self._ticking = self._loop.create_task(self._tick(), name="replicas tick")

    async def end(self) -> None:
        ended = [each for each in (self._ticking, self._reading) if each is not None]
        for each in ended:
            each.cancel()
        if ended:
            await asyncio.wait(ended)
        await self.tasks.finish(1.0)

    async def hand_over(self, timeout_s: float) -> None:
        """Hand over all that this broker leads, as far as others can lead it, and tell the next leaders how far it is.

        Without that they would not know what is committed, if fewer than `min.insync.replicas` are left.
        """
        for driver in self:
            driver.do(ev.HandOverAsked())
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(_is_needed(driver.replica) for driver in self):
                    await self._ticked.wait()

    # --- what the view tells -----------------------------------------------------------------------------------------

    def serve(self, key: PartitionKey, partition: Partition, *, obeyed: str = "") -> Driver:
        """Take the role of this broker for a partition: it has none until its record is known."""
        bounds = bounds_of(partition.log, partition) if partition.allows.read else Bounds()
        replica = Replica(self.node.node, self.node.incarnation, bounds, self.node.times, obeyed)
        driver = self._drivers[key] = Driver(key, partition, replica, self)
        driver.do(ev.SessionsSeen(self.sessions, self._broker_epoch))
        if (seen := self._seen.get(key)) is not None:
            driver.do(ev.RecordSeen(seen.record, seen.revision))
        if partition.allows.read and partition.log.local.damage:
            driver.damaged(str(partition.log.local.damage[0]))
        return driver

    def record_seen(self, key: PartitionKey, seen: Seen | None) -> None:
        """The record of a partition has changed; None: it was deleted with its topic."""
        if seen is None:
            self._seen.pop(key, None)
            if (driver := self._drivers.pop(key, None)) is not None:
                driver.do(ev.RecordSeen(None, driver.replica.revision))
            return
        self._seen[key] = seen
        if (driver := self._drivers.get(key)) is not None:
            driver.do(ev.RecordSeen(seen.record, seen.revision))

    def sessions_seen(self, sessions: ev.Sessions, broker_epoch: int) -> None:
        """The registered brokers have changed; `broker_epoch` is that of this one, 0 while it is not registered."""
        self.sessions, self._broker_epoch = sessions, broker_epoch
        for driver in self:
            driver.do(ev.SessionsSeen(sessions, broker_epoch))

    # --- as the `Shell` of the drivers -------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def read_soon(self) -> None:
        self._is_read_due = True
        if self._reading is None or self._reading.done():
            self._reading = self._loop.create_task(self._read(), name="read records")

    async def _read(self) -> None:
        """Read all records; once more if that was asked for meanwhile: those who asked want a later one."""
        while self._is_read_due:
            self._is_read_due = False
            began_ms = self.now_ms()
            try:
                records = await self.records.read()
            except CoordinationError as error:
                _log.warning("the records of partitions cannot be read: %s", error)
                return
            for key, seen in records.items():
                if (driver := self._drivers.get(key)) is None:
                    continue
                if driver.replica.leading is not None or seen.revision > driver.replica.revision:
                    driver.do(ev.RecordSeen(seen.record, seen.revision, began_ms))

    def is_restless(self, driver: Driver) -> None:
        self.restless.add(driver)
        self._has_restless.set()

    # --- time --------------------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        count = int(self._loop.time() / TICK_S)
        while True:
            await self._pause()
            first, count = count + 1, int(self._loop.time() / TICK_S)
            restless, drivers, now_ms = list(self.restless), list(self._drivers.values()), self.now_ms()
            ticked = [each for each in restless if count % RESTLESS_TICKS <= count - first or each.is_urgent]
            if now_ms - self.messages.all_heard_ms() >= self.node.times.unconfirmed_ms:
                for driver in drivers:
                    driver.is_resting = False
            for number in range(max(first, count - IDLE_TICKS + 1), count + 1):
                others = drivers[number % IDLE_TICKS :: IDLE_TICKS]
                ticked += [each for each in others if not each.is_resting or each.must_tick(now_ms)]
            async for driver in in_turns(ticked, TICKED_A_TURN):
                driver.tick(may_rest=True)
            if count % LOOK_TICKS <= count - first:
                async for driver in in_turns(restless, TICKED_A_TURN):
                    driver.look()
            self._ticked.set()
            self._ticked = asyncio.Event()

    async def _pause(self) -> None:
        """Wait for the next tick, or as long as for a few if none is restless."""
        if not self.restless:
            self._has_restless.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET_S):
                    await self._has_restless.wait()
        await asyncio.sleep(TICK_S)


def _is_needed(replica: Replica) -> bool:
    """Return whether another replica may lead in its place, or leads, and has not heard yet how far this member is."""
    if replica.leading is not None:
        return replica.leading.hand_over_ms is not None
    is_member = replica.node in replica.record.isr
    return is_member and replica.role is Role.ALIGNING and replica.record.leader in replica.sessions
