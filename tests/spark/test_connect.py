"""The format over Spark Connect: a client without a JVM, a server in a process of its own, and a real broker."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("grpc", reason="Spark Connect needs more: pip install 'pyspark[connect]'")

import pyspark
from pyspark.errors import PySparkException

from broker_process import BrokerProcess, port_to_keep
from spark.reading import in_utc, read_back, stored_of
from spark.topics import Record, Topics, some_records
from warmlog_protocol.codec.compression import Codec

pytestmark = [
    pytest.mark.slow,  # a server of its own: a minute; `make test-slow` and `make test-spark-matrix` run it
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

START_TIMEOUT_S, STOP_TIMEOUT_S, WAIT_S = 120.0, 30.0, 180.0
SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client's session. The server finds the format by itself."""
    directory = tmp_path_factory.mktemp("connect")
    port = port_to_keep()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": directory,
        "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.system.home={directory}",
    }
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    command = [str(submit), "--master", "local[2,4]", "--class", SERVER_CLASS]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": Path(sys.executable).name,
    }
    with (directory / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "spark-internal"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
    try:
        wait_until_it_listens(server, port, directory / "log")
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()
        yield session
        session.stop()
    finally:
        server.terminate()
        server.wait(STOP_TIMEOUT_S)


def wait_until_it_listens(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        with socket.socket() as candidate:
            if candidate.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def reader_of(remote: Any, broker: BrokerProcess, topic: str) -> Any:
    return remote.read.format("warmlog").option("bootstrap.servers", broker.address).option("subscribe", topic)


def test_every_column_of_every_record_is_read(remote: Any, broker: BrokerProcess, topics: Topics) -> None:
    topics.create("connect-read", partitions=3)
    random = Random(11)
    for number in range(12):
        topics.fill("connect-read", number % 2, some_records(random, 40), codec=Codec(number % 5))
    stored = read_back(broker, "connect-read")
    assert len(stored) == 480
    frame = reader_of(remote, broker, "connect-read").option("includeHeaders", "true").load()
    assert stored_of(in_utc(frame).collect()) == stored
    frame = reader_of(remote, broker, "connect-read").schema("offset bigint, value string").load()
    assert frame.columns == ["offset", "value"]
    assert frame.where("value is null").count() == sum(record.value is None for record in stored)


def test_what_is_written_is_what_the_broker_has(remote: Any, broker: BrokerProcess, topics: Topics) -> None:
    topics.create("connect-write", partitions=2)
    frame = remote.range(1_000).selectExpr("cast(id % 10 as string) as key", "cast(id as string) as value")
    writer = frame.write.format("warmlog").mode("append").option("bootstrap.servers", broker.address)
    writer.option("topic", "connect-write").save()
    found = sorted((int(record.value or b""), record.key) for record in read_back(broker, "connect-write"))
    assert found == [(number, b"%d" % (number % 10)) for number in range(1_000)]


def test_a_stream_is_copied_from_topic_to_topic_over_a_restart(
    remote: Any, broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    topics.create("connect-from", partitions=2), topics.create("connect-to")
    for first in (0, 500):
        numbers = range(first, first + 500)
        topics.fill("connect-from", first // 500, [Record(None, b"%d" % number) for number in numbers])
        reader = remote.readStream.format("warmlog").option("bootstrap.servers", broker.address)
        stream = reader.option("subscribe", "connect-from").option("startingOffsets", "earliest").load()
        writer = stream.select("value").writeStream.format("warmlog").option("bootstrap.servers", broker.address)
        writer = writer.option("topic", "connect-to").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(WAIT_S)
        assert query.exception() is None
    found = sorted(int(record.value or b"") for record in read_back(broker, "connect-to"))
    assert found == list(range(1_000))


def test_what_is_wrong_is_told_to_the_client_in_words(remote: Any, broker: BrokerProcess, topics: Topics) -> None:
    topics.create("connect-words")
    with pytest.raises(PySparkException, match="topic conect-words does not exist; did you mean connect-words"):
        reader_of(remote, broker, "conect-words").load().count()
    with pytest.raises(PySparkException, match="has no option startingofsets: did you mean starting"):
        reader_of(remote, broker, "connect-words").option("startingOfsets", "earliest").load().count()
