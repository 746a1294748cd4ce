"""A broker for clients of Kafka, as a process, and what warmlog's own client finds in it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from broker_process import BrokerProcess, port_to_keep
from warmlog import Record
from warmlog.blocking import Admin, Consumer, Producer

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


class Served(NamedTuple):
    """A running broker: `address` is for clients of Kafka."""

    broker: BrokerProcess
    address: str

    def create(self, topic: str, **more: object) -> None:
        with Admin(self.broker.address) as admin:
            admin.create_topic(topic, **more)  # type: ignore[arg-type]

    def delete(self, topic: str) -> None:
        with Admin(self.broker.address) as admin:
            admin.delete_topic(topic)

    def write(self, topic: str, *values: bytes | None, compression: str = "none") -> None:
        """Append columns, as warmlog's producer does; the key of each is its value."""
        with Producer(self.broker.address, compression=compression) as producer:
            for value in values:
                producer.send(topic, value, key=value)
            producer.flush()

    def read(self, topic: str) -> list[Record]:
        """Every record that is there, of committed transactions alone."""
        with Consumer(self.broker.address, topics=[topic], isolation="read_committed") as consumer:
            return list(consumer.records(until="latest"))


@contextmanager
def serve(directory: Path, settings: Mapping[str, object]) -> Iterator[Served]:
    address = f"127.0.0.1:{port_to_keep()}"
    given = {"kafka_listen": address, "auto_create_topics_enable": True, **settings}
    with BrokerProcess(directory / "data", **given) as broker:
        yield Served(broker, address)
