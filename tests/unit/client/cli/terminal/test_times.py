"""Times and places in a log, as people type them."""

import time as clock
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.cli.terminal import times
from warmlog.points import EARLIEST, LATEST, Point, PointKind


@pytest.fixture(autouse=True)
def zurich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    clock.tzset()
    times._format_second.cache_clear()
    yield
    monkeypatch.undo()
    clock.tzset()
    times._format_second.cache_clear()


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2013-07-01", datetime(2013, 6, 30, 22, tzinfo=UTC)),
        ("2013-07-01T00:00", datetime(2013, 6, 30, 22, tzinfo=UTC)),
        ("2013-01-01T00:00", datetime(2012, 12, 31, 23, tzinfo=UTC)),
        ("2013-07-01 06:30:15.250", datetime(2013, 7, 1, 4, 30, 15, 250_000, tzinfo=UTC)),
        ("2013-07-01T00:00Z", datetime(2013, 7, 1, tzinfo=UTC)),
        ("2013-07-01T02:00+02:00", datetime(2013, 7, 1, tzinfo=UTC)),
    ],
)
def test_a_time_without_an_offset_is_local_and_one_with_an_offset_is_what_it_says(text: str, time: datetime) -> None:
    assert times.parse_time_ms(text) == round(time.timestamp() * 1000)


@pytest.mark.parametrize(
    "text", ["yesterday", "", "2013-13-01", "2013-07-01T25:00", "12:00", "1969-12-31T23:59", "latest", "17"]
)
def test_what_is_no_time_is_refused_with_the_text_that_was_given(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        times.parse_time_ms(text)


def test_digits_alone_are_an_offset_and_after_a_dash_a_tail() -> None:
    assert times.parse_start("0") == Point(PointKind.OFFSET, 0)
    assert times.parse_start("20130701") == Point(PointKind.OFFSET, 20130701)
    assert times.parse_end("17") == Point(PointKind.OFFSET, 17)
    assert times.parse_start("-5") == Point(PointKind.TAIL, 5)


def test_a_dash_and_a_unit_is_a_time_before_now() -> None:
    now_ms = clock.time() * 1000
    assert times.parse_start("-1h").number == pytest.approx(now_ms - 3_600_000, abs=60_000)
    assert times.parse_time_ms("-10m") == pytest.approx(now_ms - 600_000, abs=60_000)


def test_edges_are_words() -> None:
    assert times.parse_start("earliest") == EARLIEST
    assert times.parse_start("latest") == LATEST
    assert times.parse_end("latest") == LATEST
    assert times.parse_edge_or_time("earliest") == "earliest"


@pytest.mark.parametrize("text", ["1e3", "-5x", "-", "99999999999999999999", "9223372036854775808", "٣", "newest"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|at most"):
        times.parse_start(text)


def test_nothing_ends_at_the_earliest_offset() -> None:
    with pytest.raises(ValueError, match="earliest"):
        times.parse_end("earliest")


@pytest.mark.parametrize("text", ["1234567", "-10"])
def test_an_edge_or_a_time_is_neither_an_offset_nor_a_tail(text: str) -> None:
    with pytest.raises(ValueError, match=f"{text!r} is not earliest, latest or a time"):
        times.parse_edge_or_time(text)


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59.9999-12:00", "9999-12-31T23:59Z"])
def test_times_that_no_clock_can_show_are_refused(text: str) -> None:
    for parse in (times.parse_start, times.parse_edge_or_time):
        with pytest.raises(ValueError, match=f"'{text}' is after 9999-12-31"):
            parse(text)


def test_the_notice_names_the_time_in_local_time() -> None:
    assert times.nothing_after(1372636800123) == "no record is at or after 2013-07-01T02:00:00.123+02:00 (local time)"


def test_timestamps_are_written_in_local_time_with_its_offset_and_milliseconds() -> None:
    assert times.format_ms(1372636800123) == "2013-07-01T02:00:00.123+02:00"
    assert times.format_ms(0) == "1970-01-01T01:00:00.000+01:00"


def test_no_timestamp_is_written_as_nothing_and_one_after_the_year_9999_as_digits() -> None:
    assert times.format_ms(-1) == ""
    assert times.format_ms(2**62) == str(2**62)


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(timezone(timedelta(hours=5)))))
def test_what_is_written_is_read_again(time: datetime) -> None:
    time_ms = round(time.replace(microsecond=time.microsecond // 1000 * 1000).timestamp() * 1000)
    assert times.parse_time_ms(times.format_ms(time_ms)) == time_ms
