"""What handlers work with: the parts of the broker."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.producer_ids import ProducerIds
from warmlog_broker.network.body_threads import BodyThreads
from warmlog_broker.replica.delayed_fetch import FetchWaits
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
    """As it is in force: where the system allows less than was asked for, that is what it says."""
    cluster_id: str
    topics: Topics
    directories: DataDirectories
    moves: Moves
    fetch_waits: FetchWaits
    producer_ids: ProducerIds
    cold_readers: Executor
    bodies: BodyThreads
    lines: RepeatedLines
    """For what peers bring about as often as they like."""
    version: str
    write_refusal: Callable[[], ApiError | None]
    """Why no records are taken and no topics made; None when they are."""
    timestamp_cache: TimestampCache = field(default_factory=TimestampCache)
    """For FindSplits."""
    wide_fetches: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the fetch that is read in turns: one at a time, so that many of them leave as much time to others."""
    wide_appends: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for each turn of a produce request that is appended in turns, for the same reason."""

    @staticmethod
    def now_ms() -> int:
        """The time of day."""
        return time.time_ns() // 1_000_000
