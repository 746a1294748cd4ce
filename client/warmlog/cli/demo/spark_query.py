"""Step 6 of the demo: Spark reads the topic and computes the same figures as plain Python does."""

import json
import sys
import time
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

from warmlog.cli.demo.checking import CheckFailed
from warmlog.cli.demo.flights import CarrierFigures
from warmlog.cli.demo.spark_process import SparkProcess, start_session

TOLERANCE = 1e-9


class SparkResult(NamedTuple):
    """What Spark computed, and how long it took: to start, and to read, parse and group."""

    version: str
    start_seconds: float
    query_seconds: float
    figures: dict[str, CarrierFigures]


def query_spark(address: str, topic: str, directory: Path) -> SparkResult:
    """Have Spark compute the figures of the topic; its files and log go to `directory`. CommandFailed if it fails."""
    result_path = directory / "result.json"
    with SparkProcess(__name__, address, topic, str(result_path), directory=directory) as process:
        process.wait()
    result = json.loads(result_path.read_bytes())
    figures = {carrier: CarrierFigures(*numbers) for carrier, numbers in result.pop("figures").items()}
    return SparkResult(**result, figures=figures)


def check_figures(found: dict[str, CarrierFigures], expected: dict[str, CarrierFigures]) -> None:
    """Raise CheckFailed unless counts are equal, and means equal up to rounding."""
    if found.keys() != expected.keys():
        raise CheckFailed(f"Spark found the carriers {sorted(found)}, the file has {sorted(expected)}")
    for carrier, figures in expected.items():
        if found[carrier].flights != figures.flights or not _is_same_mean(found[carrier], figures):
            raise CheckFailed(f"carrier {carrier}: expected {figures} as in the file, Spark computed {found[carrier]}")


def figures_by_carrier(spark: Any, address: str, topic: str) -> dict[str, CarrierFigures]:
    """Have Spark compute flights and mean departure delay of each carrier from the JSON in the topic."""
    from pyspark.sql import functions as sql

    records = spark.read.format("warmlog").option("bootstrap.servers", address).option("subscribe", topic).load()
    flight = sql.from_json(sql.col("value").cast("string"), "carrier STRING, dep_delay INT").alias("flight")
    figures = (
        records.select(flight)
        .groupBy("flight.carrier")
        .agg(sql.count("*").alias("flights"), sql.avg("flight.dep_delay").alias("mean_departure_delay"))
    )
    rows = sorted(figures.collect(), key=lambda row: row["carrier"])
    return {row["carrier"]: CarrierFigures(row["flights"], row["mean_departure_delay"]) for row in rows}


def main(address: str, topic: str, result_path: Path) -> None:
    """Run Spark and write the result to a file: the process that `query_spark` starts."""
    started_at = time.perf_counter()
    spark = start_session(result_path.parent)
    ready_at = time.perf_counter()
    figures = figures_by_carrier(spark, address, topic)
    result = SparkResult(spark.version, ready_at - started_at, time.perf_counter() - ready_at, figures)
    result_path.write_text(json.dumps(result._asdict()))
    spark.stop()


def _is_same_mean(found: CarrierFigures, expected: CarrierFigures) -> bool:
    ours, theirs = expected.mean_departure_delay, found.mean_departure_delay
    if ours is None or theirs is None:
        return ours is theirs
    return isclose(ours, theirs, rel_tol=TOLERANCE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
