"""The registration of a broker, and whether its disks are those that left, over an etcd that does what etcd may."""

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fake_coordination import FakeCoordination
from waiting import until
from warmlog_broker.cluster import session as module
from warmlog_broker.cluster.keys import Keys, NodeValue, Registration, to_bytes
from warmlog_broker.cluster.replicating import Replicating
from warmlog_broker.cluster.session import NodeInUse, Session
from warmlog_broker.cluster.start import are_disks_old
from warmlog_broker.cluster.view import EtcdClusterView, View
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.loader import StartRefused
from warmlog_broker.etcd.coordination import Outcome, Put
from warmlog_broker.metadata.log_file import MetadataLog
from warmlog_broker.metadata.store import NodeStore
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.replication.record import PartitionRecord
from warmlog_broker.replication.record import to_bytes as record_to_bytes
from warmlog_broker.runtime.threads import ThreadPools

KEYS = Keys("test")
DESCRIBED = Registration(endpoints={"default": ("h", 1)}, peer_listener="default", directories=["d1"], rack="r")


class Broker:
    """The session of broker 1, with its view and its node file."""

    def __init__(self, etcd: FakeCoordination, node: NodeStore) -> None:
        self.view = View(etcd, KEYS, 1)
        self.node = node
        self.session = Session(etcd, self.view, node, DESCRIBED, 1000)

    async def start(self) -> None:
        await self.view.read()
        self.following = asyncio.create_task(self.view.follow())
        await self.session.begin_incarnation()
        await self.session.register(was_clean=True)

    async def stop(self) -> None:
        self.session.abandon()
        self.following.cancel()
        await asyncio.wait([self.following])


def opened(directory: Path) -> MetadataLog:
    directory.mkdir(exist_ok=True)
    return MetadataLog.open(directory)[0]


@asynccontextmanager
async def broker_on(etcd: FakeCoordination, directory: Path) -> AsyncIterator[Broker]:
    log = opened(directory)
    with ThreadPoolExecutor(1) as threads:
        node = NodeStore(log, threads)
        broker = Broker(etcd, node)
        try:
            yield broker
        finally:
            if hasattr(broker, "following"):
                await broker.stop()
            await node.close()


@pytest.fixture
def etcd() -> FakeCoordination:
    return FakeCoordination()


async def test_a_lease_that_etcd_ends_early_costs_a_registration(etcd: FakeCoordination, tmp_path: Path) -> None:
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        first = broker.session.broker_epoch
        assert broker.view.brokers[1].broker_epoch == first
        broker.session.begin()
        etcd.end(next(iter(etcd._leases)))
        await until(lambda: broker.session.broker_epoch > first)
        await until(lambda: broker.view.brokers[1].broker_epoch == broker.session.broker_epoch)
        assert broker.session.incarnation == 1, "it is the same start"


async def test_a_registration_under_another_broker_epoch_is_asked_for(etcd: FakeCoordination, tmp_path: Path) -> None:
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        first = broker.session.broker_epoch
        broker.session.begin()
        broker.session.renew()
        await until(lambda: broker.session.broker_epoch > first)


async def test_clients_are_told_of_this_broker_while_none_is_registered(etcd: FakeCoordination, tmp_path: Path) -> None:
    """aiokafka fails with "Did we not perform bootstrap?" if its first metadata has no brokers."""
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        told = EtcdClusterView(broker.view, DESCRIBED)
        registered = told.brokers("default")
        etcd.end(next(iter(etcd._leases)))
        await until(lambda: not broker.view.brokers)
        assert told.brokers("default") == registered == [(1, "h", 1, "r")]
        assert told.brokers("kafka") == []


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
async def test_a_start_whose_outcomes_are_lost_registers_once(
    etcd: FakeCoordination, tmp_path: Path, lost: int
) -> None:
    async with broker_on(etcd, tmp_path / "d") as broker:
        etcd.lose_outcomes = lost
        await broker.start()
        assert broker.view.brokers[1].broker_epoch == broker.session.broker_epoch
        assert broker.session.stored_mark() == (1, 0)


async def test_while_etcd_is_away_the_registration_is_kept_by_its_next_leader(
    etcd: FakeCoordination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.02)
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        first = broker.session.broker_epoch
        broker.session.begin()
        etcd.is_away = True
        await asyncio.sleep(0.5)
        assert broker.session.broker_epoch == first
        (lease,) = etcd._leases
        ttl_s, _, leased = etcd._leases[lease]
        etcd._leases[lease] = (ttl_s, time.monotonic() + ttl_s, leased)  # as etcd's next leader does
        etcd.is_away = False
        await asyncio.sleep(0.5)
        assert broker.session.broker_epoch == first


async def test_another_broker_with_the_node_id_is_found_by_its_directories(
    etcd: FakeCoordination, tmp_path: Path
) -> None:
    other = Registration(uuid="o", endpoints={"default": ("other", 7)}, peer_listener="default", directories=["d9"])
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.view.read()
        broker.following = asyncio.create_task(broker.view.follow())
        await broker.session.begin_incarnation()
        await etcd.txn([], [Put(KEYS.broker(1), to_bytes(other))])
        broker.view.items.clear()  # it has not heard of that yet
        with pytest.raises(NodeInUse, match=r"node.id 1 is in use by the broker at other:7"):
            await broker.session._register()


async def test_two_that_write_the_mark_of_one_node_find_each_other(etcd: FakeCoordination, tmp_path: Path) -> None:
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        broker.following.cancel()
        await etcd.txn([], [Put(KEYS.node(1), to_bytes(NodeValue(incarnation=9, beat=9, directories=["d9"])))])
        with pytest.raises(NodeInUse, match=r"needs its own node\.id"):
            await broker.session.begin_incarnation()


async def test_disks_are_compared_with_what_etcd_has(etcd: FakeCoordination, tmp_path: Path) -> None:
    async def compared(directory: Path) -> bool:
        async with broker_on(etcd, directory) as broker:
            await broker.view.read()
            return are_disks_old(broker.view, broker.session, broker.node.state)

    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
    image = (tmp_path / "d" / "metadata.log").read_bytes()
    assert not await compared(tmp_path / "d")
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        assert broker.session.incarnation == 2
    assert not await compared(tmp_path / "d")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metadata.log").write_bytes(image)
    assert await compared(tmp_path / "old"), "an image of before the second start"
    with pytest.raises(StartRefused, match="cluster replace 1"):
        await compared(tmp_path / "new")
    etcd.store.__init__()  # type: ignore[misc] # as one that lost its data
    with pytest.raises(StartRefused, match="etcd has lost what it had confirmed"):
        await compared(tmp_path / "d")


class Late(FakeCoordination):
    """Its watches are earlier than its outcomes."""

    async def txn(self, *given: object) -> Outcome:
        outcome = await super().txn(*given)  # type: ignore[arg-type]
        await asyncio.sleep(0.05)
        return outcome


async def test_a_new_broker_epoch_is_told_although_the_view_had_it_first(tmp_path: Path) -> None:
    async with broker_on(Late(), tmp_path / "d") as broker:
        told: list[tuple[int, int]] = []

        def epochs() -> None:
            told.append((broker.session.broker_epoch, broker.view.brokers[1].broker_epoch))

        await broker.start()
        broker.session.on_registered = epochs
        broker.session.begin()
        broker.session.renew()
        await until(lambda: len(told) == 1)
        (own, seen) = told[0]
        assert own == seen


async def test_that_a_broker_may_lead_again_is_told_once_etcd_answers(
    etcd: FakeCoordination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.0)
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        first = broker.session.broker_epoch
        await broker.session.tell(is_ready=False)
        await until(lambda: not broker.view.brokers[1].value.is_ready)
        etcd.is_away = True
        await broker.session.tell(is_ready=True)
        etcd.is_away = False
        broker.session.begin()
        await until(lambda: broker.view.brokers[1].value.is_ready)
        assert broker.session.broker_epoch == first, "it is the same registration"


async def test_what_is_told_while_a_broker_registers_is_not_lost(tmp_path: Path) -> None:
    etcd = Late()
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        first = broker.session.broker_epoch
        broker.session.begin()
        broker.session.renew()
        await until(lambda: (item := etcd._item(KEYS.broker(1))) is not None and item.created > first)
        assert broker.session.broker_epoch == 0, "the broker does not know that etcd has its registration"
        await broker.session.tell(is_ready=False)
        await until(lambda: (own := broker.view.brokers.get(1)) is not None and not own.value.is_ready)


async def test_a_broker_that_stops_may_not_be_elected_whatever_operators_want(
    etcd: FakeCoordination, tmp_path: Path
) -> None:
    config = BrokerConfig.from_settings({"data.dir": str(tmp_path)})
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.start()
        replicating = Replicating(config, etcd, broker.view, broker.session, broker.node)
        with ThreadPoolExecutor(1) as threads:
            replicating.prepare(ThreadPools(threads, threads, threads, threads), DataDirectories([]))
            await replicating.hand_over()
            await until(lambda: not broker.view.brokers[1].value.is_ready)
            told = broker.view.changed_at(KEYS.broker(1))
            await etcd.txn([], [Put(KEYS.drained(2), b"{}")])
            await until(lambda: broker.view.changed_at(KEYS.broker(1)) > told)
            assert not broker.view.brokers[1].value.is_ready
            await replicating.end()


async def test_what_the_records_were_when_a_broker_registered_is_seen_before_its_registration(
    etcd: FakeCoordination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig.from_settings({"data.dir": str(tmp_path)})
    record = PartitionRecord(leader=1, leader_epoch=1, replicas=(1,), isr=(1,))
    async with broker_on(etcd, tmp_path / "d") as broker:
        await broker.view.read()
        replicating = Replicating(config, etcd, broker.view, broker.session, broker.node)
        with ThreadPoolExecutor(1) as threads:
            replicating.prepare(ThreadPools(threads, threads, threads, threads), DataDirectories([]))
            seen: list[str] = []
            monkeypatch.setattr(replicating.replicas, "record_seen", lambda *_: seen.append("record"))
            monkeypatch.setattr(replicating.replicas, "sessions_seen", lambda *_: seen.append("sessions"))
            await etcd.txn([], [Put(KEYS.broker(1), to_bytes(DESCRIBED))])
            await etcd.txn([], [Put(KEYS.partition(bytes(16), 0), record_to_bytes(record))])
            await broker.view.read()
            assert seen == ["record", "sessions"]
            await replicating.end()
