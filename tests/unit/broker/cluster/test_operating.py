"""Orders of operators, and what becomes of one beside another."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from msgspec.structs import replace

from fake_coordination import FakeCoordination
from waiting import until
from warmlog_broker.cluster.data_path.requests import ClusterRequests
from warmlog_broker.cluster.keys import Keys, OrderValue, Registration, to_bytes
from warmlog_broker.cluster.operating import election, is_wanted, order, reassignment, target
from warmlog_broker.cluster.orders import Orders
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import Delete, Put
from warmlog_broker.replication import record as records
from warmlog_broker.replication.record import NO_LEADER, PartitionRecord
from warmlog_protocol.errors import InvalidReplicaAssignment, InvalidRequest, PreferredLeaderNotAvailable

KEYS, KEY = Keys("test"), PartitionKey(UUID(int=7).bytes, 0)
LED = PartitionRecord(leader=2, leader_epoch=3, replicas=(1, 2), isr=(1, 2), min_isr=1)


async def put(etcd: FakeCoordination, view: View, record: PartitionRecord) -> None:
    await etcd.txn([], [Put(KEYS.partition(*KEY), records.to_bytes(record))])
    await view.reached(etcd.store.revision)


@pytest.fixture
async def etcd() -> FakeCoordination:
    etcd = FakeCoordination()
    for node in (1, 2, 3):
        value = Registration(uuid=f"u{node}", endpoints={}, peer_listener="", directories=[])
        await etcd.txn([], [Put(KEYS.broker(node), to_bytes(value))])
    return etcd


@pytest.fixture
async def view(etcd: FakeCoordination) -> AsyncIterator[View]:
    view = View(etcd, KEYS, 2)
    async with view.followed():
        await put(etcd, view, LED)
        yield view


async def test_replicas_whose_broker_is_away_may_stay_and_come_back(etcd: FakeCoordination, view: View) -> None:
    await put(etcd, view, replace(LED, replicas=(3, 1, 2), adding=(3,), removing=(1, 2)))
    await etcd.txn([], [Delete(KEYS.broker(1))])
    await view.reached(etcd.store.revision)
    for wanted in (None, [3, 1]):
        moved = reassignment(view, KEY, wanted, keeps_count=True)
        assert await order(etcd, view, KEY, moved) == moved
        assert target(view, KEY) == tuple(wanted or (1, 2))
    with pytest.raises(InvalidReplicaAssignment):
        await order(etcd, view, KEY, OrderValue(replicas=(2, 9)))


async def test_an_election_does_not_replace_a_move_that_was_ordered(etcd: FakeCoordination, view: View) -> None:
    await order(etcd, view, KEY, OrderValue(replicas=(3, 2)))
    with pytest.raises(PreferredLeaderNotAvailable, match="moved"):
        election(view, KEY)
    with pytest.raises(InvalidRequest, match="moved"):
        await order(etcd, view, KEY, OrderValue(leader=1))
    assert view.orders[KEY].replicas == (3, 2)


async def test_a_recovery_leaves_a_move_as_it_is(etcd: FakeCoordination, view: View) -> None:
    await put(etcd, view, replace(LED, leader=NO_LEADER))
    await order(etcd, view, KEY, OrderValue(replicas=(3, 2)))
    wanted = await order(etcd, view, KEY, election(view, KEY, is_unclean=True))
    assert (target(view, KEY), is_wanted(view, KEY, wanted)) == ((3, 2), True)
    orders = Orders(etcd, view, None)  # type: ignore[arg-type] # these are not asked
    await orders.end(KEY)
    assert is_wanted(view, KEY, wanted), "there is no leader yet"
    await put(etcd, view, LED)
    await orders.end(KEY)
    await until(lambda: not is_wanted(view, KEY, wanted))
    assert (target(view, KEY), view.orders[KEY].recover) == ((3, 2), None)


@pytest.mark.parametrize("moved_to", [None, (3, 2)])
async def test_an_election_that_is_not_done_in_time_is_withdrawn(
    etcd: FakeCoordination, view: View, moved_to: tuple[int, int] | None
) -> None:
    await put(etcd, view, replace(LED, leader=NO_LEADER))
    if moved_to:
        await order(etcd, view, KEY, OrderValue(replicas=moved_to))
    own = ClusterRequests(None, None, None, None, None, etcd, view)  # type: ignore[arg-type] # these are not asked
    elected = await own.elect(*KEY, is_unclean=True)
    assert await own.not_done([elected], asyncio.get_running_loop().time()) == [elected]
    assert (target(view, KEY), is_wanted(view, *elected)) == (moved_to, False)
    assert await own.not_done([elected], float("inf")) == []
