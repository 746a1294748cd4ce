"""Work that is held back to a number of bytes per second, by a clock that the test moves."""

import pytest

from warmlog_broker.storage.cleaner.throttle import CleaningAborted, CleaningPace
from warmlog_broker.storage.config import UNLIMITED


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.sleeps: list[float] = []

    def sleep(self, duration_s: float) -> None:
        self.sleeps.append(duration_s)
        self.now_s += duration_s


def pace_by(clock: Clock, rate: int) -> CleaningPace:
    return CleaningPace(rate, now_s=lambda: clock.now_s, sleep=clock.sleep)


def test_so_many_bytes_take_so_many_seconds() -> None:
    clock = Clock()
    held_back = pace_by(clock, 1000)
    for _ in range(10):
        held_back.after(250)
    assert clock.now_s == pytest.approx(102.5)


def test_time_that_passes_meanwhile_counts_but_is_no_credit() -> None:
    clock = Clock()
    held_back = pace_by(clock, 1000)
    held_back.after(1000)
    clock.now_s += 50.0
    before_s = clock.now_s
    held_back.after(1000)
    assert clock.now_s - before_s == pytest.approx(1.0)


def test_without_a_limit_nobody_sleeps() -> None:
    clock = Clock()
    pace_by(clock, UNLIMITED).after(1 << 40)
    assert clock.sleeps == []


def test_who_is_held_back_can_be_stopped_soon() -> None:
    clock = Clock()
    held_back = pace_by(clock, 1)

    def sleep(duration_s: float) -> None:
        clock.sleep(duration_s)
        held_back.stop()

    held_back._sleep = sleep
    with pytest.raises(CleaningAborted):
        held_back.after(1_000_000)
    assert clock.now_s - 100.0 <= 0.1
