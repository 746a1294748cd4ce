"""Figures of the storage engine: how they are taken, shown and written.

Others may use the machine meanwhile, so beside the time on the wall there is the processor time of this process, which
waiting for a turn does not lengthen (sharing a core with another process still does).
"""

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Timing(NamedTuple):
    """How long something took, in seconds."""

    wall_s: float
    cpu_s: float


@dataclass
class Figure:
    """What was measured of one kind: several runs, each with the same names."""

    name: str
    settings: Mapping[str, object]
    bar: str = ""
    """What it should reach, in words."""
    runs: list[Mapping[str, float]] = field(default_factory=list)

    @property
    def medians(self) -> dict[str, float]:
        return {name: median(run[name] for run in self.runs) for name in self.runs[0]}

    def to_json(self) -> dict[str, object]:
        settings = {**self.settings, "python": platform.python_version(), "cores": os.cpu_count()}
        return {
            "name": self.name,
            "settings": settings,
            "bar": self.bar,
            "runs": len(self.runs),
            "load_average": os.getloadavg()[0],
            **{name: round(value, 4) for name, value in self.medians.items()},
            **{f"min_{name}": round(min(run[name] for run in self.runs), 4) for name in self.runs[0]},
            **{f"max_{name}": round(max(run[name] for run in self.runs), 4) for name in self.runs[0]},
        }


def timed(work: Callable[[], object]) -> Timing:
    """How long `work` takes."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu)


def quantiles_us(values_ns: Sequence[int]) -> dict[str, float]:
    """p50, p99 and max in microseconds."""
    ordered = sorted(values_ns)
    last = len(ordered) - 1
    return {
        "p50_us": ordered[last // 2] / 1000,
        "p99_us": ordered[round(last * 0.99)] / 1000,
        "max_us": ordered[-1] / 1000,
    }


def print_table(figures: Sequence[Figure], console: Console) -> None:
    table = Table(title=f"Medians; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    table.add_column("")
    table.add_column("figures")
    table.add_column("bar")
    for each in figures:
        values = ", ".join(
            f"{name} {value:,.3g}" if value < 100 else f"{name} {value:,.0f}" for name, value in each.medians.items()
        )
        table.add_row(each.name, values, each.bar)
    console.print(table)
