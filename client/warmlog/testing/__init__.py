"""A broker for tests, inside the process that runs them.

::

    with warmlog.testing.embedded(retention_ms="7d") as broker:
        admin = warmlog.Admin(broker.address)

The module `pytest_warmlog` has pytest's fixtures.
"""

import gc

_collects = gc.isenabled()
gc.disable()  # what is imported stays, and collecting takes a sixth of the time
try:
    from warmlog.testing.embedded_broker import EmbeddedBroker, embedded
finally:
    if _collects:
        gc.enable()

__all__ = ["EmbeddedBroker", "embedded"]
