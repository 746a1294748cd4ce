"""The coordinators of one broker, created when they are first needed: many brokers have no groups and no transactions,
and start without these modules."""

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from warmlog_broker.coordinator.surroundings import Surroundings

if TYPE_CHECKING:
    from warmlog_broker.coordinator.group.coordinator import GroupCoordinator
    from warmlog_broker.coordinator.transaction.coordinator import TransactionCoordinator
    from warmlog_broker.coordinator.transaction.ports import Elsewhere


class _Running(NamedTuple):
    groups: "GroupCoordinator"
    transactions: "TransactionCoordinator"


class Coordinators:
    """Both coordinators: of transactions and of groups, whose offsets a transaction may commit."""

    def __init__(self, around: Surroundings) -> None:
        self.elsewhere: Elsewhere | None = None
        """None if this broker is a cluster alone. Set before `start`."""
        self._around = around
        self._running: _Running | None = None

    @cached_property
    def groups(self) -> "GroupCoordinator":
        return (self._running or self._begin()).groups

    @cached_property
    def transactions(self) -> "TransactionCoordinator":
        return (self._running or self._begin()).transactions

    def start(self) -> None:
        """Create them now if one of their topics exists: its state has sessions that expire, or decisions to finish."""
        if any(topic.is_internal for topic in self._around.topics):
            self._begin()

    def expire_waits(self) -> None:
        """End the requests of members that wait."""
        if self._running is not None:
            self._running.groups.waits.expire_all()
            self._running.groups.classic.end_waits()

    async def stop(self) -> None:
        """Finish the changes that they write; their requests have ended before."""
        self.close()
        for coordinator in self._running or ():
            await coordinator.tasks.finish(0)

    def close(self) -> None:
        """End their tasks. Idempotent."""
        for coordinator in self._running or ():
            coordinator.close()

    def _begin(self) -> _Running:
        from warmlog_broker.coordinator.group.coordinator import GroupCoordinator
        from warmlog_broker.coordinator.transaction.coordinator import TransactionCoordinator
        from warmlog_broker.coordinator.transaction.markers import LocalMarkers

        around, elsewhere = self._around, self.elsewhere
        groups = GroupCoordinator(around)
        markers = LocalMarkers(around.topics, around.cluster)
        if elsewhere is None:
            transactions = TransactionCoordinator(around, groups, markers)
        else:
            transactions = TransactionCoordinator(around, elsewhere.pending_offsets(groups), elsewhere.markers(markers))
        self._running = _Running(groups, transactions)
        for coordinator in self._running:
            coordinator.start()
        return self._running
