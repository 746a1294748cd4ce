"""Several brokers in one process: their real logs on real files, messages and etcd in memory."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

from fake_coordination import FakeCoordination
from warmlog_broker.cluster.data_path.driver import Driver, Node
from warmlog_broker.cluster.data_path.replicas import Replicas
from warmlog_broker.cluster.keys import Keys
from warmlog_broker.cluster.records import PartitionKey, Records, Seen
from warmlog_broker.etcd.coordination import Delete, Put, prefix_end
from warmlog_broker.replica.disk_space import DiskRoom
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replication import events as ev
from warmlog_broker.replication.record import PartitionRecord, from_bytes, to_bytes
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import ACKS_ALL
from wire_client import batch_of

NOW_MS = 1_700_000_000_000
KEY = PartitionKey(UUID(int=7).bytes, 0)
PREFIX = "/warmlog/test/"
MAX_BYTES = 1 << 20
TIMES = ev.Times(lag_ms=3_000, confirmation_ms=800, rank_ms=30, grace_ms=100, hand_over_ms=500, retry_ms=20)


class ThreadedDisk:
    """Flushes what is asked for, one plan after the other, in a thread."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self.room = DiskRoom(Path(), 0)
        self.is_stuck = asyncio.Event()
        self.is_stuck.set()
        self._threads = threads
        self._running: asyncio.Task[None] | None = None
        self._again = False

    def flush_soon(self, partition: Partition) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._flush(partition))
        else:
            self._again = True

    def flush_within(self, partition: Partition, _delay_ms: int) -> None:
        self.flush_soon(partition)

    def probe_soon(self) -> None:
        pass

    async def _flush(self, partition: Partition) -> None:
        self._again = True
        while self._again:
            self._again = False
            await self.is_stuck.wait()
            plan = partition.prepare_flush()
            if plan is not None:
                await asyncio.get_running_loop().run_in_executor(self._threads, plan.run)
                partition.flushed(plan)
            partition.wake()


class FakeMessages:
    """Carries messages from one broker to the others, unless a link is cut."""

    def __init__(self, room: "Room", node: int) -> None:
        self._room, self._node = room, node

    def _reaches(self, to: int) -> Driver | None:
        broker = self._room.brokers.get(to)
        is_cut = frozenset((self._node, to)) in self._room.cut or self._node not in self._room.brokers
        return None if broker is None or is_cut else broker.find(KEY)

    def send(self, to: int, driver: Driver, message: ev.Fetch | ev.Report) -> None:
        def deliver() -> None:
            if (target := self._reaches(to)) is not None:
                target.do(message)
            elif isinstance(message, ev.Fetch):
                driver.unanswered(message)

        asyncio.get_running_loop().call_soon(deliver)

    def heard_ms(self, leader: int, driver: Driver, fetch: ev.Fetch) -> int:
        return ev.NEVER

    def echoed_ms(self, node: int, driver: Driver, number: int) -> int:
        return ev.NEVER

    def all_heard_ms(self) -> float:
        return math.inf

    def is_due(self, node: int, driver: Driver) -> None:
        def deliver() -> None:
            target = self._reaches(node)
            if target is None or (reply := driver.take_answer(node, MAX_BYTES)) is None:
                return
            target.answered(reply.answer, b"".join(piece.pread() for piece in reply.slices), reply.flush_below)

        asyncio.get_running_loop().call_soon(deliver)


class Room:
    """Brokers by their numbers, with one partition."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.etcd = FakeCoordination()
        self.keys = Keys("test")
        self.records = Records(self.etcd, self.keys)
        self.brokers: dict[int, Replicas] = {}
        self.partitions: dict[int, Partition] = {}
        self.cut: set[frozenset[int]] = set()
        self.refuse_checkpoint: set[int] = set()
        self.refused_checkpoints = 0
        self.threads = ThreadPoolExecutor(4)
        self.registrations = 0
        self._views: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[int, int] = {}
        self._incarnations = 0
        self._registering: asyncio.Task[None] | None = None

    async def create(self, *nodes: int, min_isr: int = 2, **settings: str) -> None:
        """Create the partition, led by the first node; the brokers start."""
        record = PartitionRecord(leader=nodes[0], leader_epoch=0, replicas=nodes, isr=nodes, min_isr=min_isr)
        await self.etcd.txn([], [Put(self.keys.partition(*KEY), to_bytes(record))])
        for node in nodes:
            await self.start(node, **settings)

    async def start(self, node: int, **settings: str) -> None:
        self._incarnations += 1
        key = TopicPartition("t", 0)
        config = LogConfig.from_settings({name.replace("_", "."): text for name, text in settings.items()})
        seen = (await self.records.read())[KEY]
        (self.path / str(node)).mkdir(exist_ok=True)
        log = Log.open(
            self.path / str(node) / key.directory_name,
            key=key,
            topic_id=UUID(int=7),
            config=config,
            open_files=OpenFiles(limit=64),
            now_ms=NOW_MS,
            max_leader_epoch=seen.record.leader_epoch,
        )
        partition = self.partitions[node] = Partition(key, log, config)
        partition.disk = ThreadedDisk(self.threads)

        async def checkpoint(_: Partition) -> None:
            await asyncio.sleep(0)
            if node in self.refuse_checkpoint:
                self.refused_checkpoints += 1
                raise OSError("no space left")

        def register() -> None:
            self._registering = asyncio.create_task(self.register(node))

        replicas = self.brokers[node] = Replicas(
            Node(node, self._incarnations, self.threads, checkpoint, register, lambda *_: None, TIMES),
            self.records,
            FakeMessages(self, node),
        )
        replicas.serve(KEY, partition)
        await self.register(node)
        self._views[node] = asyncio.create_task(self._view(node, replicas))
        replicas.begin()

    async def register(self, node: int) -> None:
        lease = self._leases[node] = await self.etcd.grant(1000)
        key = self.keys.broker(node)
        await self.etcd.txn([], [Delete(key)])
        await self.etcd.txn([], [Put(key, b"{}", lease)])

    def unregister(self, node: int) -> None:
        """Let the lease of a broker end, that lives."""
        self.etcd.end(self._leases[node])

    async def _view(self, node: int, replicas: Replicas) -> None:
        brokers = f"{PREFIX}brokers/"
        listing = await self.etcd.range(PREFIX, prefix_end(PREFIX))
        sessions: dict[int, ev.Session] = {}
        for item in listing.items:
            if item.key.startswith(brokers):
                sessions[int(item.key.removeprefix(brokers))] = ev.Session(item.created)
        replicas.sessions_seen(dict(sessions), sessions[node].broker_epoch)
        for item in listing.items:
            if item.key.startswith(self.keys.records):
                replicas.record_seen(KEY, Seen(from_bytes(item.value), item.changed))
        async for revision in self.etcd.watch(PREFIX, listing.revision):
            for key, item in revision.changes:
                if key.startswith(brokers):
                    other = int(key.removeprefix(brokers))
                    sessions.pop(other, None)
                    if item is not None:
                        sessions[other] = ev.Session(item.created)
                    own = sessions.get(node)
                    replicas.sessions_seen(dict(sessions), own.broker_epoch if own is not None else 0)
                elif item is not None:
                    replicas.record_seen(KEY, Seen(from_bytes(item.value), item.changed))

    async def stop(self, node: int, *, keeps_lease: bool = False) -> None:
        """The broker is gone, as after SIGKILL: what is not flushed may be there or not."""
        self._views.pop(node).cancel()
        await self.brokers.pop(node).end()
        self.partitions.pop(node).resign(1_000_000)
        if not keeps_lease:
            self.unregister(node)

    async def close(self) -> None:
        for node in list(self.brokers):
            await self.stop(node)
        self.threads.shutdown()

    # What tests ask.

    def driver(self, node: int) -> Driver:
        driver = self.brokers[node].find(KEY)
        assert driver is not None
        return driver

    def disk(self, node: int) -> ThreadedDisk:
        disk = self.partitions[node].disk
        assert isinstance(disk, ThreadedDisk)
        return disk

    async def fetch_of(self, node: int) -> ev.Fetch:
        """Wait until a follower fetches, and return what it has sent."""
        driver = self.driver(node)
        await self.until(lambda: driver.replica.fetch is not None)
        assert driver.replica.fetch is not None
        return driver.replica.fetch

    async def record(self) -> PartitionRecord:
        return (await self.records.read())[KEY].record

    def leader(self) -> int | None:
        return next((node for node, each in self.partitions.items() if each.allows.append), None)

    async def led(self, *, by: int | None = None) -> int:
        """Wait until a broker leads: that one, if it is given."""
        await self.until(lambda: self.leader() is not None and by in (None, self.leader()))
        leader = self.leader()
        assert leader is not None
        return leader

    async def produce(self, *values: bytes, at: int | None = None) -> int:
        """Append a batch, and return its offset once it is acknowledged. Raises what the leader says."""
        partition = self.partitions[await self.led() if at is None else at]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def acknowledged(error: ApiError | None) -> None:
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        info = partition.append(batch_of(list(values), timestamp_ms=NOW_MS), ACKS_ALL, acknowledged, now_ms=NOW_MS)
        async with asyncio.timeout(25):
            await done
        return info.first_offset

    def content(self, node: int) -> bytes:
        log = self.partitions[node].log
        offset, found = log.log_start_offset, b""
        while offset < log.log_end_offset:
            data = log.reader.read(offset, 1, bound="log_end")
            found += b"".join(piece.pread() for piece in data.slices)
            offset += 1
        return found

    async def until(self, holds: Callable[[], bool | Awaitable[bool]]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(25):
            while True:
                held = holds()
                if held if isinstance(held, bool) else await held:
                    return
                await asyncio.sleep(0.005)

    async def agree(self, *nodes: int) -> None:
        """Wait until the logs of these brokers are equal, and all of it is committed on each."""
        await self.until(
            lambda: (
                len({self.partitions[node].log.log_end_offset for node in nodes}) == 1
                and all(self.partitions[node].log.high_watermark == self.end(node) for node in nodes)
            )
        )
        assert len({self.content(node) for node in nodes}) == 1
        assert len({self.partitions[node].log.epochs.entries for node in nodes}) == 1

    def end(self, node: int) -> int:
        return self.partitions[node].log.log_end_offset
