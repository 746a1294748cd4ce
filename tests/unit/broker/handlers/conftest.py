"""What tests of handlers share: services with partitions on real logs, and a context."""

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import cast

import pytest

from unit.broker.conftest import MakePartition
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.config.listeners import DEFAULT_LISTENER
from warmlog_broker.handlers import items
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import ANONYMOUS_PRINCIPAL, Endpoint, RequestContext, StartedRequest
from warmlog_broker.replica.partition import Partition
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_protocol.errors import UnknownTopicOrPartition

TOPIC_ID = bytes(range(16))
MakeServices = Callable[..., Services]


class FakeTopics:
    """One topic `t`, with the partitions of the test."""

    def __init__(self, partitions: list[Partition]) -> None:
        self._partitions = partitions
        self._topic = SimpleNamespace(
            name="t", topic_id=TOPIC_ID, partitions=partitions, config=partitions[0].config if partitions else None
        )

    def find(self, name: str) -> object:
        return self._topic

    def identified(self, name: str, topic_id: bytes | None) -> object:
        return self._topic

    def partition(self, name: str, index: int, *, to_change: bool = False) -> Partition:
        if index >= len(self._partitions):
            raise UnknownTopicOrPartition(f"no partition {index}")
        return self._partitions[index]


@pytest.fixture
def make_services(make_partition: MakePartition) -> MakeServices:
    """Makes services with a topic `t` of so many partitions; settings have underscores for dots."""

    def make(partition_count: int = 0, **settings: str) -> Services:
        partitions = [make_partition(number, **settings) for number in range(partition_count)]
        services = SimpleNamespace(
            config=BrokerConfig(),
            loop=asyncio.get_running_loop(),
            topics=FakeTopics(partitions),
            counters=Counters(),
            lines=RepeatedLines(logging.getLogger("warmlog_broker")),
            producer_ids=SimpleNamespace(known_below=0, hear=lambda: None),
            between_brokers=None,
        )
        return cast("Services", services)

    return make


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> RequestContext:
    """That of the request that is being handled, a Fetch."""
    context = RequestContext(DEFAULT_LISTENER, "reader", ANONYMOUS_PRINCIPAL, "127.0.0.1:4711")
    started = StartedRequest(Endpoint("Fetch", lambda _context, _message: None), 1)
    monkeypatch.setattr(items, "CURRENT_REQUEST", ContextVar("current request", default=(context, started)))
    return context
