"""Whether bytes move, by a clock that the test sets."""

from warmlog_broker.network.deadlines import Flow


def slow(flow: Flow, moved_bytes: int, now_s: float) -> bool:
    return flow.is_slow(moved_bytes, now_s, window_s=1.0, bytes_per_second=1000)


def test_it_is_judged_once_in_each_window() -> None:
    flow = Flow(10.0)
    assert not slow(flow, 0, 10.9)
    assert slow(flow, 900, 11.0)
    assert not slow(flow, 900, 11.5)
    assert not slow(flow, 1900, 12.0)
    assert slow(flow, 2900, 13.5)


def test_after_a_restart_the_window_begins_again() -> None:
    flow = Flow(10.0)
    flow.restart(5000, 20.0)
    assert not slow(flow, 5000, 20.9)
    assert slow(flow, 5500, 21.0)
