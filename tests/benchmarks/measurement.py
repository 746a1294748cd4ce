"""Runs, their medians, and how they are shown and written."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

VALUE_BYTES = 100
MB = 1_000_000
CLIENT_CPU, BROKER_CPU = "client_cpu_us", "broker_cpu_us"
"""Figures of a run: processor time a record, in microseconds."""


class Run(NamedTuple):
    """One run: how many records of VALUE_BYTES in how many seconds, and figures of its own where it has some."""

    records: int
    seconds: float
    figures: Mapping[str, float] = {}


@dataclass
class Measurement:
    """All runs of one kind."""

    name: str
    settings: Mapping[str, object]
    runs: list[Run] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Records a second of each run, ascending."""
        return sorted(run.records / run.seconds for run in self.runs)

    @property
    def records_per_s(self) -> float:
        return median(self.rates)

    @property
    def figures(self) -> dict[str, float]:
        """The medians of the runs' own figures."""
        return {name: round(median(run.figures[name] for run in self.runs), 3) for name in self.runs[0].figures}

    def to_json(self) -> dict[str, object]:
        rates = self.rates
        return {
            "name": self.name,
            "records_per_s": round(self.records_per_s),
            "mb_per_s": round(self.records_per_s * VALUE_BYTES / MB, 1),
            "settings": dict(self.settings),
            "runs": len(rates),
            "min_records_per_s": round(rates[0]),
            "max_records_per_s": round(rates[-1]),
            **self.figures,
        }


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory on the disk that holds this checkout; the system's temporary one may be memory."""
    build = Path("build").absolute()
    build.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=build))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def print_table(measurements: list[Measurement], console: Console) -> None:
    """Medians, spread, processor time a record, and what share of each raw limit a step reached."""
    limits = {each.name: each.records_per_s for each in measurements if each.name.startswith("limit.")}
    table = Table(title=f"Values of {VALUE_BYTES} bytes; medians of {len(measurements[0].runs)} runs")
    table.add_column("")
    shares = [f"of {name.removeprefix('limit.')}" for name in limits]
    for heading in ("records/s", "MB/s", "slowest", "fastest", "client µs", "broker µs", *shares):
        table.add_column(heading, justify="right")
    for each in measurements:
        table.add_row(
            each.name,
            f"{each.records_per_s:,.0f}",
            f"{each.records_per_s * VALUE_BYTES / MB:,.1f}",
            f"{each.rates[0]:,.0f}",
            f"{each.rates[-1]:,.0f}",
            *(f"{each.figures[name]:.2f}" if name in each.figures else "" for name in (CLIENT_CPU, BROKER_CPU)),
            *("" if each.name in limits else f"{each.records_per_s / limit:.1%}" for limit in limits.values()),
        )
    console.print(table)
    for each in measurements:
        others = [f"{name} {value}" for name, value in each.figures.items() if name not in (CLIENT_CPU, BROKER_CPU)]
        if others:
            console.print(f"{each.name}: {', '.join(others)}")
