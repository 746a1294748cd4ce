"""The demo's output: headings, check marks, a progress bar and tables, on a terminal or as plain text."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from warmlog.cli.terminal.status import megabytes

if TYPE_CHECKING:
    from warmlog.cli.demo.checking import ComparedRecord
    from warmlog.cli.demo.flights import CarrierFigures

STEPS = 8
PLAIN_WIDTH = 120
"""The width without a terminal."""


class Measure(NamedTuple):
    """Records and bytes (keys and values) that a step moved, and the time that it took."""

    step: str
    records: int
    size_bytes: int
    seconds: float


class Screen:
    """Prints the steps of the demo to stdout."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = PLAIN_WIDTH

    def step(self, number: int, title: str) -> None:
        """Print the heading of a step."""
        self._console.print(f"\n[bold cyan]{number}/{STEPS}[/] [bold]{title}[/]")

    def say(self, text: str) -> None:
        """Print a line below a heading."""
        self._console.print(f"    {text}")

    def checked(self, text: str) -> None:
        """Print a check that succeeded."""
        self._console.print(f"  [green]✓[/] {text}")

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator["ProgressBar"]:
        """Show a bar from 0 to `total` records, on a terminal only."""
        columns = (
            TextColumn("    {task.description}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, disable=not self._console.is_terminal) as bar:
            yield ProgressBar(bar, bar.add_task(title, total=total, rate=""))

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """Show `text` during the body, on a terminal only."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(text):
            yield

    def first_flights(self, found: "dict[int, ComparedRecord | None]") -> None:
        """Print the table of step 5."""
        table = _table("partition", "offset", "hour (UTC)", "flight", "from", "to", "delay")
        for partition, record in found.items():
            if record is None or record.value is None:
                table.add_row(str(partition), "", "no later flight")
                continue
            flight = msgspec.json.decode(record.value)
            hour = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
            delay = "" if flight["dep_delay"] is None else f"{flight['dep_delay']} min"
            number = f"{flight['carrier']} {flight['flight']}"
            when = f"{hour:%Y-%m-%d %H:%M}"
            table.add_row(str(partition), str(record.offset), when, number, flight["origin"], flight["dest"], delay)
        self._console.print(table)

    def carriers(self, spark: "dict[str, CarrierFigures]", file: "dict[str, CarrierFigures]") -> None:
        """Print the figures of both sides beside each other."""
        table = _table("carrier", "flights", "in the file", "mean delay in min", "in the file", "")
        for carrier, figures in spark.items():
            own = file[carrier]
            means = _mean(figures), _mean(own)
            table.add_row(carrier, f"{figures.flights:,}", f"{own.flights:,}", *means, "[green]equal[/]")
        self._console.print(table)

    def measures(self, measures: Sequence[Measure]) -> None:
        """Print records and bytes a second of each step."""
        table = _table("step", "records", "MB", "seconds", "records/s", "MB/s")
        for step, records, size_bytes, seconds in measures:
            table.add_row(
                step,
                f"{records:,}",
                megabytes(size_bytes),
                f"{seconds:.2f}",
                f"{records / seconds:,.0f}",
                megabytes(round(size_bytes / seconds)),
            )
        self._console.print(table)


class ProgressBar:
    """The bar of one step."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def advance_to(self, count: int) -> None:
        """Show that `count` records are done."""
        elapsed = self._bar.tasks[0].elapsed
        rate = f"{count / elapsed:,.0f} records/s" if elapsed else ""
        self._bar.update(self._task, completed=count, rate=rate)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True)
    numbers = ("flights", "in the file", "records", "MB", "seconds", "mean", "offset", "delay")
    for heading in headings:
        table.add_column(heading, justify="right" if heading.startswith(numbers) else "left", no_wrap=True)
    return table


def _mean(figures: "CarrierFigures") -> str:
    mean = figures.mean_departure_delay
    return "none" if mean is None else f"{mean:.6f}"
