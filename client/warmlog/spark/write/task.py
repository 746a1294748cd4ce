"""Writing in a Spark task: Arrow batches from the JVM become record batches of the topic's partitions.

An attempt uses one idempotent producer with an id of its own, so that a retry after a lost response appends nothing
twice. The attempt is done when everything is acknowledged, and so on disk. In a transaction its producer is a member of
the write's job, and what it has written counts once the driver commits it.

Before the first row of a topic its metadata is requested over another connection, and while the broker is away that is
retried for as long as the producer would retry: a missing response should not end the attempt.
"""

import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from warmlog.arrow_write.batching import TopicBatches
from warmlog.arrow_write.job import Job, Membership
from warmlog.arrow_write.producer import ArrowBatch, BlockingProducer
from warmlog.arrow_write.rows import ArrowRows, with_offsets
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    InconsistentTopicId,
    InvalidTopic,
    OutOfOrderSequence,
    UnknownTopicOrPartition,
)
from warmlog.producer.producer_batch import NO_PRODUCER
from warmlog.sockets.cluster import BlockingCluster
from warmlog.sockets.retrying import retrying
from warmlog.spark.options.write_options import WriteOptions
from warmlog_protocol.messages import JobMember

CHECK_TIMEOUT_MS = 10_000
"""How long the driver retries to look up the topic: enough for a restart of the broker, and not long for a wrong
address."""

_log = logging.getLogger("warmlog.spark")


class TaskWritten(NamedTuple):
    """What one attempt wrote, and its producer id and epoch (-1 if it had no rows)."""

    records: int
    producer_id: int
    producer_epoch: int


def write_batches(
    batches: "Iterator[pa.RecordBatch]", columns: Mapping[str, int], options: WriteOptions, job: Job | None = None
) -> TaskWritten:
    """Write all rows of `batches`, whose columns have the indexes in `columns`; return when they are on disk.

    With `job`, as a member of it: the first row joins. If the version is committed, the rows are only counted.
    """
    with BlockingCluster(options.bootstrap, options.connection) as cluster, ExitStack() as stack:
        membership = None
        if job is not None:
            membership = stack.enter_context(Membership(cluster, job, patience_ms=options.delivery_timeout_ms))
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return TaskWritten(0, *NO_PRODUCER)
        batches = chain([first], batches)
        member = None if membership is None else membership.join()
        if membership is not None and member is None:
            return TaskWritten(sum(batch.num_rows for batch in batches), *NO_PRODUCER)
        producer = stack.enter_context(_producer(cluster, options, job, member))
        task = _Task(producer, columns, options)
        try:
            for batch in batches:
                task.write(batch)
            task.finish()
        except OutOfOrderSequence:
            task.check_topics(cluster)  # a recreated topic refuses a transaction whose beginning it does not have
            raise
        if membership is not None:
            cluster.patiently(lambda: task.check_topics(cluster), options.delivery_timeout_ms)
            membership.confirm()
        if cluster.throttled_ms:
            _log.info("brokers have delayed writing by %.1f s because of quotas", cluster.throttled_ms / 1000)
        return TaskWritten(producer.records, *producer.producer)


def _producer(
    cluster: BlockingCluster, options: WriteOptions, job: Job | None, member: JobMember | None
) -> BlockingProducer:
    return BlockingProducer(
        cluster,
        codec=options.codec,
        delivery_timeout_ms=options.delivery_timeout_ms,
        options=options.connection,
        transactional_id=None if job is None else job.transactional_id,
        producer=NO_PRODUCER if member is None else (member.producer_id, member.producer_epoch),
    )


class _Task:
    def __init__(self, producer: BlockingProducer, columns: Mapping[str, int], options: WriteOptions) -> None:
        self._producer = producer
        self._columns = columns
        self._options = options
        self._topics: dict[str, TopicBatches] = {}
        self._ids: dict[str, bytes] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of one Arrow batch, and send the batches that are full."""
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
        """Send the rest; return when everything is acknowledged."""
        for topic, batches in self._topics.items():
            self._send(topic, batches.flush())
        self._producer.flush()

    def check_topics(self, cluster: BlockingCluster) -> None:
        """Raise InconsistentTopicId if a topic was recreated since its first row: earlier rows are gone with it."""
        for topic, found in cluster.topics(list(self._ids)).items():
            if found.topic_id != self._ids[topic]:
                raise InconsistentTopicId(f"topic {topic} was deleted and recreated while a task wrote it")

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
        self._ids[topic] = found.topic_id
        return TopicBatches(
            topic,
            found.partitions,
            limit_bytes=self._options.batch_bytes,
            max_message_bytes=found.max_message_bytes,
            first_sticky=random.randrange(1 << 16),  # noqa: S311 - so that tasks begin with different partitions
        )


def _rows_by_topic(topics: pa.Array) -> Iterator[tuple[str, pa.Array | None]]:
    """Yield each topic with the indexes of its rows; None stands for all of them."""
    if topics.null_count:
        raise InvalidTopic("a row has null in the column topic: give the option topic, or a topic for each row")
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], None
        return
    for code, name in enumerate(names):
        yield name, pc.indices_nonzero(pc.equal(encoded.indices, code))


def check_topic(options: WriteOptions) -> None:
    """Raise UnknownTopicOrPartition if the topic of the option `topic` does not exist.

    Raises BrokerUnavailable if no broker responds within CHECK_TIMEOUT_MS, or delivery.timeout.ms if that is shorter.
    """
    if options.topic is not None:
        _ask(options.topic, options, min(CHECK_TIMEOUT_MS, options.delivery_timeout_ms))


class _Topic(NamedTuple):
    topic_id: bytes
    partitions: int
    max_message_bytes: int


def _ask(topic: str, options: WriteOptions, timeout_ms: int) -> _Topic:
    """Look up `topic`; retry on a new connection, with growing pauses, until `timeout_ms`."""

    def question() -> _Topic:
        with BlockingCluster(options.bootstrap, options.connection) as cluster:
            found = cluster.topics([topic])[topic]
            return _Topic(found.topic_id, len(found.partitions), cluster.max_message_bytes(topic))

    brokers = ", ".join(options.bootstrap)
    try:
        return retrying(
            question,
            retries=0,
            interval_ms=options.connection.retry_backoff_max_ms,
            patience_s=timeout_ms / 1000,
            first_interval_ms=options.connection.retry_backoff_ms,
        )
    except UnknownTopicOrPartition:
        raise UnknownTopicOrPartition(
            f"topic {topic} does not exist: create it first (warmlog topic create {topic})"
        ) from None
    except BrokerUnavailable as error:
        raise BrokerUnavailable(f"topic {topic}: {error}; is the broker running at {brokers}?") from error
    except ApiError as error:
        raise type(error)(f"topic {topic} at {brokers}: {error}") from error
