"""Points in time become milliseconds."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from warmlog.times import asked_timestamp, datetime_of, milliseconds_of


def test_a_datetime_without_a_zone_is_utc() -> None:
    assert milliseconds_of(datetime(2013, 7, 1)) == 1_372_636_800_000
    assert milliseconds_of(datetime(2013, 7, 1, tzinfo=UTC)) == 1_372_636_800_000


def test_a_zone_counts() -> None:
    assert milliseconds_of(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))) == 0


def test_a_fraction_of_a_millisecond_rounds_up_so_that_nothing_earlier_is_found() -> None:
    assert milliseconds_of(datetime(1970, 1, 1, 0, 0, 0, 1)) == 1
    assert milliseconds_of(datetime(1970, 1, 1, 0, 0, 0, 1000)) == 1
    assert milliseconds_of(datetime(1969, 12, 31, 23, 59, 59, 999_001)) == 0


def test_times_before_1970_are_negative() -> None:
    assert milliseconds_of(datetime(1969, 12, 31, 23, 59, 59)) == -1000


def test_milliseconds_become_a_datetime_and_come_back() -> None:
    assert milliseconds_of(datetime_of(1_372_636_800_123)) == 1_372_636_800_123


@pytest.mark.parametrize("before_ms", [1, 2, 3, 1_000_000])
def test_a_broker_is_not_asked_for_a_time_before_1970_which_would_be_a_name(before_ms: int) -> None:
    assert asked_timestamp(datetime(1970, 1, 1) - timedelta(milliseconds=before_ms)) == 0


@pytest.mark.parametrize("at", ["yesterday", -5, 1.5, None])
def test_what_is_no_point_in_a_log_is_refused(at: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        asked_timestamp(at)  # type: ignore[arg-type]
