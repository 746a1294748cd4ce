"""Decides which failure of a partition is logged, when it is retried again and again.

A client retries often and for long, and its user should hear of it once. A failure is logged when it has lasted
GRACE_S, as a new leader or a move to another directory takes a moment. It is logged again if its cause has changed or
the partition worked in between, but at most once in TELL_AGAIN_S for a partition.
"""

from dataclasses import dataclass

from warmlog_protocol.errors import WarmlogError
from warmlog_transport.errors import BrokerUnavailable
from warmlog_transport.responses import TopicPartition

GRACE_S = 1.0
TELL_AGAIN_S = 30.0


@dataclass(slots=True)
class _Failure:
    """A partition that has failed. The cause is the error's class, as messages contain numbers that change."""

    since_s: float | None
    logged: type[WarmlogError] | None = None
    logged_at_s: float = float("-inf")


class FailureLog:
    """What was logged about each partition. `now_s` is any monotonic clock."""

    def __init__(self) -> None:
        self._failures: dict[TopicPartition, _Failure] = {}

    def is_news(self, topic_partition: TopicPartition, error: WarmlogError, now_s: float) -> bool:
        """Whether to log that the partition has failed with `error`; if so, it counts as logged.

        A lost connection is not the partition's failure: BrokerLink logs it.
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
