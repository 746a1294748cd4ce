"""What coordinators use of the rest of the broker."""

from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.store import ProducerIds
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_broker.security.authorizer import Authorizer
from warmlog_broker.topics.topics import Topics


class Surroundings(NamedTuple):
    """Parts of one broker."""

    topics: Topics
    config: BrokerConfig
    producer_ids: ProducerIds
    authorizer: Authorizer
    timers: TimerWheel
    lines: RepeatedLines
    threads: Executor
    """They read files."""
    retention_now_ms: Callable[[], int]
    """The clock by which offsets expire."""
