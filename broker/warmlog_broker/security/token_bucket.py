"""A rate, and the debt of those who exceed it. Pure: the time is an argument, in seconds of any clock.

What is taken is never refused: it may leave a debt, and the taker is told how long the rate needs to repay it. If it
waits that long before it takes more, the rate is kept over any period, but for what BURST_S allows and the last amount.
"""

BURST_S = 1.0
"""What a taker may save, as the time in which the rate gives it. Longer than a delay is rounded up by event loops."""


class TokenBucket:
    """The account of one taker; full at first."""

    __slots__ = ("_balance", "_capacity", "_rate", "_updated_s")

    def __init__(self, rate: float, now_s: float) -> None:
        """`rate` is in units a second."""
        self._rate = rate
        self._balance = self._capacity = max(1.0, rate * BURST_S)
        self._updated_s = now_s

    def take(self, amount: float, now_s: float, max_delay_s: float) -> float:
        """Take `amount`; return the seconds in which the debt is repaid, 0 if there is none.

        A debt beyond `max_delay_s` is cancelled.
        """
        self._balance = max(self._balance_at(now_s) - amount, -self._rate * max_delay_s)
        self._updated_s = max(now_s, self._updated_s)
        return max(0.0, -self._balance / self._rate)

    def is_full(self, now_s: float) -> bool:
        """Return whether it is as a new one would be."""
        return self._balance_at(now_s) >= self._capacity

    def _balance_at(self, now_s: float) -> float:
        elapsed_s = max(0.0, now_s - self._updated_s)
        return min(self._capacity, self._balance + elapsed_s * self._rate)
