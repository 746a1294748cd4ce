"""Pauses between attempts grow, are bounded and are never quite the same."""

from hypothesis import given
from hypothesis import strategies as st

from warmlog_transport.options import ConnectionOptions
from warmlog_transport.retries import backoff_ms

OPTIONS = ConnectionOptions(retry_backoff_ms=50, retry_backoff_max_ms=1000)


def test_pauses_double_up_to_the_bound() -> None:
    assert [backoff_ms(failures, OPTIONS, 0.5) for failures in range(8)] == [0, 50, 100, 200, 400, 800, 1000, 1000]


@given(st.integers(min_value=0, max_value=10**6), st.floats(min_value=0, max_value=1, exclude_max=True))
def test_jitter_moves_a_pause_by_a_fifth_at_most(failures: int, jitter: float) -> None:
    middle = backoff_ms(failures, OPTIONS, 0.5)
    assert 0.79 * middle <= backoff_ms(failures, OPTIONS, jitter) <= 1.21 * middle
