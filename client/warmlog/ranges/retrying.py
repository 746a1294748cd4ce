"""Questions that are asked again when they fail, and how often."""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from warmlog.errors import ApiError, BrokerUnavailable, may_pass

T = TypeVar("T")

_log = logging.getLogger("warmlog.ranges")


def retrying(
    question: Callable[[], T],
    *,
    retries: int,
    interval_ms: int,
    patience_s: float = 0.0,
    first_interval_ms: int | None = None,
) -> T:
    """What `question` returns; asked again after each failure that may pass (see `may_pass`), `interval_ms` later.

    The error is raised after so many retries, but not before `patience_s`. The pauses double from `first_interval_ms`
    up to `interval_ms`, where the former is given.
    """
    ends_at = time.monotonic() + patience_s
    pause_ms = interval_ms if first_interval_ms is None else min(first_interval_ms, interval_ms)
    retried = 0
    while True:
        try:
            return question()
        except (BrokerUnavailable, ApiError) as error:
            is_over = retried >= retries and time.monotonic() + pause_ms / 1000 > ends_at
            if is_over or not may_pass(error):
                raise
            if not retried:
                _log.warning("asked again, first in %d ms: %s", pause_ms, error)
        time.sleep(pause_ms / 1000)
        pause_ms = min(2 * pause_ms, interval_ms)
        retried += 1
