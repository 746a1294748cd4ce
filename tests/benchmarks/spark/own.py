"""Our own benchmarks of Spark, by name: what they read, and how much of it."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measurement import Run
from benchmarks.produce import distinct_values
from benchmarks.spark import exporting, reading, streaming, typed, writing
from benchmarks.spark.plain_server import PlainServer
from warmlog import Admin, Producer

PARTITIONS = 2
KEY_BYTES = 12
NOT_FROM_TOPIC = {
    "spark.trigger_ms",
    *("spark.discard", "spark.store", "spark.write", "spark.write_at_least_once"),
    *("spark.discard_keyed", "spark.store_keyed", "spark.write_keyed"),
}
"""They read no topic that is filled before."""
FROM_JSON_TOPIC = {"spark.json", "spark.from_json"}


@dataclass(frozen=True)
class Scale:
    """How much each run does. `--quick` is too short for figures to trust: a query costs 0.2 s whatever it reads."""

    rounds: int = 3
    records: int = 10_000_000
    tuple_records_share: int = 10
    written_records: int = 5_000_000
    json_records: int = 2_000_000
    trigger_s: float = 20.0

    @classmethod
    def quick(cls) -> "Scale":
        return cls(1, 2_000_000, 4, 1_000_000, 500_000, 12.0)

    @classmethod
    def few(cls) -> "Scale":
        """For runs that are not measured."""
        return cls(0, 2_000, 1, 2_000, 2_000)


class OwnBenchmarks:
    """Those of one scale, with `topic` and files below `directory` of their own."""

    def __init__(
        self, session: Any, bootstrap: str, plain: PlainServer, *, topic: str, directory: Path, scale: Scale
    ) -> None:
        directory.mkdir()
        self.rows = writing.CachedRows(session, scale.written_records)
        self._session = session
        self._bootstrap = bootstrap
        self._plain = plain
        self._topic = topic
        self._directory = directory
        self._scale = scale
        self._same_bytes = reading.SameBytes(session, bootstrap, topic, directory)

    def runs(self) -> dict[str, Callable[[], Run]]:
        """By name, in the order of a round."""
        session, bootstrap, topic, scale = self._session, self._bootstrap, self._topic, self._scale
        directory, same, rows = self._directory, self._same_bytes, self.rows
        read = (session, bootstrap, topic, scale.records)
        few = scale.records // scale.tuple_records_share
        ends = {topic: {str(partition): few // PARTITIONS for partition in range(PARTITIONS)}}
        json = (session, bootstrap, self._json_topic, scale.json_records)
        return {
            "spark.count": partial(reading.count, *read),
            "spark.sum_length": partial(reading.sum_length, *read),
            "spark.seven_columns": partial(reading.seven_columns, *read),
            "spark.parquet": partial(reading.parquet, *read, directory / "parquet"),
            "spark.parquet_seven": partial(reading.parquet_seven, *read, directory / "parquet"),
            "spark.ceiling": partial(same.count, scale.records),
            "spark.ceiling_of_sources": partial(same.count_of_source, scale.records),
            "spark.ceiling_of_network": partial(same.count_of_source, scale.records, self._plain.port),
            "spark.export": partial(exporting.export, *read, directory / "export"),
            "spark.json": partial(typed.in_reader, *json),
            "spark.from_json": partial(typed.from_json, *json),
            "spark.discard": partial(rows.discard, with_keys=False),
            "spark.store": partial(rows.store, self._plain.port, directory / "stored", with_keys=False),
            "spark.write": partial(rows.write, bootstrap, with_keys=False),
            "spark.write_at_least_once": partial(
                rows.write, bootstrap, with_keys=False, delivery=writing.AT_LEAST_ONCE
            ),
            "spark.discard_keyed": partial(rows.discard, with_keys=True),
            "spark.store_keyed": partial(rows.store, self._plain.port, directory / "stored", with_keys=True),
            "spark.write_keyed": partial(rows.write, bootstrap, with_keys=True),
            "spark.trigger_ms": partial(streaming.trigger_ms, session, bootstrap, scale.trigger_s, directory),
            "spark.tuples": partial(reading.tuples, session, bootstrap, topic, few, ends),
        }

    def fill(self, names: Collection[str]) -> None:
        """The topics that the benchmarks with these names read."""
        if FROM_JSON_TOPIC.intersection(names):
            asyncio.run(typed.fill(self._bootstrap, self._json_topic, self._scale.json_records))
        if set(names) - FROM_JSON_TOPIC - NOT_FROM_TOPIC:
            asyncio.run(_fill(self._bootstrap, self._topic, self._scale.records))

    @property
    def _json_topic(self) -> str:
        return f"{self._topic}-json"


async def _fill(bootstrap: str, topic: str, records: int) -> None:
    values = distinct_values()
    keys = [value[-KEY_BYTES:] for value in values]
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=PARTITIONS)
    async with Producer(bootstrap) as producer:
        for partition in range(PARTITIONS):
            for start in range(0, records // PARTITIONS, len(values)):
                count = min(len(values), records // PARTITIONS - start)
                await producer.send_many(topic, values[:count], keys=keys[:count], partition=partition)
