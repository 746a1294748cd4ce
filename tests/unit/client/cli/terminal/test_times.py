"""Times and places in a log, as people type them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.cli.terminal.times import format_ms, parse_end, parse_instant, parse_start, parse_time


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2013-07-01", datetime(2013, 7, 1, tzinfo=UTC)),
        ("2013-07-01T00:00", datetime(2013, 7, 1, tzinfo=UTC)),
        ("2013-07-01 06:30:15.250", datetime(2013, 7, 1, 6, 30, 15, 250_000, tzinfo=UTC)),
        ("2013-07-01T00:00Z", datetime(2013, 7, 1, tzinfo=UTC)),
        ("2013-07-01T02:00+02:00", datetime(2013, 7, 1, tzinfo=UTC)),
    ],
)
def test_a_time_without_an_offset_is_utc_and_one_with_an_offset_is_what_it_says(text: str, time: datetime) -> None:
    assert parse_time(text) == time
    assert parse_time(text).tzinfo is not None


@pytest.mark.parametrize("text", ["yesterday", "", "2013-13-01", "2013-07-01T25:00", "12:00", "1969-12-31T23:59"])
def test_what_is_no_time_is_refused_with_the_text_that_was_given(text: str) -> None:
    with pytest.raises(ValueError, match=repr(text)):
        parse_time(text)


def test_digits_alone_are_an_offset() -> None:
    assert parse_start("0") == 0
    assert parse_start("20130701") == 20130701
    assert parse_end("17") == 17


def test_edges_are_words() -> None:
    assert parse_start("earliest") == "earliest"
    assert parse_start("latest") == "latest"
    assert parse_end("latest") == "latest"
    assert parse_instant("earliest") == "earliest"


@pytest.mark.parametrize("text", ["-5", "1e3", "99999999999999999999", "9223372036854775808", "٣", "newest"])
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|larger"):
        parse_start(text)


def test_nothing_ends_at_the_earliest_offset() -> None:
    with pytest.raises(ValueError, match="earliest"):
        parse_end("earliest")


def test_an_instant_is_no_offset() -> None:
    with pytest.raises(ValueError, match="1234567"):
        parse_instant("1234567")


def test_timestamps_are_written_in_utc_with_milliseconds() -> None:
    assert format_ms(1372636800123) == "2013-07-01T00:00:00.123Z"
    assert format_ms(0) == "1970-01-01T00:00:00.000Z"


def test_no_timestamp_is_written_as_nothing_and_one_after_the_year_9999_as_digits() -> None:
    assert format_ms(-1) == ""
    assert format_ms(2**62) == str(2**62)


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.just(timezone(timedelta(hours=5)))))
def test_what_is_written_is_read_again(time: datetime) -> None:
    in_ms = time.replace(microsecond=time.microsecond // 1000 * 1000)
    assert parse_time(format_ms(round(in_ms.timestamp() * 1000))) == in_ms
