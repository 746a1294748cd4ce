"""Quotas: what clients have used of them and how long they wait, which one applies, and which changes are refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_quotas import memory_quotas, quota
from warmlog_broker.security import quota_rules
from warmlog_broker.security import quotas as quotas_module
from warmlog_broker.security.quota_rules import AppliedLimit, QuotaEntity, applied_limit, changed_limits
from warmlog_broker.security.quotas import BURST_S, OTHER_USERS, Quotas, TokenBucket
from warmlog_protocol.errors import InvalidRequest
from warmlog_protocol.messages import ClientQuota, QuotaKey, QuotaLimit

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


# Rules


KEY = QuotaKey.PRODUCER_BYTE_RATE
PRECEDENCE = [("u", "c"), ("u", "*"), ("u", None), ("*", "c"), ("*", "*"), ("*", None), (None, "c"), (None, "*")]
"""Kafka's, for the user u with the client id c (KIP-55)."""
SHARED_BY = [("u", "c"), ("u", "c"), ("u", None), ("u", "c"), ("u", "c"), ("u", None), (None, "c"), (None, "c")]
OTHERS = [("v", "c"), ("v", None), ("u", "d"), (None, "d"), ("*", "d"), ("v", "*")]


@given(st.dictionaries(st.sampled_from(PRECEDENCE + OTHERS), st.sampled_from([*QuotaKey]), max_size=14))
def test_the_most_specific_quota_with_the_limit_applies(kinds: dict[tuple[str | None, str | None], QuotaKey]) -> None:
    quotas = {entity: {key.value: number + 1} for number, (entity, key) in enumerate(kinds.items())}
    expected = next(
        (
            AppliedLimit(quotas[entity][KEY], QuotaEntity(*shared_by), QuotaEntity(*entity))
            for entity, shared_by in zip(PRECEDENCE, SHARED_BY, strict=True)
            if kinds.get(entity) is KEY
        ),
        None,
    )
    assert applied_limit(quotas, KEY, "u", "c") == expected


def test_each_limit_is_looked_up_by_itself() -> None:
    quotas = {("u", "c"): {"request_rate": 1}, ("u", None): {"producer_byte_rate": 2}}
    assert applied_limit(quotas, QuotaKey.PRODUCER_BYTE_RATE, "u", "c") == (2, ("u", None), ("u", None))
    assert applied_limit(quotas, QuotaKey.CONSUMER_BYTE_RATE, "u", "c") is None


def test_a_change_adds_replaces_and_removes_limits() -> None:
    quotas = {("u", None): {"producer_byte_rate": 1, "request_rate": 2}}
    change = quota("u", producer_byte_rate=5, request_rate=0, consumer_byte_rate=7)
    assert changed_limits(quotas, change) == {"producer_byte_rate": 5, "consumer_byte_rate": 7}
    assert changed_limits(quotas, quota("u", producer_byte_rate=0, request_rate=0)) == {}
    assert changed_limits(quotas, quota("v", request_rate=0)) == {}


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (quota(request_rate=1), "a user, a client id or both"),
        (quota("", request_rate=1), "1 to 255 printable"),
        (quota("u" * 256, request_rate=1), "1 to 255 printable"),
        (quota(None, "c" * 101, request_rate=1), "1 to 100 printable"),
        (quota(None, "a\nb", request_rate=1), "client id 'a\\nb'"),
        (quota("u"), "at least one limit"),
        (ClientQuota("u", None, [QuotaLimit("request_rate", 1)] * 2), "none of them twice"),
        (quota("u", produce_rate=1), "there is no limit 'produce_rate'"),
        (quota("u", request_rate=-1), "at least 1"),
        (quota("u", "c", connections=1), "leave out the client id"),
    ],
)
def test_what_no_quota_can_be_is_refused(change: ClientQuota, part: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        changed_limits({}, change)
    assert part in str(refused.value)


def test_the_number_of_quotas_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_rules, "MAX_QUOTAS", 1)
    quotas = {("u", None): {"request_rate": 1}}
    assert changed_limits(quotas, quota("u", request_rate=2)) == {"request_rate": 2}
    assert changed_limits(quotas, quota("v", request_rate=0)) == {}
    with pytest.raises(InvalidRequest, match="there are 1 quotas"):
        changed_limits(quotas, quota("v", request_rate=2))


# The account of one taker, against a model in exact fractions that looks at the whole history


RATES = st.integers(1, 10**9)
STEPS = st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 10**10)), max_size=30)
"""Milliseconds since the step before, and the amount taken."""


def model_debts(rate: int, steps: list[tuple[int, int]], max_delay_s: int) -> list[Fraction]:
    """The seconds of debt after each step."""
    capacity = max(Fraction(1), rate * Fraction(BURST_S))
    balance, debts = capacity, []
    for elapsed_ms, amount in steps:
        balance = min(capacity, balance + Fraction(elapsed_ms, 1000) * rate) - amount
        balance = max(balance, Fraction(-rate * max_delay_s))
        debts.append(max(Fraction(0), -balance / rate))
    return debts


@given(RATES, STEPS, st.integers(1, 60))
def test_delays_are_those_of_the_model(rate: int, steps: list[tuple[int, int]], max_delay_s: int) -> None:
    bucket, now_ms, delays = TokenBucket(rate, 0.0), 0, []
    for elapsed_ms, amount in steps:
        now_ms += elapsed_ms
        delays.append(bucket.take(amount, now_ms / 1000, max_delay_s))
    assert delays == pytest.approx([float(debt) for debt in model_debts(rate, steps, max_delay_s)], abs=1e-5)
    assert all(0 <= delay <= max_delay_s for delay in delays)


@given(RATES, st.lists(st.integers(1, 10**9), min_size=1, max_size=50), st.integers(0, 300))
def test_who_waits_as_told_keeps_the_rate(rate: int, amounts: list[int], late_ms: int) -> None:
    """Also if each wait takes `late_ms` longer; only the last amount may exceed it."""
    bucket, now_s, taken = TokenBucket(rate, 0.0), 0.0, 0
    for amount in amounts:
        assert taken <= (rate * (now_s + BURST_S) + 1) * (1 + 1e-9)
        taken += amount
        delay_s = bucket.take(amount, now_s, 1e12)
        now_s += delay_s + (late_ms / 1000 if delay_s else 0.0)


@given(st.integers(100, 10**8), st.integers(1, 200), st.integers(1, 199))
def test_who_always_takes_reaches_the_rate(rate: int, share: int, late_ms: int) -> None:
    """A wait that ends late takes nothing away, since what was saved meanwhile is used."""
    bucket, now_s, taken = TokenBucket(rate, 0.0), 0.0, 0
    amount = max(1, rate * share // 1000)
    while now_s < 60:
        taken += amount
        delay_s = bucket.take(amount, now_s, 1000.0)
        now_s += delay_s + (late_ms / 1000 if delay_s else 0.0)
    assert taken == pytest.approx(rate * now_s, rel=0.05)


def test_a_bucket_is_full_when_it_is_as_a_new_one() -> None:
    bucket = TokenBucket(10, 0.0)
    assert bucket.is_full(0.0)
    bucket.take(5, 0.0, 1.0)
    assert [bucket.is_full(now_s) for now_s in (0.4, 0.5, 9.0)] == [False, True, True]


def test_a_clock_that_goes_back_gives_nothing_twice() -> None:
    bucket = TokenBucket(10, 5.0)
    assert bucket.take(20, 5.0, 60.0) == 1.0
    assert bucket.take(0, 1.0, 60.0) == 1.0
    assert bucket.take(0, 5.5, 60.0) == pytest.approx(0.5)
