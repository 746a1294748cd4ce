"""The admin port of a broker, from the beginning of its start to the end of its stop.

Imported only if `admin.listen` is set, as the library for metrics takes a while to import.
"""

from prometheus_client.core import Metric

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.inspection import lagging_replicas, problems_of
from warmlog_broker.metrics.admin_server import AdminServer, Health
from warmlog_broker.metrics.families import BrokerMetrics, starting
from warmlog_broker.server.listening import bind


class AdminPort:
    """The broker tells it how its start and its stop go on."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Bind `address`. Raises CannotListen."""
        self.opened = self.to_open = 0
        """Partitions opened by a start, and all of them, as last reported."""
        self.is_stopping = False
        self._services: Services | None = None
        self._metrics: BrokerMetrics | None = None
        listeners = bind(*address)
        self.port: int = listeners[0].getsockname()[1]
        self.server = AdminServer(listeners, self)

    def serve(self, services: Services, metrics: BrokerMetrics) -> None:
        """The broker serves clients from now on."""
        self._services, self._metrics = services, metrics

    async def collect(self) -> list[Metric]:
        if self._metrics is None:
            return starting(self.opened, self.to_open)
        return await self._metrics.collect()

    async def health(self) -> Health:
        """It is ready while clients can connect and at least one data directory is online."""
        services = self._services
        if services is None:
            return Health(False, [f"starting: {self.opened} of {self.to_open} partitions are checked"])
        if self.is_stopping:
            return Health(False, ["stopping"])
        is_ready = not services.directories.all_have_failed.is_set()
        return Health(is_ready, problems_of(services), not lagging_replicas(services))
