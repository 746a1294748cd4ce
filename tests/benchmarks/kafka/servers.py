"""What Kafka's perf tools are run against, each as a process: warmlog, Kafka, and a program that answers unseen."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.spark.kafka_server import KafkaServer
from broker_process import BrokerProcess, port_to_keep
from kafka_jars import JARS
from waiting import wait_until

FLUSHED = "log.flush.interval.messages=1\n"
"""Kafka's setting with which it, too, answers after an fsync."""


class Served(NamedTuple):
    """A server: where clients of Kafka connect, its process, and where warmlog's own clients connect if they can."""

    address: str
    pid: int
    own_address: str = ""


@contextmanager
def warmlog(directory: Path) -> Iterator[Served]:
    address = f"127.0.0.1:{port_to_keep()}"
    with BrokerProcess(directory / "data", kafka_listen=address) as broker:
        yield Served(address, broker.pid, broker.address)


@contextmanager
def kafka(directory: Path) -> Iterator[Served]:
    with KafkaServer(JARS, directory / "kafka", FLUSHED) as server:
        yield Served(server.address, server.pid)


@contextmanager
def unseen(_directory: Path) -> Iterator[Served]:
    port = port_to_keep()
    with subprocess.Popen([sys.executable, "-m", "benchmarks.kafka.unseen", str(port)]) as process:
        try:
            wait_until(lambda: _listens(port))
            yield Served(f"127.0.0.1:{port}", process.pid)
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as candidate:
        return candidate.connect_ex(("127.0.0.1", port)) == 0
