"""The broker: a service that keeps durable logs, one per topic-partition, and lets clients produce and fetch.

`serve` runs one as a process, `start_broker` inside an event loop; both take a `BrokerConfig`.
"""

from warmlog_broker.config import BrokerConfig
from warmlog_broker.server import Broker, start_broker
from warmlog_broker.service import serve
from warmlog_broker.settings_sources import load_settings

__all__ = ["Broker", "BrokerConfig", "load_settings", "serve", "start_broker"]
