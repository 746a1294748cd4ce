"""Requests that are sent again after a failure: the pause before that, and which failure is logged."""

import asyncio
import random
from dataclasses import dataclass

from warmlog_protocol.errors import WarmlogError
from warmlog_transport.errors import LEADER_HAS_MOVED, BrokerUnavailable
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition

GRACE_S = 1.0
TELL_AGAIN_S = 30.0
_MAX_DOUBLINGS = 20


def backoff_ms(failures: int, options: ConnectionOptions, jitter: float) -> float:
    """The pause after the `failures`-th failure in a row: doubling, bounded, 20 % up or down by `jitter` in [0, 1)."""
    if failures <= 0:
        return 0.0
    doubled = options.retry_backoff_ms * float(2 ** min(failures - 1, _MAX_DOUBLINGS))
    return min(doubled, options.retry_backoff_max_ms) * (0.8 + 0.4 * jitter)


def pause_s(failures: int, options: ConnectionOptions) -> float:
    """The pause with a random jitter: clients that lost a broker at the same time do not all come back at once."""
    return backoff_ms(failures, options, random.random()) / 1000  # noqa: S311


def pause_after_s(error: WarmlogError, failures: int, options: ConnectionOptions) -> float:
    """As `pause_s`, but the first pause each time if the partition's leader has moved."""
    return pause_s(1 if isinstance(error, LEADER_HAS_MOVED) else failures, options)


class Retries:
    """The retries of one piece of work. The last attempt begins before `timeout_s` is over."""

    def __init__(self, options: ConnectionOptions, timeout_s: float) -> None:
        self._options = options
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeout_s
        self._failures = 0

    @property
    def left_s(self) -> float:
        return self._deadline - self._loop.time()

    async def pause(self) -> bool:
        """Wait until the next attempt, after one that failed. Return False at once if the time would be over."""
        self._failures += 1
        wait_s = pause_s(self._failures, self._options)
        if wait_s >= self.left_s:
            return False
        await asyncio.sleep(wait_s)
        return True


@dataclass(slots=True)
class _Failure:
    """A partition that has failed. The cause is the error's class, as messages contain numbers that change."""

    since_s: float | None
    logged: type[WarmlogError] | None = None
    logged_at_s: float = float("-inf")


class FailureLog:
    """Decides which failure of a partition is logged, when it is retried again and again.

    A client retries often and for long, and its user should hear of it once. A failure is logged when it has lasted
    GRACE_S, as a new leader or a move to another directory takes a moment. It is logged again if its cause has changed
    or the partition worked in between, but at most once in TELL_AGAIN_S for a partition. `now_s` is any monotonic
    clock.
    """

    def __init__(self) -> None:
        self._failures: dict[TopicPartition, _Failure] = {}

    def is_news(self, topic_partition: TopicPartition, error: WarmlogError, now_s: float) -> bool:
        """Whether to log that the partition has failed with `error`; if so, it counts as logged.

        A lost connection is not the partition's failure: the link to the broker logs it.
        """
        if isinstance(error, BrokerUnavailable):
            return False
        failure = self._failures.setdefault(topic_partition, _Failure(now_s))
        if failure.since_s is None:
            failure.since_s = now_s
        is_early = now_s - failure.since_s < GRACE_S or now_s - failure.logged_at_s < TELL_AGAIN_S
        if is_early or failure.logged is type(error):
            return False
        failure.logged, failure.logged_at_s = type(error), now_s
        return True

    def worked(self, topic_partition: TopicPartition) -> None:
        """Count the partition's next failure as a new one."""
        failure = self._failures.get(topic_partition)
        if failure is not None:
            failure.since_s = failure.logged = None
