"""The high watermark of a partition: records below it are committed, so they can be read by consumers and acknowledged.

The log stores it and reads up to it. Only `HighWatermark.advance` raises it: flushes, starts, and appends to a topic
with write.caching only change which records this broker holds for good.
"""

import logging
import sys
from collections import deque
from collections.abc import Callable

from warmlog_broker.storage.log.log import Log
from warmlog_protocol.errors import ApiError

CommitRule = Callable[[int], int]
"""Given the offset below which this broker holds the partition for good, return the offset below which it is committed.

A leader with followers returns the smallest of its own and theirs, over the in-sync replicas; a follower returns the
smaller of its own and what its leader says.
"""

OnDurable = Callable[[ApiError | None], None]
"""Called once: with None when a batch is below the high watermark, or with the error that prevents that for good."""

_log = logging.getLogger(__name__)


def only_replica(held_offset: int) -> int:
    """The rule of a partition without followers: all that this broker holds is committed."""
    return held_offset


class HighWatermark:
    """Decides the high watermark of one partition. When `rule` may return more, call `Partition.advance`."""

    __slots__ = ("rule",)

    def __init__(self, rule: CommitRule) -> None:
        self.rule = rule

    def advance(self, log: Log) -> None:
        """Raise the high watermark of `log` to what is committed; never lower it.

        This broker holds records for good once they are flushed or, with write.caching, written.
        """
        held_offset = log.log_end_offset if log.local.config.write_caching else log.recovery_point
        log.bounds.raise_high_watermark(self.rule(held_offset))


class PendingAppends:
    """Appended batches that are not yet below the high watermark."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, OnDurable]] = deque()
        """By end offset, in ascending order."""

    def add(self, end_offset: int, on_durable: OnDurable) -> None:
        """Call `on_durable` once the high watermark is at or above `end_offset`."""
        waiting = self._waiting
        if not waiting or waiting[-1][0] <= end_offset:
            waiting.append((end_offset, on_durable))
            return
        # A duplicate waits for its original, after which other batches were appended.
        position = next(i for i, (other_offset, _) in enumerate(waiting) if other_offset > end_offset)
        waiting.insert(position, (end_offset, on_durable))

    def complete(self, high_watermark: int, error: ApiError | None = None) -> None:
        """Call back for the batches that end at or below `high_watermark`."""
        waiting = self._waiting
        while waiting and waiting[0][0] <= high_watermark:
            _, on_durable = waiting.popleft()
            try:
                on_durable(error)
            except Exception:  # which must not stop the others
                _log.exception("a callback of an append failed: a bug")

    def fail(self, error: ApiError) -> None:
        """Call back for all batches with `error`."""
        self.complete(sys.maxsize, error)
