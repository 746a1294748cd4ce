"""A broker for tests, inside the process that runs them.

::

    with warmlog.testing.embedded(retention_ms="7d") as broker:
        admin = warmlog.Admin(broker.address)

The module `pytest_warmlog` has pytest's fixtures.
"""

from warmlog.testing.embedded_broker import EmbeddedBroker, embedded

__all__ = ["EmbeddedBroker", "embedded"]
