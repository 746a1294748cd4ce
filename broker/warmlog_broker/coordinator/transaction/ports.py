"""What a transaction coordinator reaches that another broker may have: partitions, and groups.

They take the requests by which a broker asks another one. What is not on the broker that was asked, or not ready there,
raises NotLeaderOrFollower, NotCoordinator or CoordinatorNotAvailable: the caller tries again, as after every ApiError
that it does not know.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from warmlog_protocol import messages as m


class Markers(Protocol):
    """The ends of transactions in partitions."""

    async def end(self, request: m.WriteMarkerRequest) -> bool:
        """Return when the marker, or a later one, is durable, or the topic is deleted. Idempotent.

        Returns whether the partition has an open transaction that the marker cannot end: it is not written then.
        """
        ...


class PendingOffsets(Protocol):
    """Offsets that wait in groups for the end of a transaction: see `GroupCoordinator`."""

    async def add_pending(
        self, request: m.AddPendingOffsetsRequest, check: Callable[[], None]
    ) -> m.OffsetCommitResponse: ...

    async def end_pending(self, request: m.EndPendingOffsetsRequest) -> None: ...

    def pending(self) -> Iterator[tuple[str, int, int, int]]: ...


class Elsewhere(Protocol):
    """The ports in a cluster: what is not on this broker is asked of the broker that has it."""

    def markers(self, local: Markers) -> Markers: ...

    def pending_offsets(self, local: PendingOffsets) -> PendingOffsets: ...
