"""What a Spark task does to write: Arrow batches from the JVM become record batches of the topic's partitions.

All of an attempt goes through one idempotent producer with an id of its own, so that a retry after a lost answer
appends nothing twice. The attempt is done when everything is acknowledged, which means on disk.

What is to be known of a topic before its first row is asked over a connection of its own, and again, while the broker
is away, for as long as the producer would try: the attempt must not end and be run again for a question.
"""

import random
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from warmlog.arrow_write.batching import TopicBatches
from warmlog.arrow_write.producer import ArrowBatch, BlockingProducer
from warmlog.arrow_write.rows import ArrowRows, with_offsets
from warmlog.blocking.cluster import BlockingCluster
from warmlog.cluster.options import ConnectionOptions
from warmlog.errors import ApiError, BrokerUnavailable, InvalidTopic, UnknownTopicOrPartition
from warmlog.ranges.retrying import retrying
from warmlog.spark.options.write_options import WriteOptions

CONNECTION = ConnectionOptions(client_name="warmlog-spark")
CHECK_TIMEOUT_MS = 10_000
"""How long the driver asks for the topic: a restart of the broker lasts so long, and a wrong address is told soon."""


class TaskWritten(NamedTuple):
    """What one attempt wrote, under which producer id and epoch (-1 when it had no rows)."""

    records: int
    producer_id: int
    producer_epoch: int


def write_batches(
    batches: "Iterator[pa.RecordBatch]", columns: Mapping[str, int], options: WriteOptions
) -> TaskWritten:
    """Writes all rows of `batches`, whose columns lie where `columns` says; returns when they are on disk."""
    with BlockingCluster(options.bootstrap, CONNECTION) as cluster:
        producer = BlockingProducer(
            cluster, codec=options.codec, delivery_timeout_ms=options.delivery_timeout_ms, options=CONNECTION
        )
        with producer:
            task = _Task(producer, columns, options)
            for batch in batches:
                task.write(batch)
            task.finish()
            return TaskWritten(producer.records, *producer.producer)


class _Task:
    def __init__(self, producer: BlockingProducer, columns: Mapping[str, int], options: WriteOptions) -> None:
        self._producer = producer
        self._columns = columns
        self._options = options
        self._topics: dict[str, TopicBatches] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Take in the rows of one Arrow batch and send what is full."""
        if not batch.num_rows:
            return
        found = {name: with_offsets(batch.column(index)) for name, index in self._columns.items()}
        rows = ArrowRows(found["value"], found.get("key"), found.get("headers"), found.get("timestamp"))
        chosen = found.get("partition")
        if self._options.topic is not None:
            self._add(self._options.topic, rows, chosen)
            return
        for topic, numbers in _rows_by_topic(found["topic"]):
            own = None if chosen is None or numbers is None else chosen.take(numbers)
            self._add(topic, rows if numbers is None else rows.take(numbers), chosen if numbers is None else own)

    def finish(self) -> None:
        """Send the rest; returns when everything is acknowledged."""
        for topic, batches in self._topics.items():
            self._send(topic, batches.flush())
        self._producer.flush()

    def _add(self, topic: str, rows: ArrowRows, chosen: pa.Array | None) -> None:
        batches = self._topics.get(topic)
        if batches is None:
            batches = self._topics[topic] = self._learn(topic)
        self._send(topic, batches.add(rows, chosen))

    def _send(self, topic: str, made: Iterator[Any]) -> None:
        now_ms = time.time_ns() // 1_000_000
        for batch in made:
            self._producer.send(ArrowBatch(topic, batch.partition, batch.spans, batch.size_bytes, now_ms))

    def _learn(self, topic: str) -> TopicBatches:
        found = _ask(topic, self._options, self._options.delivery_timeout_ms)
        return TopicBatches(
            topic,
            found.partitions,
            limit_bytes=self._options.batch_bytes,
            max_message_bytes=found.max_message_bytes,
            first_sticky=random.randrange(1 << 16),  # noqa: S311 - so that tasks do not march in step
        )


def _rows_by_topic(topics: pa.Array) -> Iterator[tuple[str, pa.Array | None]]:
    """Each topic with the numbers of its rows; None stands for all of them."""
    if topics.null_count:
        raise InvalidTopic("a row has null in the column topic: give the option topic, or a topic to each row")
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], None
        return
    for code, name in enumerate(names):
        yield name, pc.indices_nonzero(pc.equal(encoded.indices, code))


def check_topic(options: WriteOptions) -> None:
    """UnknownTopicOrPartition when the option topic names one that does not exist.

    BrokerUnavailable when no broker answers for CHECK_TIMEOUT_MS, or delivery.timeout.ms where that is shorter.
    """
    if options.topic is not None:
        _ask(options.topic, options, min(CHECK_TIMEOUT_MS, options.delivery_timeout_ms))


class _Topic(NamedTuple):
    partitions: int
    max_message_bytes: int


def _ask(topic: str, options: WriteOptions, timeout_ms: int) -> _Topic:
    """What the broker says of `topic`; asked again on a new connection, with growing pauses, until `timeout_ms`."""

    def question() -> _Topic:
        with BlockingCluster(options.bootstrap, CONNECTION) as cluster:
            partitions = len(cluster.topics([topic])[topic].partitions)
            return _Topic(partitions, cluster.max_message_bytes(topic))

    places = ", ".join(options.bootstrap)
    try:
        return retrying(
            question,
            retries=0,
            interval_ms=CONNECTION.retry_backoff_max_ms,
            patience_s=timeout_ms / 1000,
            first_interval_ms=CONNECTION.retry_backoff_ms,
        )
    except UnknownTopicOrPartition:
        raise _unknown_topic(topic) from None
    except BrokerUnavailable as error:
        raise BrokerUnavailable(f"topic {topic}: {error}; is the broker running at {places}?") from error
    except ApiError as error:
        raise type(error)(f"topic {topic}, asked of {places}: {error}") from error


def _unknown_topic(topic: str) -> UnknownTopicOrPartition:
    return UnknownTopicOrPartition(f"topic {topic} does not exist: create it first (warmlog topic create {topic})")
