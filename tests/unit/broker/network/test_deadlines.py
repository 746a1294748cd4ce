"""What closes a connection: deadlines, by a clock that the test sets, and limits in total and for each address."""

import asyncio

from present import present
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.network.connections import PATIENCE_S, Connections
from warmlog_broker.network.deadlines import PRESSED_BYTES_PER_S, SLOW_BYTES_PER_S, ConnectionState, Deadlines

CONFIG = BrokerConfig(
    data_dir="unused",
    handshake_timeout_ms=10_000,
    connections_stall_timeout_ms=20_000,
    connections_max_idle_ms=600_000,
)
STALLED = "connections.stall.timeout.ms"
RESTING = ConnectionState(
    is_open=True,
    is_receiving=False,
    is_sending=False,
    is_served=False,
    blocks_requests=False,
    blocks_responses=False,
    requested_s=0.0,
    received_bytes=0,
    taken_bytes=0,
)
RECEIVING = RESTING._replace(is_receiving=True)
SENDING = RESTING._replace(is_sending=True)


def rule(deadlines: Deadlines, now_s: float, now: ConnectionState) -> str:
    """The setting that closes the connection; empty when it may stay."""
    overdue = deadlines.overdue(now_s, now)
    return "" if overdue is None else overdue.rule


def test_a_peer_without_a_handshake_is_cut() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    greeting = RECEIVING._replace(is_open=False)
    assert rule(deadlines, 10.0, greeting) == ""
    assert rule(deadlines, 10.1, greeting) == "handshake.timeout.ms"


def test_a_request_that_comes_byte_by_byte_ends_at_its_deadline_however_regular_the_bytes() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(20):
        assert rule(deadlines, float(second), RECEIVING._replace(received_bytes=second)) == ""
    assert rule(deadlines, 20.0, RECEIVING._replace(received_bytes=20)) == STALLED


def test_a_slow_request_may_take_as_long_as_it_likes_if_it_is_faster_than_the_pace() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(1000):
        now = RECEIVING._replace(received_bytes=SLOW_BYTES_PER_S * second)
        assert rule(deadlines, float(second), now) == ""
    assert rule(deadlines, 1000.0, RECEIVING._replace(received_bytes=SLOW_BYTES_PER_S * 1000 - 1)) == STALLED


def test_the_deadline_of_a_request_begins_when_the_one_before_it_is_complete() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(0, 100, 10):
        assert rule(deadlines, float(second), RECEIVING._replace(requested_s=float(second))) == ""
    last = RECEIVING._replace(requested_s=90.0)
    assert rule(deadlines, 109.9, last) == ""
    assert rule(deadlines, 110.1, last) == STALLED


def test_the_time_in_which_it_is_not_read_does_not_count() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    waiting = RESTING._replace(blocks_requests=True)
    for second in range(100):
        assert rule(deadlines, float(second), waiting) == ""
    assert rule(deadlines, 99.9, RECEIVING._replace(blocks_requests=True)) == ""


def test_a_peer_that_stalls_is_cut_soon_if_others_wait_for_its_memory_and_only_then() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    assert rule(deadlines, 5.0, RECEIVING) == ""
    assert rule(deadlines, 5.5, RECEIVING._replace(blocks_requests=True)) == ""
    overdue = present(deadlines.overdue(6.0, RECEIVING._replace(blocks_requests=True)))
    assert overdue.reason.startswith("others wait for memory that it holds, and it sent less than 65536 bytes a second")


def test_a_peer_that_sends_enough_may_stay_although_others_wait() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(1, 50):
        now = RECEIVING._replace(blocks_requests=True, received_bytes=PRESSED_BYTES_PER_S * second)
        assert rule(deadlines, float(second), now) == ""
    too_few = PRESSED_BYTES_PER_S * 50 - 1
    assert rule(deadlines, 50.0, RECEIVING._replace(blocks_requests=True, received_bytes=too_few)) == STALLED


def test_a_request_that_has_just_begun_is_not_blamed_for_the_rest_before_it() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    deadlines.rest_ended(300.3, RECEIVING)
    assert rule(deadlines, 300.4, RECEIVING._replace(blocks_requests=True)) == ""
    assert rule(deadlines, 301.5, RECEIVING._replace(blocks_requests=True)) == STALLED


def test_a_peer_that_takes_none_of_its_responses_is_cut() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    deadlines.rest_ended(100.2, SENDING)
    assert rule(deadlines, 100.2, SENDING) == ""
    assert rule(deadlines, 120.1, SENDING) == ""
    assert rule(deadlines, 120.3, SENDING) == STALLED


def test_a_peer_that_takes_its_responses_slowly_may_stay_until_they_take_too_much_memory() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(1, 100):
        assert rule(deadlines, float(second), SENDING._replace(taken_bytes=SLOW_BYTES_PER_S * second)) == ""
    pressed = SENDING._replace(taken_bytes=SLOW_BYTES_PER_S * 100, blocks_responses=True)
    overdue = present(deadlines.overdue(100.1, pressed))
    assert overdue.reason.startswith("responses take more than queued.max.response.bytes, and it read less than")


def test_a_peer_that_is_not_read_as_it_does_not_read_is_cut_if_others_wait_for_its_memory() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    assert rule(deadlines, 2.0, SENDING) == ""
    assert rule(deadlines, 2.9, SENDING._replace(blocks_requests=True)) == ""
    assert rule(deadlines, 3.1, SENDING._replace(blocks_requests=True)) == STALLED
    assert rule(deadlines, 4.2, SENDING._replace(blocks_requests=True, taken_bytes=10**6)) == ""


def test_a_peer_that_sends_and_does_not_read_keeps_its_deadline_for_reading() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(20):
        now = SENDING._replace(is_receiving=True, received_bytes=10**6 * second, requested_s=float(second))
        assert rule(deadlines, float(second), now) == ""
    both = SENDING._replace(is_receiving=True, received_bytes=10**8, requested_s=20.0)
    assert rule(deadlines, 20.0, both) == STALLED


def test_idling_ends_and_waiting_for_a_response_is_no_idling() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    assert rule(deadlines, 601.0, RESTING._replace(is_served=True)) == ""
    assert deadlines.idle_end_s == 1201.0
    assert rule(deadlines, 1201.0, RESTING) == ""
    assert rule(deadlines, 1201.1, RESTING) == "connections.max.idle.ms"


# Limits of connections


NOW_S = 100.0


class FakeConnection:
    def __init__(self, host: str) -> None:
        self.host = host
        self.reason = ""

    def stop(self) -> None: ...

    def close(self, reason: str) -> None:
        self.reason = reason


async def test_the_total_is_limited() -> None:
    connections = Connections(2, 10)
    first = FakeConnection("a")
    for connection in (first, FakeConnection("b")):
        assert connections.refusal(connection.host, NOW_S) == ""
        connections.add(connection, NOW_S)
    assert "max.connections" in connections.refusal("c", NOW_S)
    connections.remove(first)
    assert connections.refusal("c", NOW_S) == ""


async def test_one_more_than_the_limit_ends_the_oldest_that_does_not_authenticate() -> None:
    connections = Connections(3, 10)
    known, oldest, next_oldest = (FakeConnection(name) for name in "abc")
    for number, connection in enumerate((known, oldest, next_oldest)):
        connections.add(connection, NOW_S + number)
    connections.identify(known, "User:alice", None)
    assert "max.connections" in connections.refusal("d", NOW_S + 1)
    assert connections.refusal("d", NOW_S + 1 + PATIENCE_S) == ""
    assert "has not authenticated" in oldest.reason
    assert "max.connections" in connections.refusal("d", NOW_S + 1 + PATIENCE_S), "it ends one for one"
    assert not known.reason
    assert not next_oldest.reason
    for connection in (oldest, next_oldest):
        connections.remove(connection)
    connections.add(FakeConnection("e"), NOW_S + 2)
    assert connections.refusal("f", NOW_S + 2) == ""


async def test_each_address_is_limited() -> None:
    connections = Connections(10, 1)
    held = FakeConnection("a")
    connections.add(held, NOW_S)
    assert "max.connections.per.ip" in connections.refusal("a", NOW_S)
    assert connections.refusal("b", NOW_S) == ""
    connections.remove(held)
    connections.remove(held)
    assert connections.refusal("a", NOW_S) == ""
    assert len(connections) == 0


async def test_each_principal_is_limited_if_it_has_a_limit() -> None:
    connections = Connections(10, 10)
    first, second = FakeConnection("a"), FakeConnection("a")
    for connection in (first, second):
        connections.add(connection, NOW_S)
    assert connections.identify(first, "User:alice", 1) == ""
    assert connections.identify(first, "User:alice", 1) == "", "it authenticates again"
    assert connections.identify(second, "User:alice", 1) == (
        "User:alice has 1 connections open, as many as its quota allows"
    )
    assert connections.identify(second, "User:bob", 1) == ""
    connections.remove(first)
    assert connections.identify(second, "User:alice", 1) == ""
    assert connections.identify(first, "User:bob", 1) == ""


async def test_connections_count_for_their_principal_also_before_it_has_a_limit() -> None:
    connections = Connections(10, 10)
    held = [FakeConnection("a") for _ in range(3)]
    for connection in held:
        connections.add(connection, NOW_S)
        assert connections.identify(connection, "User:alice", None) == ""
    late = FakeConnection("a")
    assert connections.identify(late, "User:alice", 3) != ""
    connections.remove(held[0])
    assert connections.identify(late, "User:alice", 3) == ""


async def test_waiting_ends_when_the_last_one_has_gone_or_the_time_is_over() -> None:
    connections = Connections(10, 10)
    await connections.wait_until_gone(10)
    held = FakeConnection("a")
    connections.add(held, NOW_S)
    await connections.wait_until_gone(0.01)
    assert len(connections) == 1
    asyncio.get_running_loop().call_later(0.01, connections.remove, held)
    await connections.wait_until_gone(10)
    assert len(connections) == 0
