"""The demo's checks find what must not be: a record lost, twice, changed or out of place."""

import pytest
from demo.carriers import check_figures
from demo.checks import CheckFailed, ExpectedPartition, expected_partitions
from demo.flights import CarrierFigures, Flights

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
