"""A clock that jumps: what is believed of it, and when."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.runtime.clock import LARGEST_STEP_MS, TrustedClock

HOUR, DAY, YEAR = 3_600_000, 86_400_000, 365 * 86_400_000
T = 1_700_000_000_000


def clock(last_known_ms: int | None = T, *, wall_ms: int = T, settle_ms: int = HOUR) -> TrustedClock:
    return TrustedClock(last_known_ms, wall_ms=wall_ms, elapsed_ms=0, settle_ms=settle_ms)


def test_a_clock_that_goes_on_is_believed() -> None:
    trusted = clock()
    assert [trusted.now_ms(T + n * HOUR, n * HOUR) for n in range(5)] == [T + n * HOUR for n in range(5)]


def test_small_corrections_are_believed_at_once() -> None:
    trusted = clock()
    assert trusted.now_ms(T + HOUR + LARGEST_STEP_MS, HOUR) == T + HOUR + LARGEST_STEP_MS
    assert trusted.now_ms(T + HOUR - LARGEST_STEP_MS, HOUR) == T + HOUR - LARGEST_STEP_MS


def test_a_jump_of_years_is_believed_after_it_has_stood_for_an_hour() -> None:
    trusted = clock()
    assert trusted.now_ms(T + 10 * YEAR, 1000) == T + 1000
    assert trusted.is_doubted
    assert trusted.now_ms(T + 10 * YEAR + HOUR - 1, 1000 + HOUR - 1) == T + 1000 + HOUR - 1
    assert trusted.now_ms(T + 10 * YEAR + HOUR, 1000 + HOUR) == T + 10 * YEAR + HOUR
    assert not trusted.is_doubted


def test_a_jump_that_is_taken_back_in_time_has_had_no_effect() -> None:
    trusted = clock()
    assert trusted.now_ms(T + 10 * YEAR, 1000) == T + 1000
    assert trusted.now_ms(T + 5000, 5000) == T + 5000
    assert not trusted.is_doubted
    assert trusted.now_ms(T + 2 * HOUR, 2 * HOUR) == T + 2 * HOUR


def test_every_further_jump_begins_the_hour_anew() -> None:
    trusted = clock()
    for number in range(1, 6):
        elapsed_ms = number * (HOUR - 1)
        assert trusted.now_ms(T + number * YEAR + elapsed_ms, elapsed_ms) == T + elapsed_ms


def test_a_start_with_a_clock_that_is_years_ahead_of_the_data_waits() -> None:
    trusted = clock(T, wall_ms=T + 3 * YEAR)
    assert trusted.now_ms(T + 3 * YEAR + 60_000, 60_000) == T + 60_000
    assert trusted.now_ms(T + 3 * YEAR + HOUR, HOUR) == T + 3 * YEAR + HOUR


def test_a_start_soon_after_the_stop_does_not_wait() -> None:
    assert clock(T, wall_ms=T + 300_000).now_ms(T + 301_000, 1000) == T + 301_000


def test_a_step_back_is_believed_at_once_and_the_way_forward_again_is_a_jump() -> None:
    trusted = clock()
    assert trusted.now_ms(T - YEAR, 1000) == T - YEAR
    assert trusted.now_ms(T + 2000, 2000) == T - YEAR + 1000
    assert trusted.now_ms(T + 2000 + HOUR, 2000 + HOUR) == T + 2000 + HOUR


def test_a_new_directory_has_no_past_to_compare_with() -> None:
    assert clock(None, wall_ms=5).now_ms(6, 1) == 6


def test_without_a_time_to_settle_everything_is_believed() -> None:
    assert clock(settle_ms=0).now_ms(T + YEAR, 1) == T + YEAR


@given(st.lists(st.tuples(st.integers(-2 * YEAR, 2 * YEAR), st.integers(1, HOUR // 2)), max_size=30))
def test_it_never_runs_ahead_faster_than_time_passes_until_the_hour_is_over(steps: list[tuple[int, int]]) -> None:
    trusted, elapsed_ms, before_ms, wall_ms, since_jump_ms = clock(), 0, T, T, 0
    for jump_ms, passed_ms in steps:
        is_jump = abs(jump_ms) > LARGEST_STEP_MS
        since_jump_ms = 0 if is_jump else since_jump_ms + passed_ms
        elapsed_ms += passed_ms
        wall_ms += passed_ms + jump_ms
        now_ms = trusted.now_ms(wall_ms, elapsed_ms)
        if since_jump_ms < HOUR:
            assert now_ms <= before_ms + passed_ms + LARGEST_STEP_MS
        before_ms = now_ms
