"""The demo's input: read from the package's file, put in order of time, typed."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from demo.flights import ARCHIVE, COLUMNS, read_flights

FIRST = "2013,7,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-07-01T09:00:00Z"
EARLIER = "2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,NA,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z"
SAME_HOUR = "2013,7,1,518,516,-2,831,820,11,AA,1,N1,JFK,MIA,227,1400,5,16,2013-07-01T09:00:00Z"

Package = Callable[..., Path]


@pytest.fixture
def package(tmp_path: Path) -> Package:
    def make(*rows: str, header: str = ",".join(COLUMNS)) -> Path:
        (tmp_path / ARCHIVE).parent.mkdir()
        with zipfile.ZipFile(tmp_path / ARCHIVE, "w") as archive:
            archive.writestr("flights.csv", "\n".join((header, *rows)) + "\n")
        return tmp_path

    return make


def test_flights_are_in_order_of_time_and_keep_their_order_within_an_hour(package: Package) -> None:
    flights = read_flights(package(FIRST, EARLIER, SAME_HOUR))
    assert list(flights.keys) == [b"EV", b"UA", b"AA"]
    assert list(flights.timestamps_ms) == [1357074000000, 1372669200000, 1372669200000]


def test_numbers_are_numbers_and_what_is_missing_is_null(package: Package) -> None:
    (flight,) = (json.loads(value) for value in read_flights(package(EARLIER)).values)
    assert flight["dep_delay"] is None
    assert flight["tailnum"] is None
    assert (flight["distance"], flight["carrier"], flight["flight"]) == (416, "EV", 4308)
    assert tuple(flight) == COLUMNS


def test_fewer_flights_are_spread_over_the_year(package: Package) -> None:
    rows = [EARLIER.replace("T21", f"T{hour:02d}") for hour in range(20)]
    hours = [timestamp_ms // 3_600_000 % 24 for timestamp_ms in read_flights(package(*rows), limit=5).timestamps_ms]
    assert hours == [0, 4, 8, 12, 16]


def test_a_file_with_other_columns_is_refused(package: Package) -> None:
    with pytest.raises(ValueError, match="has the columns"):
        read_flights(package(FIRST, header="year,month"))
