"""A job for Kafka is one for warmlog once the format's name is changed: run by spark-submit, with the same results."""

import os
from pathlib import Path
from typing import Any

import pyspark
import pytest

from benchmarks.spark.kafka_server import KafkaServer
from broker_process import BrokerProcess
from spark.ported_job import TIMEOUT_S, submit
from spark.topics import Topics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(pyspark.__version__ < "4.2", reason="before Spark 4.2, availableNow is one micro-batch"),
]

BUILD = Path(__file__).parents[2] / "build"
KAFKA_JARS = Path(os.environ.get("KAFKA_JARS") or BUILD / "kafka-jars")
CONNECTOR_JARS = Path(os.environ.get("CONNECTOR_JARS") or BUILD / "kafka-connector-jars")


def run_here(broker: BrokerProcess, topics: Topics, directory: Path) -> dict[str, Any]:
    topics.create("orders", partitions=2), topics.create("totals")
    try:
        return submit("warmlog", broker.address, directory)
    finally:
        topics.delete("orders"), topics.delete("totals")


def test_a_job_for_kafka_runs_with_the_name_of_the_format_changed(
    broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    found = run_here(broker, topics, tmp_path / "here")
    assert found["schema"] == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    assert found["sums"] == {f"customer-{n}": sum(number * 1.5 for number in range(n, 1_000, 7)) for n in range(7)}
    assert found["headers"] == [["source", "web"]]
    assert (found["offsets"], found["types"], found["none"]) == (1_000, [0], 0)
    assert found["first"] == [[0, offset] for offset in range(5)] + [[1, offset] for offset in range(7)]
    assert sum(found["batches"]) == found["written"][0] == 1_000
    assert found["checkpoint"] == ["0", "1"]
    assert len(found["batches"]) == 4
    assert max(found["batches"]) <= 300


@pytest.mark.skipif(
    not list(KAFKA_JARS.glob("kafka-tools-*.jar")) or not list(CONNECTOR_JARS.glob("*.jar")),
    reason="no jars of Kafka and its connector: make test-kafka",
)
def test_the_results_are_those_of_kafka_with_its_own_connector(
    broker: BrokerProcess, topics: Topics, tmp_path: Path
) -> None:
    with KafkaServer(KAFKA_JARS, tmp_path / "kafka") as kafka:
        for topic, partitions in (("orders", 2), ("totals", 1)):
            create = ("--create", "--topic", topic, "--partitions", partitions)
            made = kafka.java("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.address, *create)
            assert made.wait(TIMEOUT_S) == 0
        class_path = {"spark.driver.extraClassPath": f"{CONNECTOR_JARS}/*"}
        expected = submit("kafka", kafka.address, tmp_path / "there", **class_path)
    found = run_here(broker, topics, tmp_path / "here")
    assert found == expected
