"""Step 6 of the demo: Spark reads the topic and computes the same figures as plain Python does."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import isclose
from pathlib import Path
from typing import Any

from warmlog.cli.demo.checking import CheckFailed
from warmlog.cli.demo.flights import CarrierFigures

TOLERANCE = 1e-9

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.session.timeZone": "UTC",
}


@contextmanager
def local_spark(log_path: Path, scratch_dir: Path) -> Iterator[Any]:
    """A Spark session on two cores of this machine. What Java and Spark say goes to `log_path`, not to the terminal."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("warmlog demo")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(scratch_dir))
    builder = builder.config("spark.sql.warehouse.dir", str(scratch_dir / "warehouse"))
    with _stderr_to(log_path):  # the Java process inherits it for its life
        spark = builder.getOrCreate()
    try:
        spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        with _stderr_to(log_path):
            spark.stop()


def figures_by_carrier(spark: Any, address: str, topic: str) -> dict[str, CarrierFigures]:
    """Flights and mean departure delay of each carrier, computed by Spark from the JSON in the topic."""
    from pyspark.sql import functions as sql

    records = spark.read.format("warmlog").option("bootstrap.servers", address).option("subscribe", topic).load()
    flight = sql.from_json(sql.col("value").cast("string"), "carrier STRING, dep_delay INT").alias("flight")
    figures = (
        records.select(flight)
        .groupBy("flight.carrier")
        .agg(sql.count("*").alias("flights"), sql.avg("flight.dep_delay").alias("mean_departure_delay"))
        .orderBy("carrier")
    )
    return {row["carrier"]: CarrierFigures(row["flights"], row["mean_departure_delay"]) for row in figures.collect()}


def check_figures(found: dict[str, CarrierFigures], expected: dict[str, CarrierFigures]) -> None:
    """Passes when both say the same: the counts exactly, the means up to rounding."""
    if found.keys() != expected.keys():
        raise CheckFailed(f"Spark found the carriers {sorted(found)}, the file has {sorted(expected)}")
    for carrier, figures in expected.items():
        if found[carrier].flights != figures.flights or not _is_same_mean(found[carrier], figures):
            raise CheckFailed(f"carrier {carrier}: the file says {figures}, Spark says {found[carrier]}")


def _is_same_mean(found: CarrierFigures, expected: CarrierFigures) -> bool:
    ours, theirs = expected.mean_departure_delay, found.mean_departure_delay
    if ours is None or theirs is None:
        return ours is theirs
    return isclose(ours, theirs, rel_tol=TOLERANCE)


@contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Points the process's stderr, and that of the processes it starts, to the end of a file."""
    sys.stderr.flush()
    terminal = os.dup(2)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(terminal, 2)
        os.close(terminal)
