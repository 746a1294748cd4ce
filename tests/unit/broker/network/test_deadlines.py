"""When a connection has to be closed, by a clock that the test sets."""

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.network.deadlines import ConnectionState, Deadlines

CONFIG = BrokerConfig(
    data_dir="unused",
    handshake_timeout_ms=10_000,
    request_receive_timeout_ms=60_000,
    stall_timeout_ms=1000,
    stall_min_bytes_per_second=1000,
    send_stall_timeout_ms=20_000,
    connections_max_idle_ms=600_000,
)
RESTING = ConnectionState(
    is_open=True,
    is_receiving=False,
    is_sending=False,
    is_served=False,
    blocks_requests=False,
    blocks_responses=False,
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
    for second in range(61):
        assert rule(deadlines, float(second), RECEIVING._replace(received_bytes=second)) == ""
    assert rule(deadlines, 60.1, RECEIVING._replace(received_bytes=61)) == "request.receive.timeout.ms"


def test_the_deadline_of_a_request_begins_with_its_first_byte() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second, has_requests in ((0.0, False), (50.0, False), (55.0, True)):
        deadlines.received(second, has_requests, True)
    assert rule(deadlines, 114.9, RECEIVING) == ""
    assert rule(deadlines, 115.1, RECEIVING) == "request.receive.timeout.ms"
    deadlines.received(116.0, True, False)
    deadlines.received(200.0, False, True)
    assert rule(deadlines, 259.9, RECEIVING) == ""
    assert rule(deadlines, 260.1, RECEIVING) == "request.receive.timeout.ms"


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
    assert rule(deadlines, 6.0, RECEIVING._replace(blocks_requests=True)) == "stall.timeout.ms"


def test_a_peer_that_sends_enough_may_stay_although_others_wait() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(1, 50):
        now = RECEIVING._replace(blocks_requests=True, received_bytes=1000 * second)
        assert rule(deadlines, float(second), now) == ""
    assert rule(deadlines, 50.0, RECEIVING._replace(blocks_requests=True, received_bytes=49_900)) == "stall.timeout.ms"


def test_a_request_that_has_just_begun_is_not_blamed_for_the_rest_before_it() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    deadlines.rest_ended(300.0)
    deadlines.received(300.3, False, True)
    assert rule(deadlines, 300.4, RECEIVING._replace(blocks_requests=True)) == ""
    assert rule(deadlines, 301.5, RECEIVING._replace(blocks_requests=True)) == "stall.timeout.ms"


def test_a_peer_that_takes_none_of_its_responses_is_cut() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    deadlines.rest_ended(100.2)
    assert rule(deadlines, 100.2, SENDING) == ""
    assert rule(deadlines, 120.1, SENDING) == ""
    assert rule(deadlines, 120.3, SENDING) == "send.stall.timeout.ms"


def test_a_peer_that_takes_a_byte_now_and_then_may_stay_until_responses_take_too_much_memory() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(1, 100):
        assert rule(deadlines, float(second), SENDING._replace(taken_bytes=second)) == ""
    assert rule(deadlines, 100.1, SENDING._replace(taken_bytes=100, blocks_responses=True)) == "stall.timeout.ms"


def test_a_peer_that_is_not_read_as_it_does_not_read_is_cut_if_others_wait_for_its_memory() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    assert rule(deadlines, 2.0, SENDING) == ""
    assert rule(deadlines, 2.9, SENDING._replace(blocks_requests=True)) == ""
    assert rule(deadlines, 3.1, SENDING._replace(blocks_requests=True)) == "stall.timeout.ms"
    assert rule(deadlines, 4.2, SENDING._replace(blocks_requests=True, taken_bytes=2000)) == ""


def test_a_peer_that_sends_and_does_not_read_keeps_its_deadline_for_reading() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(20):
        deadlines.received(float(second), True, True)
        assert rule(deadlines, float(second), SENDING._replace(is_receiving=True, received_bytes=10**6 * second)) == ""
    both = SENDING._replace(is_receiving=True, received_bytes=10**8)
    assert rule(deadlines, 20.0, both) == "send.stall.timeout.ms"


def test_idling_ends_and_waiting_for_a_response_is_no_idling() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    assert rule(deadlines, 601.0, RESTING._replace(is_served=True)) == ""
    assert deadlines.idle_end_s == 1201.0
    assert rule(deadlines, 1201.0, RESTING) == ""
    assert rule(deadlines, 1201.1, RESTING) == "connections.max.idle.ms"
