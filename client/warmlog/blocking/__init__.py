"""The client without an event loop: connections and metadata on plain sockets."""

from warmlog.blocking.cluster import BlockingCluster
from warmlog.blocking.connection import BlockingConnection

__all__ = ["BlockingCluster", "BlockingConnection"]
