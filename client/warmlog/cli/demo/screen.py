"""How the demo looks: headings, check marks, a progress bar and tables, on a terminal and in a plain log alike."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from warmlog.cli.demo.checking import Record
from warmlog.cli.demo.flights import CarrierFigures
from warmlog.cli.demo.measures import Measure

STEPS = 7
PLAIN_WIDTH = 120
"""Where there is no terminal to ask."""


class Screen:
    """Prints the story of the demo to stdout."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        if not self._console.is_terminal:
            self._console.width = PLAIN_WIDTH

    def step(self, number: int, title: str) -> None:
        """The heading of a step."""
        self._console.print(f"\n[bold cyan]{number}/{STEPS}[/] [bold]{title}[/]")

    def say(self, text: str) -> None:
        """A line below a heading."""
        self._console.print(f"    {text}")

    def checked(self, text: str) -> None:
        """Something that was found to be true."""
        self._console.print(f"  [green]✓[/] {text}")

    def failed(self, text: str) -> None:
        """Something that was not."""
        self._console.print(f"  [red]✗[/] {text}")

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator["ProgressBar"]:
        """A bar from 0 to `total` records; without a terminal, nothing."""
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
        """Shows that something goes on, as long as it does; without a terminal, nothing."""
        if not self._console.is_terminal:
            yield
            return
        with self._console.status(text):
            yield

    def first_flights(self, found: dict[int, Record | None]) -> None:
        """The table of step 5."""
        table = _table("partition", "offset", "hour (UTC)", "flight", "from", "to", "delay")
        for partition, record in found.items():
            if record is None or record.value is None:
                table.add_row(str(partition), "", "no flight from there on")
                continue
            flight = msgspec.json.decode(record.value)
            hour = datetime.fromtimestamp(record.timestamp_ms / 1000, UTC)
            delay = "" if flight["dep_delay"] is None else f"{flight['dep_delay']} min"
            number = f"{flight['carrier']} {flight['flight']}"
            when = f"{hour:%Y-%m-%d %H:%M}"
            table.add_row(str(partition), str(record.offset), when, number, flight["origin"], flight["dest"], delay)
        self._console.print(table)

    def carriers(self, spark: dict[str, CarrierFigures], file: dict[str, CarrierFigures]) -> None:
        """The figures of both sides beside each other."""
        table = _table("carrier", "flights", "in the file", "mean delay in min", "in the file", "")
        for carrier, figures in spark.items():
            own = file[carrier]
            table.add_row(
                carrier,
                f"{figures.flights:,}",
                f"{own.flights:,}",
                _mean(figures),
                _mean(own),
                "[green]equal[/]",
            )
        self._console.print(table)

    def measures(self, measures: Sequence[Measure]) -> None:
        """Records and bytes a second of each step."""
        table = _table("step", "records", "MB", "seconds", "records/s", "MB/s")
        for measure in measures:
            table.add_row(
                measure.step,
                f"{measure.records:,}",
                f"{measure.megabytes:,.1f}",
                f"{measure.seconds:.2f}",
                f"{measure.records_per_s:,.0f}",
                f"{measure.megabytes_per_s:,.1f}",
            )
        self._console.print(table)


class ProgressBar:
    """The bar of one step."""

    def __init__(self, bar: Progress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def advance_to(self, count: int) -> None:
        """So many records are done."""
        elapsed = self._bar.tasks[0].elapsed
        rate = f"{count / elapsed:,.0f} records/s" if elapsed else ""
        self._bar.update(self._task, completed=count, rate=rate)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=True)
    numbers = ("flights", "in the file", "records", "MB", "seconds", "mean", "offset", "delay")
    for heading in headings:
        table.add_column(heading, justify="right" if heading.startswith(numbers) else "left", no_wrap=True)
    return table


def _mean(figures: CarrierFigures) -> str:
    mean = figures.mean_departure_delay
    return "none" if mean is None else f"{mean:.6f}"


__all__ = ["ProgressBar", "Screen"]
