"""Kafka's own connector at the same work as our benchmarks: `kafka.spark.count` beside `spark.count`, and so on."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.spark.kafka_server import KafkaServer
from benchmarks.spark.reading import timed, write_parquet
from benchmarks.spark.session import spark_processes
from benchmarks.spark.streaming import RECORDS_PER_S, watch
from benchmarks.spark.writing import CachedRows

PEER = "kafka."
"""What the name of ours has before it here."""
TOPIC = "bench-spark"
LARGE_BATCHES = {"kafka.batch.size": "524288", "kafka.linger.ms": "20"}
"""As our writer makes them: Kafka's connector both writes and reads these faster than those of Kafka's defaults."""
SEVEN_COLUMNS, THREE_COLUMNS = ("*",), ("key", "value", "timestamp")

_numbers = itertools.count()


class KafkaBench:
    """The benchmarks of Kafka's connector against one server."""

    def __init__(self, session: Any, server: KafkaServer) -> None:
        self._session = session
        self._server = server

    def fill(self, records: int, partitions: int, key_bytes: int) -> None:
        """The topic that is read: values, keys and partitions as ours."""
        self._create(TOPIC, partitions)
        value = f"lpad(cast(id % 100000 as string), {VALUE_BYTES}, '0')"
        frame = self._session.range(0, records, 1, partitions).selectExpr(
            f"{value} as value", f"right({value}, {key_bytes}) as key", "spark_partition_id() as partition"
        )
        self._save(frame, TOPIC)

    def benchmarks(
        self, records: int, rows: CachedRows, trigger_s: float, directory: Path
    ) -> dict[str, Callable[[], Run]]:
        """By name, in the order of a round."""
        return {
            "kafka.spark.count": partial(self._count, records, ("value",)),
            "kafka.spark.sum_length": partial(self._sum_length, records),
            "kafka.spark.seven_columns": partial(self._count, records, SEVEN_COLUMNS),
            "kafka.spark.parquet": partial(self._parquet, records, THREE_COLUMNS, directory / "parquet"),
            "kafka.spark.parquet_seven": partial(self._parquet, records, SEVEN_COLUMNS, directory / "parquet"),
            "kafka.spark.write": partial(self._write, rows),
            "kafka.spark.trigger_ms": partial(self._trigger_ms, trigger_s, directory),
        }

    def _load(self, columns: tuple[str, ...]) -> Any:
        reader = self._session.read.format("kafka").option("kafka.bootstrap.servers", self._server.address)
        return reader.option("subscribe", TOPIC).load().select(*columns)

    def _count(self, records: int, columns: tuple[str, ...]) -> Run:
        """count(). The connector makes all seven columns whatever is selected."""
        return timed(records, lambda: self._load(columns).count())

    def _sum_length(self, records: int) -> Run:
        def action() -> int:
            return int(self._load(THREE_COLUMNS).selectExpr("sum(length(value))").first()[0]) // VALUE_BYTES

        return timed(records, action)

    def _parquet(self, records: int, columns: tuple[str, ...], path: Path) -> Run:
        return write_parquet(self._session, lambda: self._load(columns), records, path)

    def _write(self, rows: CachedRows) -> Run:
        """The same rows as ours, to a topic of their own. Kafka acknowledges before they are on disk."""
        frame = rows.frame(with_keys=False)
        topic = self._create(f"kafka-write-{next(_numbers)}", frame.rdd.getNumPartitions())

        def action() -> int:
            self._save(frame, topic)
            return rows.records

        return timed(rows.records, action)

    def _trigger_ms(self, seconds: float, directory: Path) -> Run:
        """Micro-batches one after another, to no sink, while RECORDS_PER_S come from Kafka's own performance tool."""
        topic = self._create(f"kafka-trigger-{next(_numbers)}", 2)
        before = spark_processes()
        reader = self._session.readStream.format("kafka").option("kafka.bootstrap.servers", self._server.address)
        writer = reader.option("subscribe", topic).load().writeStream.format("noop")
        query = writer.option("checkpointLocation", str(directory / topic)).trigger(processingTime="0 seconds").start()
        producer = self._server.java(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--throughput", RECORDS_PER_S, "--record-size", VALUE_BYTES),
            *("--num-records", round(RECORDS_PER_S * seconds * 10)),  # more than there is time for
            *("--producer-props", f"bootstrap.servers={self._server.address}"),
        )
        try:
            return watch(query, seconds, before)
        finally:
            producer.terminate()
            producer.wait()

    def _save(self, frame: Any, topic: str) -> None:
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self._server.address)
        writer.options(**LARGE_BATCHES).option("topic", topic).save()

    def _create(self, topic: str, partitions: int) -> str:
        """Create a topic with the client that Spark's JVM has for the connector; returns its name."""
        java = self._session._jvm.java
        clients = self._session._jvm.org.apache.kafka.clients.admin
        properties = java.util.HashMap()
        properties["bootstrap.servers"] = self._server.address
        admin = clients.AdminClient.create(properties)
        try:
            topics = java.util.ArrayList()
            topics.add(clients.NewTopic(topic, partitions, 1))
            admin.createTopics(topics).all().get()
        finally:
            admin.close()
        return topic
