"""The parts of the broker that handlers use."""

import asyncio
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from msgspec import Struct, field

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.coordinator.on_demand import Coordinators
from warmlog_broker.metadata.store import ProducerIds
from warmlog_broker.network.body_threads import BodyThreads
from warmlog_broker.network.connections import Connections
from warmlog_broker.network.memory_pool import ResponseMemory
from warmlog_broker.replica.cluster_view import ClusterView
from warmlog_broker.replica.delayed_fetch import DelayedFetches
from warmlog_broker.replica.served_directories import DataDirectories
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.security.authorizer import Authorizer
from warmlog_broker.security.quotas import Quotas
from warmlog_broker.security.users import Users
from warmlog_broker.storage.segment.splits import TimestampCache
from warmlog_broker.topics.broker_changes import BrokerChanges
from warmlog_broker.topics.replica_mover import Moves
from warmlog_broker.topics.topic_changes import TopicChanges
from warmlog_broker.topics.topics import Topics

if TYPE_CHECKING:
    from warmlog_broker.cluster.data_path.requests import ClusterRequests


class Services(Struct):
    """The parts of one broker."""

    loop: asyncio.AbstractEventLoop
    config: BrokerConfig
    """The effective settings: with lower limits if the system allows less than is configured."""
    cluster: ClusterView
    topics: Topics
    topic_changes: TopicChanges
    broker_changes: BrokerChanges
    directories: DataDirectories
    moves: Moves
    delayed_fetches: DelayedFetches
    producer_ids: ProducerIds
    coordinators: Coordinators
    users: Users
    authorizer: Authorizer
    quotas: Quotas
    cold_readers: Executor
    bodies: BodyThreads
    response_memory: ResponseMemory
    counters: Counters
    connections: Connections
    lines: RepeatedLines
    """For log lines that peers can cause at any rate."""
    between_brokers: "ClusterRequests | None" = None
    """None if this broker is a cluster alone."""
    timestamp_cache: TimestampCache = field(default_factory=TimestampCache)
    """For FindSplits."""
    wide_fetches: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the fetch that is read in several turns: only one at a time, to limit the delay of other requests."""
    wide_appends: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held for each turn of a produce request that is appended in several turns, for the same reason."""
