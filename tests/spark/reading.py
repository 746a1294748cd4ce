"""What a topic holds, read by the plain client's own means, so that Spark is not checked against itself; and what Spark
shows of it, in the same form."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from pyspark.sql import DataFrame, Row

import warmlog
from broker_process import BrokerProcess
from spark.topics import Stored
from warmlog.ranges.discover import Discovery
from warmlog_protocol.batch import iter_batches
from wire_client import WireClient

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Reachable(Protocol):
    """A broker, or several."""

    @property
    def address(self) -> str: ...


def read_back(broker: BrokerProcess, topic: str) -> list[Stored]:
    """Every record of a topic, committed or not, in the order of partition and offset."""
    stored: list[Stored] = []
    with Discovery([broker.address]) as discovery, WireClient(broker.address) as client:
        for each in discovery.states(discovery.topics([topic])):
            position = 0
            while position < each.latest:
                _, payload = client.fetch(topic, position, partition=each.partition, max_wait_ms=500)
                for batch in iter_batches(payload):
                    start, position = position, batch.next_offset
                    if batch.header.is_control:
                        continue
                    time_type = int(batch.header.is_log_append_time)
                    columns = (batch.keys(), batch.values(), batch.offsets(), batch.timestamps_ms(), batch.headers())
                    stored += [
                        Stored(key, value, topic, each.partition, offset, at_ms, time_type, tuple(headers))
                        for key, value, offset, at_ms, headers in zip(*columns, strict=True)
                        if offset >= start
                    ]
    return stored


def committed(broker: Reachable, topic: str) -> Counter[bytes | None]:
    """How often a consumer that reads what is committed gets each value."""

    async def read() -> Counter[bytes | None]:
        async with warmlog.Consumer(
            broker.address, topics=[topic], start="earliest", isolation="read_committed"
        ) as consumer:
            return Counter([record.value async for record in consumer.records(until="latest")])

    return asyncio.run(read())


def stored_of(rows: Iterable[Row]) -> list[Stored]:
    """Rows with headers as the tests write records, in the order of partition and offset."""
    stored = [
        Stored(
            None if row.key is None else bytes(row.key),
            None if row.value is None else bytes(row.value),
            row.topic,
            row.partition,
            row.offset,
            (row.timestamp.replace(tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1),
            row.timestampType,
            tuple((name, None if value is None else bytes(value)) for name, value in row.headers or ()),
        )
        for row in rows
    ]
    return sorted(stored, key=lambda record: (record.topic, record.partition, record.offset))


def in_utc(frame: DataFrame) -> DataFrame:
    """Timestamps come to Python in the machine's zone; as text in the session's, they are UTC."""
    return frame.withColumn("timestamp", frame.timestamp.cast("timestamp_ntz"))
