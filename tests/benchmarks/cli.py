"""`warmlog produce` of one file: its lines as records, and its rows of CSV as JSON objects.

The seconds are those that the command tells, from before it connects until everything is acknowledged.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.measurement import VALUE_BYTES, Run
from benchmarks.rows import Bench, Benchmark

ROWS = 3_000_000
"""Also of a first look: with few rows the figure is that of importing pyarrow and numpy, 0.3 s."""


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    path = bench.directory / "rows.csv"
    for name, kind in (("lines", "raw"), ("csv", "csv")):
        settings = bench.settings(**bench.producer) | {"api": f"warmlog produce --format {kind}"}
        yield Benchmark(f"cli.produce.{name}", settings, partial(_produce, bench, path, kind), partitions=1)


def _produce(bench: Bench, path: Path, kind: str, topic: str) -> Run:
    if not path.exists():
        with path.open("w") as file:
            file.write("flight,carrier,distance,remark\n")
            file.writelines(f"{number},UA,{number % 3000},".ljust(VALUE_BYTES, "x") + "\n" for number in range(ROWS))
    command = [sys.executable, "-m", "warmlog", "produce", topic, "--format", kind, "--json"]
    with path.open("rb") as file:
        done = subprocess.run([*command, "--broker", bench.bootstrap], stdin=file, stdout=subprocess.PIPE, check=True)
    figures = json.loads(done.stdout)
    assert figures["records"] == ROWS + (kind == "raw")
    return Run(figures["records"], figures["records"] / figures["records_per_s"])
