"""Step 6 of the demo: Spark reads the topic and computes the same figures as plain Python does.

Spark runs in another process (`main`) that leads a process group, to which the Java that it starts belongs. So their
output goes to a log, and the demo can end all of them at any time.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

from warmlog.cli.demo.checking import CheckFailed
from warmlog.cli.demo.flights import CarrierFigures
from warmlog.cli.terminal.exits import CommandFailed

TOLERANCE = 1e-9

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Quick to start: Java's second compiler and its larger collectors pay off after minutes, not in one query."""


class SparkResult(NamedTuple):
    """What Spark computed, and how long it took: to start, and to read, parse and group."""

    version: str
    start_seconds: float
    query_seconds: float
    figures: dict[str, CarrierFigures]


def query_spark(address: str, topic: str, directory: Path) -> SparkResult:
    """Have Spark compute the figures of the topic; its files and log go to `directory`. CommandFailed if it fails."""
    result_path = directory / "result.json"
    directory.mkdir()
    with log_path(directory).open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", __name__, address, topic, str(result_path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        exit_code = process.wait()
    finally:
        _kill_group(process)
    if exit_code != 0:
        raise CommandFailed(f"Spark ended with exit code {exit_code}")
    result = json.loads(result_path.read_bytes())
    figures = {carrier: CarrierFigures(*numbers) for carrier, numbers in result.pop("figures").items()}
    return SparkResult(**result, figures=figures)


def log_path(directory: Path) -> Path:
    """Return the path of Spark's log."""
    return directory / "spark.log"


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
    from pyspark.sql import SparkSession

    started_at = time.perf_counter()
    # By its name: Spark finds no Python data sources if the path of Python has a space in it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = Path(sys.executable).name
    scratch = result_path.parent
    builder = SparkSession.builder.master("local[2]").appName("warmlog demo")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.local.dir", str(scratch / "local"))
    spark = builder.config("spark.sql.warehouse.dir", str(scratch / "warehouse")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    ready_at = time.perf_counter()
    figures = figures_by_carrier(spark, address, topic)
    result = SparkResult(spark.version, ready_at - started_at, time.perf_counter() - ready_at, figures)
    result_path.write_text(json.dumps(result._asdict()))
    spark.stop()


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill the process and those that it started: an interrupted pyspark leaves Java running."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_same_mean(found: CarrierFigures, expected: CarrierFigures) -> bool:
    ours, theirs = expected.mean_departure_delay, found.mean_departure_delay
    if ours is None or theirs is None:
        return ours is theirs
    return isclose(ours, theirs, rel_tol=TOLERANCE)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
