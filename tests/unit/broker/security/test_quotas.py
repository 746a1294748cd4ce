"""What clients have used of their quotas, and how long they wait, at times that the test sets."""

import pytest

from memory_quotas import memory_quotas, quota
from warmlog_broker.security import quotas as quotas_module
from warmlog_broker.security.quotas import OTHER_USERS, Quotas
from warmlog_protocol.errors import InvalidRequest
from warmlog_protocol.messages import ClientQuota

ALICE, BOB = "User:alice", "User:bob"


class Room:
    """Quotas at a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.quotas: Quotas = memory_quotas(lambda: self.now_s)

    async def set(self, *wanted: ClientQuota) -> None:
        for each in wanted:
            await self.quotas.alter(each, "User:admin")

    def produce(self, principal: str, size_bytes: int, client_id: str = "c") -> float:
        return self.quotas.charge_request(principal, client_id, size_bytes)

    def fetch(self, principal: str, size_bytes: int, client_id: str = "c") -> float:
        return self.quotas.charge_fetch(principal, client_id, size_bytes)


@pytest.fixture
async def room() -> Room:
    return Room()


async def test_each_kind_of_limit_counts_what_it_is_for(room: Room) -> None:
    await room.set(quota("alice", producer_byte_rate=1000), quota("bob", consumer_byte_rate=1000))
    assert [room.produce(ALICE, 3000), room.produce(BOB, 3000)] == [2.0, 0.0]
    assert [room.fetch(ALICE, 3000), room.fetch(BOB, 3000)] == [0.0, 2.0]


async def test_requests_of_every_kind_are_counted(room: Room) -> None:
    await room.set(quota("alice", request_rate=2))
    assert [room.quotas.charge_request(ALICE, "c", 0) for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]


async def test_a_new_connection_is_told_the_longest_debt_of_its_client(room: Room) -> None:
    await room.set(quota("alice", producer_byte_rate=1000, consumer_byte_rate=1000))
    assert room.quotas.debt_s(ALICE, "c") == 0
    room.produce(ALICE, 3000)
    room.fetch(ALICE, 5000)
    assert [room.quotas.debt_s(ALICE, "c") for _ in range(2)] == [4.0, 4.0]
    assert room.quotas.debt_s(BOB, "c") == 0


async def test_a_heartbeat_is_counted_and_hardly_delayed(room: Room) -> None:
    await room.set(quota("alice", request_rate=1))
    delays = [room.quotas.charge_request(ALICE, "c", 0, is_heartbeat=True) for _ in range(5)]
    assert delays == [0.0, 0.2, 0.2, 0.2, 0.2]
    assert room.quotas.charge_request(ALICE, "c", 0) == 5.0


async def test_the_longer_of_two_delays_counts(room: Room) -> None:
    await room.set(quota("alice", request_rate=1, producer_byte_rate=1000))
    room.produce(ALICE, 0)
    assert room.produce(ALICE, 1500) == 1.0
    assert room.produce(ALICE, 3000) == 3.5


async def test_the_clients_of_a_user_share_its_quota_and_users_do_not(room: Room) -> None:
    await room.set(quota("*", producer_byte_rate=1000))
    assert room.produce(ALICE, 2000, "one") == 1.0
    assert room.produce(ALICE, 1000, "two") == 2.0
    assert room.produce(BOB, 1000, "two") == 0.0


async def test_the_users_of_a_client_id_share_its_quota(room: Room) -> None:
    await room.set(quota(None, "app", producer_byte_rate=1000))
    assert room.produce(ALICE, 2000, "app") == 1.0
    assert room.produce(BOB, 1000, "app") == 2.0
    assert room.produce(BOB, 9000, "other") == 0.0


async def test_a_change_is_in_force_at_once(room: Room) -> None:
    assert not room.quotas.is_set
    await room.set(quota("alice", producer_byte_rate=1000))
    assert room.quotas.is_set
    assert room.produce(ALICE, 2000) == 1.0
    await room.set(quota("alice", producer_byte_rate=2000))
    assert room.produce(ALICE, 4000) == 1.0
    await room.set(quota("alice", producer_byte_rate=0))
    assert room.produce(ALICE, 10**9) == 0.0
    assert not room.quotas.is_set


async def test_a_refused_change_changes_nothing(room: Room) -> None:
    await room.set(quota("alice", producer_byte_rate=1000))
    with pytest.raises(InvalidRequest):
        await room.set(quota("alice", producer_byte_rate=-1))
    assert room.quotas.listed() == [quota("alice", producer_byte_rate=1000)]


async def test_quotas_are_listed_by_user_and_client_id(room: Room) -> None:
    wanted = [
        quota("b", "c", request_rate=1),
        quota("a", request_rate=2, connections=3),
        quota(None, "*", request_rate=4),
    ]
    await room.set(*wanted)
    expected = [wanted[2], quota("a", connections=3, request_rate=2), wanted[0]]
    assert room.quotas.listed() == expected


async def test_the_limit_of_connections_is_of_a_user_or_of_every_other(room: Room) -> None:
    assert room.quotas.connection_limit(ALICE) is None
    await room.set(quota("*", connections=5), quota("alice", connections=2))
    assert [room.quotas.connection_limit(each) for each in (ALICE, BOB, "User:ANONYMOUS")] == [2, 5, 5]


async def test_clients_that_have_saved_all_are_forgotten_and_debts_are_not(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas_module, "MAX_CLIENTS", 10)
    await room.set(quota(None, "*", producer_byte_rate=1000))
    assert room.produce(ALICE, 6000, "in debt") == 5.0
    for number in range(1000):
        room.produce(ALICE, 1, f"client {number}")
        room.now_s += 0.001
    assert len(room.quotas._clients) <= 10
    assert len(room.quotas._buckets) <= 20
    assert room.produce(ALICE, 0, "in debt") == 0.0
    assert room.produce(ALICE, 1, "in debt") == pytest.approx(4.001)


async def test_too_many_clients_at_once_share_one_limit(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "MAX_CLIENTS", 5)
    await room.set(quota(None, "*", producer_byte_rate=1000))
    delays = [room.produce(ALICE, 1500, f"client {number}") for number in range(100)]
    assert delays[:20] == [0.5] * 20
    assert delays[20:23] == [0.5, 2.0, 3.5]
    assert delays[-1] == 10.0
    assert len(room.quotas._buckets) == 21


async def test_delays_are_counted_for_a_bounded_number_of_users(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas_module, "MAX_MEASURED_USERS", 2)
    await room.set(quota("*", producer_byte_rate=1000))
    for name in ("alice", "bob", "carol", "dave", "alice"):
        room.produce(f"User:{name}", 2000)
    key = "producer_byte_rate"
    assert room.quotas.throttled == {("alice", key): 2, ("bob", key): 1, (OTHER_USERS, key): 2}
    assert room.quotas.throttled_seconds == {("alice", key): 4.0, ("bob", key): 1.0, (OTHER_USERS, key): 2.0}
