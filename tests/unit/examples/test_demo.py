"""The demo: its input in order of time and typed, and checks that find records lost, twice, changed or out of place."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from demo.carriers import check_figures
from demo.checks import CheckFailed, ExpectedPartition, expected_partitions
from demo.flights import ARCHIVE, COLUMNS, CarrierFigures, Flights, read_flights

from unit.client.cli.printed_batch import batch_of
from warmlog.producer.delivery import RecordMetadata

FLIGHTS = Flights(
    keys=[b"UA", b"AA", b"UA"],
    values=[b"one", b"two", b"three"],
    timestamps_ms=[1000, 1000, 2000],
    departure_delays=[5, None, 7],
)


def three_records() -> ExpectedPartition:
    partition = ExpectedPartition(3)
    for offset, value in enumerate((b"one", b"two", b"three")):
        partition.add(b"UA", value, 1372636800123, offset)
    return partition


def test_the_records_that_were_sent_pass_in_batches_of_any_size() -> None:
    partition = three_records()
    partition.check(batch_of(b"one", keys=[b"UA"], base_offset=0))
    partition.check(batch_of(b"two", b"three", keys=[b"UA", b"UA"], base_offset=1))
    partition.check_end()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([b"one", b"one", b"three"], "expected .*'two'.*found .*'one'"),
        ([b"two", b"one", b"three"], "expected .*'one'.*found .*'two'"),
        ([b"one", b"two", b"thr3e"], "expected .*'three'.*found .*'thr3e'"),
        ([b"one", b"two", b"three", b"three"], "offset=3.* was never sent"),
    ],
)
def test_a_record_that_is_twice_swapped_changed_or_unknown_fails(values: list[bytes], message: str) -> None:
    with pytest.raises(CheckFailed, match=message):
        three_records().check(batch_of(*values, keys=[b"UA"] * len(values), base_offset=0))


def test_a_record_at_another_offset_or_with_another_key_or_time_fails() -> None:
    for columns in ({"base_offset": 1}, {"keys": [b"AA"], "base_offset": 0}, {"timestamps_ms": [1], "base_offset": 0}):
        with pytest.raises(CheckFailed):
            three_records().check(batch_of(b"one", **{"keys": [b"UA"], **columns}))


def test_a_record_that_is_missing_at_the_end_fails() -> None:
    partition = three_records()
    partition.check(batch_of(b"one", b"two", keys=[b"UA"] * 2, base_offset=0))
    with pytest.raises(CheckFailed, match="3 records acknowledged, 2 consumed"):
        partition.check_end()


def test_each_partition_must_hold_its_records_in_the_order_of_sending() -> None:
    placed = [RecordMetadata("t", 0, 0, 1000), RecordMetadata("t", 1, 0, 1000), RecordMetadata("t", 0, 1, 2000)]
    expected = expected_partitions(FLIGHTS, placed)
    assert expected[0].values == [b"one", b"three"]
    assert expected[1].values == [b"two"]


def test_a_retry_whose_offset_nobody_could_tell_keeps_its_place() -> None:
    placed = [RecordMetadata("t", 0, -1, 1000), RecordMetadata("t", 1, 0, 1000), RecordMetadata("t", 0, 1, 2000)]
    assert expected_partitions(FLIGHTS, placed)[0].record(0).value == b"one"


@pytest.mark.parametrize(
    "placed",
    [
        [RecordMetadata("t", 0, 1, 1000), RecordMetadata("t", 1, 0, 1000), RecordMetadata("t", 0, 0, 2000)],
        [RecordMetadata("t", 0, 0, 1000), RecordMetadata("t", 1, 0, 1000), RecordMetadata("t", 0, 2, 2000)],
        [RecordMetadata("t", 0, 0, 1000), RecordMetadata("t", 1, 0, 1000), RecordMetadata("t", 1, 1, 2000)],
    ],
    ids=["acknowledged out of order", "acknowledged with a gap", "one key in two partitions"],
)
def test_acknowledgements_that_contradict_the_order_of_sending_fail(placed: list[RecordMetadata]) -> None:
    with pytest.raises(CheckFailed):
        expected_partitions(FLIGHTS, placed)


def test_figures_are_computed_without_the_flights_that_have_no_delay() -> None:
    assert FLIGHTS.figures_by_carrier() == {"AA": CarrierFigures(1, None), "UA": CarrierFigures(2, 6.0)}


@pytest.mark.parametrize(
    "found",
    [
        {"AA": CarrierFigures(1, None)},
        {"AA": CarrierFigures(1, None), "UA": CarrierFigures(3, 6.0)},
        {"AA": CarrierFigures(1, None), "UA": CarrierFigures(2, 6.0001)},
        {"AA": CarrierFigures(1, 0.0), "UA": CarrierFigures(2, 6.0)},
    ],
)
def test_figures_of_spark_that_differ_fail(found: dict[str, CarrierFigures]) -> None:
    with pytest.raises(CheckFailed):
        check_figures(found, FLIGHTS.figures_by_carrier())


def test_figures_that_differ_by_rounding_pass() -> None:
    check_figures({"AA": CarrierFigures(1, None), "UA": CarrierFigures(2, 6.0 + 1e-12)}, FLIGHTS.figures_by_carrier())


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
