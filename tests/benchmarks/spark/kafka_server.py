"""Apache Kafka on this machine, as a process: a node with KRaft, its own defaults, started and stopped."""

import base64
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from broker_process import port_to_keep

HEAP = "-Xms1g -Xmx1g"
"""As bin/kafka-server-start.sh sets it."""
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0

PROPERTIES = """\
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={data_dir}
offsets.topic.replication.factor=1
auto.create.topics.enable=false
"""


class KafkaFailed(Exception):
    """Kafka did not start; the text has what it said."""


class KafkaServer:
    """`kafka.Kafka` from the jars that tools/kafka-jars fetches; a context manager that starts and stops it.

    Kafka does not flush what it acknowledges: that is its default, and how people run it.
    """

    def __init__(self, jars: Path, directory: Path, properties: str = "") -> None:
        self.node = 1
        self.controller_port = port_to_keep()
        self.voters: Sequence[KafkaServer] = (self,)
        """All nodes of its cluster, which has this id."""
        self.cluster_id = base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()
        self._jars = jars
        self._directory = directory
        self._properties = PROPERTIES + properties
        self._log = directory / "kafka.log"
        self._port = port_to_keep()
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start it; it listens once a majority of its cluster's nodes is there."""
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._directory / "server.properties"
        voters = ",".join(f"{each.node}@127.0.0.1:{each.controller_port}" for each in self.voters)
        values = {"node": self.node, "voters": voters, "port": self._port, "controller_port": self.controller_port}
        properties.write_text(self._properties.format(data_dir=self.data_dir, **values))
        storage = self.java("kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}", "-c", properties)
        if storage.wait():
            raise KafkaFailed(self._log.read_text())
        self._process = self.java("kafka.Kafka", properties)

    def __enter__(self) -> Self:
        self.launch()
        try:
            self.wait_until_it_listens()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """HOST:PORT for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def data_dir(self) -> Path:
        return self._directory / "data"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def java(self, main_class: str, *arguments: object) -> "subprocess.Popen[bytes]":
        """A process of Java with Kafka's classes, to be stopped by whoever asked for it. Its output goes to a file."""
        java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
        command = [str(java), *HEAP.split(), "-cp", f"{self._jars}/*", main_class, *map(str, arguments)]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the benchmark, which then stops this
            )

    def wait_until_it_listens(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            if self._process.poll() is not None:
                raise KafkaFailed(self._log.read_text())
            with socket.socket() as candidate:
                if candidate.connect_ex(("127.0.0.1", self._port)) == 0:
                    return
            if time.monotonic() > deadline:
                raise KafkaFailed(f"not ready after {START_TIMEOUT_S} s\n{self._log.read_text()}")
            time.sleep(0.1)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it as an operator does; does nothing if it is stopped."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
