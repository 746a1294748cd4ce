"""JSON decoded in the reader, and by Spark's `from_json`."""

import json
from typing import Any

from benchmarks.measurement import Run
from benchmarks.spark.reading import timed
from warmlog import Admin, Producer

FIELDS = "id bigint, name string, v double"
CALL_RECORDS = 100_000


async def fill(bootstrap: str, topic: str, records: int) -> None:
    """JSON objects of about 90 bytes."""
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=2)
    async with Producer(bootstrap) as producer:
        for first in range(0, records, CALL_RECORDS):
            numbers = range(first, min(first + CALL_RECORDS, records))
            await producer.send_many(topic, [_document(number) for number in numbers])


def _document(number: int) -> bytes:
    return json.dumps(
        {"id": number, "name": f"customer-{number % 9973:06d}", "v": number / 7, "city": "Amsterdam", "ok": True}
    ).encode()


def in_reader(session: Any, bootstrap: str, topic: str, records: int) -> Run:
    """`valueFormat` json."""
    reader = session.read.format("warmlog").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    return timed(records, lambda: _sum(reader.option("valueFormat", "json").schema(FIELDS).load()))


def from_json(session: Any, bootstrap: str, topic: str, records: int) -> Run:
    """The value as text, parsed by Spark."""
    reader = session.read.format("warmlog").option("bootstrap.servers", bootstrap).option("subscribe", topic)
    parsed = f"from_json(value, '{FIELDS}') as j"
    return timed(records, lambda: _sum(reader.schema("value string").load().selectExpr(parsed).select("j.*")))


def _sum(frame: Any) -> int:
    """How many records there are, with every column looked at."""
    (row,) = frame.selectExpr("count(id)", "sum(length(name))", "sum(v)").collect()
    return int(row[0])
