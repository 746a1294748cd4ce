"""Writing in a Spark task: Arrow batches from the JVM become record batches of the topic's partitions.

An attempt uses one idempotent producer with an id of its own, so that a retry after a lost response appends nothing
twice. The attempt is done when everything is acknowledged, and so on disk. In a transaction its producer is a member of
the write's job, and what it has written counts once the driver commits it.

Before the first row of a topic its metadata is requested, and while the broker is away that is retried for as long as
the producer would retry: a missing response should not end the attempt.

The caller's thread reads what Spark passes; meanwhile batches are encoded and sent in the thread of an event loop.
"""

import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from warmlog import errors
from warmlog.arrow_write.batching import BatchOfRows, TopicBatches
from warmlog.arrow_write.job import Job, Membership
from warmlog.arrow_write.producer import ArrowProducer
from warmlog.arrow_write.rows import ArrowRows, with_offsets
from warmlog.spark.options.write_options import WriteOptions
from warmlog_transport.cluster import Cluster
from warmlog_transport.loop_thread import LoopThread, bulk_loop

CHECK_TIMEOUT_MS = 10_000
"""How long the driver retries to look up the topic: enough for a restart of the broker, and not long for a wrong
address."""

ROWS = 10_000
"""As spark.sql.execution.arrow.maxRecordsPerBatch."""
_ARROW_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "array<struct<key:string,value:binary>>": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}

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
    make = partial(_Attempt, columns, options, job)
    with LoopThread("warmlog write", bulk_loop) as thread, thread.entered(make) as attempt:
        for batch in batches:
            if batch.num_rows:
                thread.call(partial(attempt.write, batch))
        return thread.call(attempt.finish)


class _Attempt:
    """One attempt of a task. An error in its `async with` block aborts what a member of a job has written."""

    def __init__(self, columns: Mapping[str, int], options: WriteOptions, job: Job | None) -> None:
        self._columns = columns
        self._options = options
        self._producer = ArrowProducer(
            options.bootstrap,
            options.connection,
            codec=options.codec,
            delivery_timeout_ms=options.delivery_timeout_ms,
            transactional_id=None if job is None else job.transactional_id,
        )
        self._membership: Membership | None = None
        if job is not None:
            self._membership = Membership(self._producer.cluster, job, patience_ms=options.delivery_timeout_ms)
        self._stack = AsyncExitStack()
        self._topics: dict[str, TopicBatches] = {}
        self._ids: dict[str, UUID] = {}
        self._rows = 0
        self._is_committed = False
        """Whether the version was committed before."""

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._producer)
        if self._membership is not None:
            await self._stack.enter_async_context(self._membership)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, errors.OutOfOrderSequence):
                await self._check_topics()  # a recreated topic refuses a transaction whose beginning it does not have
        finally:
            await self._stack.__aexit__(kind, error, trace)

    async def write(self, batch: pa.RecordBatch) -> None:
        """Add the rows of one Arrow batch, and send the batches that are full."""
        if not self._rows and self._membership is not None:
            member = await self._membership.join()
            self._is_committed = member is None
            if member is not None:
                self._producer.become((member.producer_id, member.producer_epoch))
        self._rows += batch.num_rows
        if self._is_committed:
            return
        found = {name: with_offsets(batch.column(index)) for name, index in self._columns.items()}
        rows = ArrowRows(found["value"], found.get("key"), found.get("headers"), found.get("timestamp"))
        chosen = found.get("partition")
        if self._options.topic is not None:
            await self._add(self._options.topic, rows, chosen)
            return
        for topic, numbers in _rows_by_topic(found["topic"]):
            own = None if chosen is None or numbers is None else chosen.take(numbers)
            await self._add(topic, rows if numbers is None else rows.take(numbers), chosen if numbers is None else own)

    async def finish(self) -> TaskWritten:
        """Send the rest; return when everything is acknowledged, and the driver can commit it."""
        for topic, batches in self._topics.items():
            await self._send(topic, batches.flush())
        await self._producer.flush()
        if self._membership is not None and self._topics:
            await self._check_topics()
            await self._membership.confirm()
        throttled_s = self._producer.cluster.throttled_s()
        if throttled_s:
            _log.info("brokers have delayed writing by %.1f s because of quotas", throttled_s)
        return TaskWritten(self._rows, *self._producer.producer)

    async def _check_topics(self) -> None:
        """Raise InconsistentTopicId if a topic was recreated since its first row: earlier rows are gone with it."""
        timeout_ms = self._options.delivery_timeout_ms
        for found in await self._producer.cluster.topics(list(self._ids), timeout_ms=timeout_ms):
            if found.topic_id != self._ids[found.name]:
                raise errors.InconsistentTopicId(f"topic {found.name} was deleted and recreated while a task wrote it")

    async def _add(self, topic: str, rows: ArrowRows, chosen: pa.Array | None) -> None:
        batches = self._topics.get(topic)
        if batches is None:
            batches = self._topics[topic] = await self._learn(topic)
        await self._send(topic, batches.add(rows, chosen))

    async def _send(self, topic: str, made: Iterator[BatchOfRows]) -> None:
        now_ms = time.time_ns() // 1_000_000
        for batch in made:
            await self._producer.send(topic, batch.partition, batch.spans, batch.size_bytes, now_ms)

    async def _learn(self, topic: str) -> TopicBatches:
        with _explained(topic, self._options):
            found = await self._producer.topic(topic)
        assert found.topic_id is not None
        self._ids[topic] = found.topic_id
        return TopicBatches(
            topic,
            len(found.queues),
            limit_bytes=self._options.batch_bytes,
            max_message_bytes=found.max_message_bytes,
            first_sticky=random.randrange(1 << 16),  # noqa: S311 - so that tasks begin with different partitions
        )


def _rows_by_topic(topics: pa.Array) -> Iterator[tuple[str, pa.Array | None]]:
    """Yield each topic with the indexes of its rows; None stands for all of them."""
    if topics.null_count:
        raise errors.InvalidTopic("a row has null in the column topic: give the option topic, or a topic for each row")
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
    topic = options.topic
    if topic is None:
        return

    async def look_up() -> None:
        async with Cluster(options.bootstrap, options.connection) as cluster:
            with _explained(topic, options):
                await cluster.topics([topic], timeout_ms=min(CHECK_TIMEOUT_MS, options.delivery_timeout_ms))

    with LoopThread("warmlog check") as thread:
        thread.call(look_up)


@contextmanager
def _explained(topic: str, options: WriteOptions) -> Iterator[None]:
    """Add to errors about `topic` where it was looked up, and what to do."""
    brokers = ", ".join(options.bootstrap)
    try:
        yield
    except errors.UnknownTopicOrPartition:
        raise errors.UnknownTopicOrPartition(
            f"topic {topic} does not exist: create it first (warmlog topic create {topic})"
        ) from None
    except errors.BrokerUnavailable as error:
        raise errors.BrokerUnavailable(f"topic {topic}: {error}; is the broker running at {brokers}?") from error
    except errors.ApiError as error:
        raise type(error)(f"topic {topic} at {brokers}: {error}") from error


def arrow_of_rows(rows: Iterator[Any], schema: Any) -> Iterator[pa.RecordBatch]:
    """Yield the rows with the columns of `schema` (a StructType), of types that can be written, ROWS at a time.

    For the streaming writer of Spark 4.0, which passes rows.
    """
    fields = [pa.field(field.name, _ARROW_TYPES[field.dataType.simpleString()]) for field in schema.fields]
    while some := list(islice(rows, ROWS)):
        columns = [pa.array([_plain(row[index]) for row in some], field.type) for index, field in enumerate(fields)]
        yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _plain(value: Any) -> Any:
    """Convert for Arrow: bytearray to bytes, rows of headers to dictionaries, a local time to an aware one."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list):
        return [None if item is None else {"key": item[0], "value": _plain(item[1])} for item in value]
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.astimezone(UTC)
    return value
