"""What the figures are to be at least, or at most: found, bar and verdict, a line for each that was measured."""

from collections.abc import Mapping
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.measurement import Measurement
from benchmarks.spark.reading import PYTHON_CPU


class Bar(NamedTuple):
    """`limit` for a benchmark's records a second, its ratio to those of `other`, or one of its figures.

    Rates and ratios are to be `limit` at least, figures at most.
    """

    name: str
    limit: float
    other: str = ""
    figure: str = ""

    def found(self, by_name: Mapping[str, Measurement]) -> float | None:
        """None when it was not measured."""
        measured = by_name.get(self.name)
        if measured is None or (self.other and self.other not in by_name):
            return None
        if self.figure:
            return measured.figures[self.figure]
        return measured.records_per_s / (by_name[self.other].records_per_s if self.other else 1.0)

    def is_reached(self, found: float) -> bool:
        return found <= self.limit if self.figure else found >= self.limit

    def __str__(self) -> str:
        if self.figure:
            return f"{self.name}: {self.figure}"
        return f"{self.name} / {self.other}" if self.other else self.name


class Share(NamedTuple):
    """The records a second of `name` as a share of those of `other`."""

    name: str
    other: str
    meaning: str


BARS = (
    Bar("spark.count", 4.0e6),
    Bar("spark.sum_length", 3.3e6),
    Bar("spark.seven_columns", 2.5e6),
    Bar("spark.parquet", 1.0e6),
    Bar("spark.export", 1.8e6),
    Bar("spark.count", 3.0, other="spark.tuples"),
    Bar("spark.count", 0.6, other="spark.ceiling"),
    Bar("spark.count", 0.15, figure=PYTHON_CPU),
    Bar("spark.write", 1.8e6),
    Bar("spark.write", 0.85, other="spark.discard"),
    Bar("spark.write", 0.85, other="spark.write_at_least_once"),
    Bar("spark.write_keyed", 1.5e6),
    Bar("spark.write_keyed", 0.65, other="spark.discard_keyed"),
    Bar("spark.trigger_ms", 300.0, figure="trigger_ms"),
    Bar("spark.count", 2.2, other="kafka.spark.count"),
    Bar("spark.sum_length", 1.65, other="kafka.spark.sum_length"),
    Bar("spark.seven_columns", 1.25, other="kafka.spark.seven_columns"),
    Bar("spark.parquet", 1.4, other="kafka.spark.parquet"),
    Bar("spark.parquet_seven", 1.4, other="kafka.spark.parquet_seven"),
)
"""Of `make bench-spark`, and of `make bench-spark-kafka` those against Kafka's connector, on two cores."""


SHARES = (
    Share("spark.ceiling_of_sources", "spark.ceiling", "of the ceiling, a source that maps files"),
    Share("spark.ceiling_of_network", "spark.ceiling", "of the ceiling, a source that has them by TCP"),
    Share("spark.count", "spark.ceiling_of_network", "of that, ours"),
    Share("spark.store", "spark.discard", "of a writer that discards, one that has them stored"),
    Share("spark.write", "spark.store", "of that, ours"),
    Share("spark.store_keyed", "spark.discard_keyed", "with keys, of a writer that discards, one that has them stored"),
    Share("spark.write_keyed", "spark.store_keyed", "of that, ours, which brings each key to its partition"),
)
"""How much of a bar is left when a source or a writer does nothing but what it cannot do without."""


def print_bars(measurements: list[Measurement], console: Console) -> None:
    """A line for every bar whose benchmarks were run."""
    by_name = {each.name: each for each in measurements}
    table = Table(title="Bars")
    for heading in ("", "found", "bar", ""):
        table.add_column(heading, justify="right" if heading else "left")
    for bar in BARS:
        if (found := bar.found(by_name)) is None:
            continue
        sign = "≤" if bar.figure else "≥"
        table.add_row(str(bar), f"{found:,.6g}", f"{sign} {bar.limit:,g}", "ok" if bar.is_reached(found) else "missed")
    if table.rows:
        console.print(table)


def print_shares(measurements: list[Measurement], console: Console) -> None:
    """A line for every share of which both were run."""
    rates = {each.name: each.records_per_s for each in measurements}
    for share in SHARES:
        if share.name in rates and share.other in rates:
            found = rates[share.name] / rates[share.other]
            console.print(f"{share.meaning}: {found:.2f} ({share.name} / {share.other})")
