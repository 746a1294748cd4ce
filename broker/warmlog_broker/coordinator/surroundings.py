"""What coordinators have around them: parts of the broker, and the bound of what clients store in all of them.

What clients store is counted in bytes of memory, about; on disk it is less. What counts is a replay of the records:
names, subscriptions, offsets with their metadata, targets, transactional ids with their partitions. It counts for the
principal that created the group or the transactional id.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import NamedTuple

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.store import ClusterStore, ProducerIds
from warmlog_broker.network.request import ANONYMOUS_PRINCIPAL
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_broker.security.authorizer import Authorizer
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import PolicyViolation

Held = Mapping[str, int]
"""Bytes by principal; "" for what a broker before 0.2 stored."""


class Holdings:
    """What all coordinators of this broker hold, and how much that may be."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self._sources: list[Callable[[], Iterable[Held]]] = []

    def add_source(self, held: Callable[[], Iterable[Held]]) -> None:
        """Count what `held` returns: one each for the states of a coordinator that are loaded."""
        self._sources.append(held)

    def check(self, principal: str, more_bytes: int) -> None:
        """Raise PolicyViolation if `principal` cannot hold so many bytes more. Less is always possible."""
        if more_bytes <= 0:
            return
        states = [held for source in self._sources for held in source()]
        total_bytes = sum(sum(held.values()) for held in states) + more_bytes
        if total_bytes > self._config.coordinator_max_bytes:
            raise PolicyViolation(
                f"groups and transactional ids take {total_bytes} bytes with that, coordinator.max.bytes allows "
                f"{self._config.coordinator_max_bytes}: delete unused ones"
            )
        own_bytes = sum(held.get(principal, 0) for held in states) + more_bytes
        limit_bytes = self._config.coordinator_principal_max_bytes
        if principal not in ("", ANONYMOUS_PRINCIPAL) and own_bytes > limit_bytes:
            raise PolicyViolation(
                f"the groups and transactional ids that {principal} created take {own_bytes} bytes with that, "
                f"coordinator.principal.max.bytes allows {limit_bytes}: delete unused ones"
            )


class Surroundings(NamedTuple):
    """Parts of one broker."""

    topics: Topics
    cluster: ClusterStore
    config: BrokerConfig
    producer_ids: ProducerIds
    authorizer: Authorizer
    timers: TimerWheel
    lines: RepeatedLines
    threads: Executor
    """They read files."""
    retention_now_ms: Callable[[], int]
    """The clock by which offsets expire."""
    holdings: Holdings
