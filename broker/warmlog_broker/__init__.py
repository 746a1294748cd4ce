"""The broker: a service that keeps a durable log for each topic partition, for clients to produce to and fetch from.

`serve` runs one as a process, `start_broker` inside an event loop; both take a `BrokerConfig`. The names load on first
use: tools that only read log files import neither the server nor uvloop.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from warmlog_broker.config.broker_config import BrokerConfig
    from warmlog_broker.config.sources import load_settings
    from warmlog_broker.server.broker import Broker, start_broker
    from warmlog_broker.server.process import serve

__all__ = ["Broker", "BrokerConfig", "load_settings", "serve", "start_broker"]

_HOMES = {
    "Broker": "server.broker",
    "BrokerConfig": "config.broker_config",
    "load_settings": "config.sources",
    "serve": "server.process",
    "start_broker": "server.broker",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
