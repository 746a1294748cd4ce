"""Whether bytes go on, by a clock that the test sets."""

from warmlog_broker.network.deadlines import Pace


def slow(pace: Pace, moved_bytes: int, now_s: float) -> bool:
    return pace.is_slow(moved_bytes, now_s, window_s=1.0, bytes_per_second=1000)


def test_it_is_judged_once_in_each_window() -> None:
    pace = Pace(10.0)
    assert not slow(pace, 0, 10.9)
    assert slow(pace, 900, 11.0)
    assert not slow(pace, 900, 11.5)
    assert not slow(pace, 1900, 12.0)
    assert slow(pace, 2900, 13.5)


def test_after_a_restart_time_begins_anew() -> None:
    pace = Pace(10.0)
    pace.restart(5000, 20.0)
    assert not slow(pace, 5000, 20.9)
    assert slow(pace, 5500, 21.0)


def test_one_byte_is_enough_not_to_stand_still() -> None:
    pace = Pace(0.0)
    assert not pace.stands_still(0, 4.9, limit_s=5)
    assert not pace.stands_still(1, 9.0, limit_s=5)
    assert not pace.stands_still(1, 13.9, limit_s=5)
    assert pace.stands_still(1, 14.0, limit_s=5)
