"""What decides when an appended batch is committed, and the batches that wait for it."""

import logging
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol

from warmlog_protocol.errors import ApiError

CommitRule = Callable[[], int]
"""Return the offset below which a partition with other replicas is committed.

A role comes with its rule, and only that of the present role is asked. For a leader it is the smallest offset below
which one of the in-sync replicas, itself included, holds the partition for good; for a follower the smaller of its own
and what its leader says. Without a rule, all that this broker holds for good is committed.
"""

OnDurable = Callable[[ApiError | None], None]
"""Called once: with None when a batch is below the high watermark, or with the error that prevents that for good."""

_log = logging.getLogger(__name__)


class Replication(Protocol):
    """The other replicas of a partition, as far as clients of this one are concerned: see `Driver` of a cluster."""

    @property
    def missing_records(self) -> int:
        """How many records a follower lacks of what its leader has committed, as far as that has told it."""
        ...

    def check_append(self, acks: int) -> None:
        """Raise NotLeaderOrFollower while this broker hands over, NotEnoughReplicas if acks=all cannot be reached."""
        ...

    def check_serves(self) -> None:
        """Raise NotLeaderOrFollower unless this broker has surely led a short while ago, or followed in sync."""
        ...

    def near_replica(self, rack: str, offset: int) -> int:
        """Return the replica from which a consumer in `rack` should read from `offset` on; -1 for this one."""
        ...

    def damaged(self, reason: str) -> None:
        """Note that records below the high watermark are damaged here: another replica leads, and this one is refilled.

        No-op if no other one may lead.
        """
        ...

    async def confirm(self) -> None:
        """Return once this broker has surely led after the call began, and knows all that was committed before.

        Raises NotLeaderOrFollower if it does not lead, or cannot know it in time.
        """
        ...

    async def deleted(self, offset: int) -> None:
        """Return once no other replica that may lead has records below `offset`. RequestTimedOut."""
        ...


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

    @property
    def end_offset(self) -> int:
        """The largest end offset that is waited for; 0 if none is."""
        return self._waiting[-1][0] if self._waiting else 0

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
