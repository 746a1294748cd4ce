"""Step 6 of the demo, a program in Spark: flights and mean departure delay of each carrier, from the JSON in the topic.

`python -m demo.carriers HOST:PORT TOPIC RESULT` writes them to the file RESULT.
"""

import json
import sys
import time
from math import isclose
from pathlib import Path
from typing import NamedTuple

from demo.checks import CheckFailed
from demo.flights import CarrierFigures
from demo.processes import PythonProcess
from demo.spark import start_session

TOLERANCE = 1e-9


class SparkResult(NamedTuple):
    """What Spark computed, and how long it took: to start, and to read, parse and group."""

    version: str
    start_s: float
    query_s: float
    figures: dict[str, CarrierFigures]


def query_spark(address: str, topic: str, directory: Path) -> SparkResult:
    """Have Spark compute the figures of the topic; its files and log go to `directory`. DemoFailed if it fails."""
    path = directory / "result.json"
    with PythonProcess("demo.carriers", address, topic, str(path), log_path=directory / "spark.log") as spark:
        spark.wait("Spark")
    result = json.loads(path.read_bytes())
    figures = {carrier: CarrierFigures(*numbers) for carrier, numbers in result.pop("figures").items()}
    return SparkResult(**result, figures=figures)


def check_figures(found: dict[str, CarrierFigures], expected: dict[str, CarrierFigures]) -> None:
    """Raise CheckFailed unless counts are equal, and means equal up to rounding."""
    if found.keys() != expected.keys():
        raise CheckFailed(f"Spark found the carriers {sorted(found)}, the file has {sorted(expected)}")
    for carrier, figures in expected.items():
        if found[carrier].flights != figures.flights or not _is_same_mean(found[carrier], figures):
            raise CheckFailed(f"carrier {carrier}: expected {figures} as in the file, Spark computed {found[carrier]}")


def _is_same_mean(found: CarrierFigures, expected: CarrierFigures) -> bool:
    ours, theirs = expected.mean_departure_delay, found.mean_departure_delay
    if ours is None or theirs is None:
        return ours is theirs
    return isclose(ours, theirs, rel_tol=TOLERANCE)


def main(address: str, topic: str, result_path: Path) -> None:
    from pyspark.sql import functions as sql

    started_at = time.perf_counter()
    spark = start_session(result_path.parent)
    ready_at = time.perf_counter()
    records = spark.read.format("warmlog").option("bootstrap.servers", address).option("subscribe", topic).load()
    flight = sql.from_json(sql.col("value").cast("string"), "carrier STRING, dep_delay INT").alias("flight")
    by_carrier = records.select(flight).groupBy("flight.carrier")
    rows = by_carrier.agg(sql.count("*"), sql.avg("flight.dep_delay")).collect()
    figures = {carrier: CarrierFigures(flights, mean) for carrier, flights, mean in sorted(rows)}
    result = SparkResult(spark.version, ready_at - started_at, time.perf_counter() - ready_at, figures)
    result_path.write_text(json.dumps(result._asdict()))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
