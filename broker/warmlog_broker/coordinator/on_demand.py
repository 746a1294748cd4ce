"""The coordinators of one broker, created when they are first needed: many brokers have no groups and no transactions,
and start without these modules."""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.store import ProducerIds
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_broker.security.authorizer import Authorizer
from warmlog_broker.topics.topics import Topics

if TYPE_CHECKING:
    from warmlog_broker.coordinator.group.coordinator import GroupCoordinator
    from warmlog_broker.coordinator.transaction.coordinator import TransactionCoordinator


class _Running(NamedTuple):
    groups: "GroupCoordinator"
    transactions: "TransactionCoordinator"


class Coordinators:
    """Both coordinators: of transactions and of groups, whose offsets a transaction may commit."""

    def __init__(
        self,
        topics: Topics,
        producer_ids: ProducerIds,
        config: BrokerConfig,
        *,
        authorizer: Authorizer,
        timers: TimerWheel,
        lines: RepeatedLines,
        threads: Executor,
        retention_now_ms: Callable[[], int],
    ) -> None:
        """`threads` read files. `retention_now_ms` is the clock by which offsets expire."""
        self._topics = topics
        self._producer_ids = producer_ids
        self._config = config
        self._authorizer = authorizer
        self._timers = timers
        self._lines = lines
        self._threads = threads
        self._retention_now_ms = retention_now_ms
        self._running: _Running | None = None

    @cached_property
    def groups(self) -> "GroupCoordinator":
        return (self._running or self._begin()).groups

    @cached_property
    def transactions(self) -> "TransactionCoordinator":
        return (self._running or self._begin()).transactions

    def start(self) -> None:
        """Create them now if one of their topics exists: its state has sessions that expire, or decisions to finish."""
        if any(topic.is_internal for topic in self._topics):
            self._begin()

    def take_settings(self) -> None:
        """Use the limits of the configuration as they are now."""
        if self._running is not None:
            self._running.groups.take_settings()

    def expire_waits(self) -> None:
        """End the heartbeats that wait for news."""
        if self._running is not None:
            self._running.groups.waits.expire_all()

    async def stop(self) -> None:
        """Finish the changes that they write; their requests have ended before."""
        if self._running is not None:
            await self._running.transactions.stop()
            await self._running.groups.stop()

    def close(self) -> None:
        """End their tasks. Idempotent."""
        if self._running is not None:
            self._running.transactions.close()
            self._running.groups.close()

    def _begin(self) -> _Running:
        from warmlog_broker.coordinator.framework.holdings import Holdings
        from warmlog_broker.coordinator.group.coordinator import GroupCoordinator
        from warmlog_broker.coordinator.transaction.coordinator import TransactionCoordinator

        holdings = Holdings(self._config)
        groups = GroupCoordinator(
            self._topics,
            self._config,
            holdings=holdings,
            authorizer=self._authorizer,
            timers=self._timers,
            lines=self._lines,
            threads=self._threads,
            now_ms=now_ms,
            retention_now_ms=self._retention_now_ms,
        )
        transactions = TransactionCoordinator(
            self._topics,
            groups,
            self._producer_ids,
            self._config,
            holdings=holdings,
            timers=self._timers,
            threads=self._threads,
            now_ms=now_ms,
        )
        self._running = _Running(groups, transactions)
        for coordinator in self._running:
            coordinator.start()
        return self._running
