"""Requests that are retried if they fail, and how often."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from warmlog.errors import ApiError, BrokerUnavailable, may_pass

T = TypeVar("T")

_log = logging.getLogger("warmlog")


def retrying(
    request: Callable[[], T],
    *,
    retries: int,
    interval_ms: int,
    patience_s: float = 0.0,
    first_interval_ms: int | None = None,
) -> T:
    """Return what `request` returns; retry `interval_ms` after each failure that may pass (see `may_pass`).

    Raises the error after so many `retries`, but not before `patience_s`. With `first_interval_ms` the pauses double
    from there up to `interval_ms`.
    """
    ends_at = time.monotonic() + patience_s
    pause_ms = interval_ms if first_interval_ms is None else min(first_interval_ms, interval_ms)
    retried = 0
    while True:
        try:
            return request()
        except (BrokerUnavailable, ApiError) as error:
            is_over = retried >= retries and time.monotonic() + pause_ms / 1000 > ends_at
            if is_over or not may_pass(error):
                raise
            if not retried:
                _log.warning("%s; retrying, first in %d ms", error, pause_ms)
        time.sleep(pause_ms / 1000)
        pause_ms = min(2 * pause_ms, interval_ms)
        retried += 1
