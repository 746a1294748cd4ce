"""What handlers work with: the parts of the broker."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.store import ProducerIds
from warmlog_broker.network.body_threads import BodyThreads
from warmlog_broker.replica.cluster_view import ClusterView
from warmlog_broker.replica.delayed_fetch import DelayedFetches
from warmlog_broker.replica.replica_mover import Moves
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.replica.topics import Topics
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.storage.segment.splits import TimestampCache
from warmlog_protocol.errors import ApiError


@dataclass(slots=True)
class Services:
    """The parts of one broker."""

    loop: asyncio.AbstractEventLoop
    config: BrokerConfig
    """In force: with the lower limits of the system, if it allows less than is configured."""
    cluster: ClusterView
    topics: Topics
    directories: DataDirectories
    moves: Moves
    delayed_fetches: DelayedFetches
    producer_ids: ProducerIds
    cold_readers: Executor
    bodies: BodyThreads
    lines: RepeatedLines
    """For log lines that a peer can cause at any rate."""
    version: str
    write_refusal: Callable[[], ApiError | None]
    """Return the reason why no records are taken and no topics created, or None."""
    timestamp_cache: TimestampCache = field(default_factory=TimestampCache)
    """For FindSplits."""
    wide_fetches: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the fetch that is read in turns: one at a time, so that many of them do not delay others more."""
    wide_appends: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for each turn of a produce request that is appended in turns, for the same reason."""

    @staticmethod
    def now_ms() -> int:
        """The time of day."""
        return time.time_ns() // 1_000_000
