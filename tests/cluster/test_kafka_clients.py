"""A client of Kafka at three brokers while one is killed: it finds leaders and coordinators by its own requests."""

import asyncio
import threading
import time
from pathlib import Path

import confluent_kafka
import pytest

from broker_process import port_to_keep
from cluster_processes import ClusterProcesses
from etcd_process import needs_etcd
from warmlog.blocking import Admin

pytestmark = [needs_etcd, pytest.mark.slow]
PATIENCE_S = 60


class Member(threading.Thread):
    """Reads with a group, and commits by itself, until it has so many records as `expected` says."""

    def __init__(self, servers: str) -> None:
        super().__init__()
        self.servers = servers
        self.read: list[list[int]] = [[], [], []]
        self.expected: int | None = None
        self.ends_at_s = time.monotonic() + 3 * PATIENCE_S

    @property
    def count(self) -> int:
        return sum(map(len, self.read))

    def run(self) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
            }
        )
        consumer.subscribe(["orders"])
        while self.count != self.expected and time.monotonic() < self.ends_at_s:
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                self.read[message.partition()].append(int(message.value()))
        consumer.close()


def test_librdkafka_goes_on_while_the_coordinator_of_its_group_is_dead(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path / "c")
    ports = {node: port_to_keep() for node in cluster.brokers}
    cluster.brokers = {
        node: cluster.broker(node, cluster.directory, kafka_listen=f"127.0.0.1:{port}") for node, port in ports.items()
    }
    servers = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    refused: list[object] = []
    with cluster:
        with Admin(cluster.addresses) as admin:
            admin.create_topic("orders", partitions=3)
        member = Member(servers)
        member.start()
        producer = confluent_kafka.Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        sent = 0

        def send_until_read(count: int) -> None:
            nonlocal sent
            deadline = time.monotonic() + PATIENCE_S
            while member.count < count and time.monotonic() < deadline:
                producer.produce(
                    "orders",
                    b"%d" % sent,
                    partition=sent % 3,
                    on_delivery=lambda error, _: refused.append(error) if error else None,
                )
                sent += 1
                producer.poll(0.01)

        send_until_read(100)
        dead = asyncio.run(cluster.coordinator_of("readers"))
        dead.kill()
        send_until_read(member.count + 200)
        dead.start()
        send_until_read(member.count + 100)
        assert producer.flush(PATIENCE_S) == 0
        member.expected = sent
        member.join()
    assert refused == []
    assert member.read == [list(range(number, sent, 3)) for number in range(3)]
