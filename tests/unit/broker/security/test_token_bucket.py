"""The account of one taker, against a model in exact fractions that looks at the whole history."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog_broker.security.quotas import BURST_S, TokenBucket

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
