"""When a connection has to go, by a clock that the test sets."""

from dataclasses import replace

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.network.deadlines import Deadlines, Standing

CONFIG = BrokerConfig(
    data_dir="unused",
    handshake_timeout_ms=10_000,
    request_receive_timeout_ms=60_000,
    stall_timeout_ms=1000,
    stall_min_bytes_per_second=1000,
    send_stall_timeout_ms=20_000,
    connections_max_idle_ms=600_000,
)
RESTING = Standing(
    is_open=True,
    has_partial=False,
    is_kept_waiting=False,
    is_in_the_way=False,
    is_reader_due=False,
    is_hoarding=False,
    is_served=False,
    received_bytes=0,
    taken_bytes=0,
)
RECEIVING = replace(RESTING, has_partial=True)
SENDING = replace(RESTING, is_reader_due=True)


def rule(deadlines: Deadlines, now_s: float, now: Standing) -> str:
    """The setting that closes the connection; empty when it may stay."""
    overdue = deadlines.overdue(now_s, now)
    return "" if overdue is None else overdue.rule


def test_who_does_not_say_who_it_is_has_to_go() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    greeting = replace(RECEIVING, is_open=False)
    assert rule(deadlines, 10.0, greeting) == ""
    assert rule(deadlines, 10.1, greeting) == "handshake.timeout.ms"


def test_a_request_that_comes_byte_by_byte_ends_at_its_deadline_however_regular_the_bytes() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(61):
        assert rule(deadlines, float(second), replace(RECEIVING, received_bytes=second)) == ""
    assert rule(deadlines, 60.1, replace(RECEIVING, received_bytes=61)) == "request.receive.timeout.ms"


def test_the_time_in_which_it_is_not_read_does_not_count() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    waiting = replace(RECEIVING, is_kept_waiting=True, is_in_the_way=True)
    for second in range(100):
        assert rule(deadlines, float(second), waiting) == ""
    assert rule(deadlines, 99.9, replace(RECEIVING, is_in_the_way=True)) == ""


def test_who_stalls_is_cut_soon_when_others_wait_for_its_memory_and_only_then() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    assert rule(deadlines, 5.0, RECEIVING) == ""
    assert rule(deadlines, 5.5, replace(RECEIVING, is_in_the_way=True)) == ""
    assert rule(deadlines, 6.0, replace(RECEIVING, is_in_the_way=True)) == "stall.timeout.ms"


def test_who_brings_enough_may_stay_although_others_wait() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(1, 50):
        now = replace(RECEIVING, is_in_the_way=True, received_bytes=1000 * second)
        assert rule(deadlines, float(second), now) == ""
    assert rule(deadlines, 50.0, replace(RECEIVING, is_in_the_way=True, received_bytes=49_900)) == "stall.timeout.ms"


def test_a_request_that_has_just_begun_is_not_blamed_for_the_rest_before_it() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    deadlines.rested_s = 300.0
    deadlines.partial_since_s = 300.3
    assert rule(deadlines, 300.4, replace(RECEIVING, is_in_the_way=True)) == ""
    assert rule(deadlines, 301.5, replace(RECEIVING, is_in_the_way=True)) == "stall.timeout.ms"


def test_who_takes_nothing_of_its_answers_has_to_go() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    deadlines.rested_s = 100.0
    assert rule(deadlines, 100.2, SENDING) == ""
    assert rule(deadlines, 120.1, SENDING) == ""
    assert rule(deadlines, 120.3, SENDING) == "send.stall.timeout.ms"


def test_who_takes_a_byte_now_and_then_may_stay_until_answers_take_too_much_memory() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    for second in range(1, 100):
        assert rule(deadlines, float(second), replace(SENDING, taken_bytes=second)) == ""
    assert rule(deadlines, 100.1, replace(SENDING, taken_bytes=100, is_hoarding=True)) == "stall.timeout.ms"


def test_who_is_not_read_as_it_does_not_read_is_cut_when_others_wait_for_its_memory() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    stuck = replace(SENDING, has_partial=True, is_kept_waiting=True)
    assert rule(deadlines, 2.0, stuck) == ""
    assert rule(deadlines, 2.9, replace(stuck, is_in_the_way=True)) == ""
    assert rule(deadlines, 3.1, replace(stuck, is_in_the_way=True)) == "stall.timeout.ms"
    assert rule(deadlines, 4.2, replace(stuck, is_in_the_way=True, taken_bytes=2000)) == ""


def test_idling_ends_and_waiting_for_an_answer_is_no_idling() -> None:
    deadlines = Deadlines(CONFIG, 0.0)
    assert rule(deadlines, 601.0, replace(RESTING, is_served=True)) == ""
    assert rule(deadlines, 601.0, RESTING) == "connections.max.idle.ms"
