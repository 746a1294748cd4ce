"""A client that does nothing wrong, beside those who do: its records must all be there, in order."""

import threading
import time
from typing import Any

from kafka_client import KafkaClient, rows
from warmlog_protocol.batch import iter_batches
from wire_client import WireClient, batch_of

PAUSE_S = 0.01


class Honest(threading.Thread):
    """Produces one record after another to `topic`, which is its own, and reads each back."""

    client: type[Any] = WireClient

    def __init__(self, address: str, topic: str) -> None:
        super().__init__(name="honest", daemon=True)
        self.count = 0
        self.durations_s: list[float] = []
        """Of each record's way in and out."""
        self.error: BaseException | None = None
        self._address = address
        self._topic = topic
        self._must_stop = threading.Event()

    def __str__(self) -> str:
        durations = sorted(self.durations_s) or [0.0]
        p99_ms, longest_ms = durations[int(len(durations) * 0.99)] * 1000, durations[-1] * 1000
        return f"{self.count} honest records, p99 {p99_ms:.0f} ms, the slowest {longest_ms:.0f} ms"

    def run(self) -> None:
        try:
            with self.client(self._address) as client:
                while not self._must_stop.wait(PAUSE_S):
                    begin_s = time.monotonic()
                    self._produce_and_fetch(client)
                    self.durations_s.append(time.monotonic() - begin_s)
                    self.count += 1
        except BaseException as error:
            self.error = error

    def stop(self) -> None:
        self._must_stop.set()
        self.join(40)

    def _produce_and_fetch(self, client: Any) -> None:
        value = b"%d" % self.count
        placed = client.produce(self._topic, batch_of([value]))
        assert placed.base_offset == self.count
        _, payload = client.fetch(self._topic, self.count)
        assert [batch.values() for batch in iter_batches(payload)] == [[value]]


class HonestOfKafka(Honest):
    """The same by Kafka's protocol."""

    client = KafkaClient

    def _produce_and_fetch(self, client: Any) -> None:
        value = b"%d" % self.count
        placed = client.produce(self._topic, rows(value))
        assert (placed.error_code, placed.base_offset) == (0, self.count)
        _, records = client.fetch(self._topic, self.count)
        assert [batch.values() for batch in iter_batches(records)] == [[value]]
