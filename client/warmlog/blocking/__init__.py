"""The clients for programs without an event loop: scripts, notebooks, Flask, Airflow.

::

    with warmlog.blocking.Producer("127.0.0.1:7400") as producer:
        producer.send("flights", b"EWR-IAH", key=b"UA").result()

    with warmlog.blocking.Consumer("127.0.0.1:7400", topics=["flights"]) as consumer:
        for batch in consumer.batches(until="latest"):
            ...

They take the options of the asyncio clients and have their methods, without `await`. Each runs its asyncio client in an
event loop in a thread of its own. Threads may share a producer or an Admin; a consumer has one reader at a time. A
client belongs to the process in which it was started: after a fork, create one in the child.
"""

from warmlog.blocking.admin import Admin
from warmlog.blocking.consumer import Consumer
from warmlog.blocking.producer import DeliveryFuture, Producer

__all__ = ["Admin", "Consumer", "DeliveryFuture", "Producer"]
