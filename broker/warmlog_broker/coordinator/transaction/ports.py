"""What a transaction coordinator reaches that another broker may have: partitions, and groups.

What is not on the broker that was asked, or not ready there, raises NotLeaderOrFollower, NotCoordinator or
CoordinatorNotAvailable: the caller tries again, as after every ApiError that it does not know.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation
from warmlog_protocol.messages import OffsetCommitRequest, OffsetCommitResponse


class Markers(Protocol):
    """The ends of transactions in partitions."""

    async def end(
        self, partition: PartitionId, producer: Incarnation, *, commits: bool, keeps_epoch: bool, coordinator_epoch: int
    ) -> bool:
        """Return when the marker, or a later one, is durable, or the topic is deleted. Idempotent.

        Returns whether the partition has an open transaction that the marker cannot end: it is not written then.
        """
        ...


class PendingOffsets(Protocol):
    """Offsets that wait in groups for the end of a transaction: see `GroupCoordinator`."""

    async def add_pending(
        self,
        request: OffsetCommitRequest,
        principal: str,
        producer_id: int,
        epoch: int,
        coordinator_epoch: int,
        check: Callable[[], None],
    ) -> OffsetCommitResponse: ...

    async def end_pending(
        self, group: str, producer_id: int, epoch: int, *, commits: bool, keeps_epoch: bool, coordinator_epoch: int
    ) -> None: ...

    def pending(self) -> Iterator[tuple[str, int, int, int]]: ...


class Elsewhere(Protocol):
    """The ports in a cluster: what is not on this broker is asked of the broker that has it."""

    def markers(self, local: Markers) -> Markers: ...

    def pending_offsets(self, local: PendingOffsets) -> PendingOffsets: ...
