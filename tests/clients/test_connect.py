"""Kafka Connect: standalone, and two distributed workers of which one is killed; a file source that is exactly once."""

import json
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from broker_process import port_to_keep
from clients.java import java, running
from clients.served import Served
from waiting import wait_until

CLIENT = "Kafka Connect 4.1.0"
LINES = 400
TIMEOUT_S = 120.0
FILE = "org.apache.kafka.connect.file.FileStream"

WORKER = """\
bootstrap.servers={address}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.storage.StringConverter
offset.flush.interval.ms=500
listeners=http://127.0.0.1:{port}
plugin.discovery=only_scan
"""
STANDALONE = WORKER + "offset.storage.file.filename={directory}/offsets\n"
DISTRIBUTED = (
    WORKER
    + """\
group.id=workers
config.storage.topic=connect-configs
config.storage.replication.factor=1
offset.storage.topic=connect-offsets
offset.storage.replication.factor=1
offset.storage.partitions=2
status.storage.topic=connect-status
status.storage.replication.factor=1
status.storage.partitions=2
session.timeout.ms=6000
scheduled.rebalance.max.delay.ms=1000
exactly.once.source.support=enabled
"""
)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def write_lines(path: Path, first: int, count: int) -> None:
    with path.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(first, first + count))


def numbers(lines: list[str]) -> list[int]:
    return [int(line.split()[1]) for line in lines]


def has_lines(path: Path, count: int) -> Callable[[], bool]:
    return lambda: path.is_file() and len(set(path.read_text().splitlines())) >= count


def test_standalone_goes_on_where_it_stopped(served: Served, tmp_path: Path) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    worker = STANDALONE.format(address=served.address, port=port_to_keep(), directory=tmp_path)
    reads = f"name=reads\nconnector.class={FILE}SourceConnector\nfile={source}\ntopic=standalone\n"
    writes = f"name=writes\nconnector.class={FILE}SinkConnector\nfile={sink}\ntopics=standalone\n"
    files = [
        written(tmp_path / name, text) for name, text in {"worker": worker, "reads": reads, "writes": writes}.items()
    ]
    command = java("connect", "org.apache.kafka.connect.cli.ConnectStandalone", *files)
    for half in range(2):
        write_lines(source, half * LINES, LINES)
        with running(command, tmp_path / "log") as process:
            wait_until(has_lines(sink, (half + 1) * LINES), TIMEOUT_S)
            process.terminate()
            process.wait(TIMEOUT_S)
    assert numbers(sink.read_text().splitlines()) == list(range(2 * LINES))


class Workers:
    """Two workers of one cluster of Connect."""

    def __init__(self, served: Served, directory: Path) -> None:
        self._directory = directory
        self.ports = [port_to_keep(), port_to_keep()]
        self._files = [
            written(directory / f"worker-{port}", DISTRIBUTED.format(address=served.address, port=port))
            for port in self.ports
        ]

    def started(self, which: int) -> AbstractContextManager["subprocess.Popen[bytes]"]:
        command = java("connect", "org.apache.kafka.connect.cli.ConnectDistributed", self._files[which])
        return running(command, self._directory / f"log-{which}")

    def ask(self, which: int, path: str, body: object = None) -> Any:
        """Ask a worker; None if it cannot say it yet."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[which]}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method="GET" if body is None else "PUT",
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except OSError:
            return None


def test_distributed_workers_of_which_one_is_killed_are_exactly_once(served: Served, tmp_path: Path) -> None:
    source, sink = tmp_path / "source", tmp_path / "sink"
    write_lines(source, 0, LINES)
    workers = Workers(served, tmp_path)
    with workers.started(0) as first, workers.started(1):
        reads = {
            "connector.class": f"{FILE}SourceConnector",
            "file": str(source),
            "topic": "distributed",
            "tasks.max": "1",
        }
        writes = {
            "connector.class": f"{FILE}SinkConnector", "file": str(sink), "topics": "distributed", "tasks.max": "1",
            "consumer.override.isolation.level": "read_committed",
        }  # fmt: skip
        for name, config in {"reads": reads, "writes": writes}.items():
            wait_until(lambda name=name, config=config: workers.ask(0, f"/connectors/{name}/config", config), TIMEOUT_S)
        wait_until(has_lines(sink, LINES), TIMEOUT_S)
        first.kill()
        write_lines(source, LINES, LINES)
        wait_until(has_lines(sink, 2 * LINES), TIMEOUT_S)
        assert {each["state"] for each in workers.ask(1, "/connectors/reads/status")["tasks"]} == {"RUNNING"}
    copied = [(each.value or b"").decode() for each in served.read("distributed")]
    assert numbers(copied) == list(range(2 * LINES))
    assert set(numbers(sink.read_text().splitlines())) == set(range(2 * LINES))
