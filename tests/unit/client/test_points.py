"""Points as users write them: text, numbers, times and mappings; points in time become milliseconds."""

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.points import (
    EARLIEST,
    LARGEST_OFFSET,
    LATEST,
    Point,
    PointKind,
    checked_topics,
    fit_points,
    parse_point,
    parse_time_ms,
    parse_where,
)
from warmlog.times import asked_timestamp, datetime_of, milliseconds_of

NOW_MS = 1_700_000_000_000
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

offsets = st.integers(0, LARGEST_OFFSET)
times_ms = st.integers(-62_135_596_800_000, 253_402_300_799_999)
points = st.one_of(
    st.sampled_from([EARLIEST, LATEST]),
    offsets.map(lambda number: Point(PointKind.OFFSET, number)),
    offsets.map(lambda number: Point(PointKind.TAIL, number)),
    times_ms.map(lambda number: Point(PointKind.TIME, number)),
)
partitions = st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1))


def time_at(ms: int) -> Point:
    return Point(PointKind.TIME, ms)


@given(points)
def test_the_text_of_a_point_is_parsed_as_the_same_point(point: Point) -> None:
    assert parse_point(str(point)) == point
    assert parse_where(str(point)) == point
    assert parse_where(point) == point


@given(st.integers(0, 10**9), st.sampled_from(sorted(UNITS_MS)))
def test_a_dash_and_a_unit_is_a_time_before_now(number: int, unit: str) -> None:
    assert parse_point(f"-{number}{unit}", now_ms=NOW_MS) == time_at(NOW_MS - number * UNITS_MS[unit])


@given(st.text())
def test_any_other_text_is_refused_with_the_text_and_what_is_expected(text: str) -> None:
    try:
        parse_where(text, name="until")
    except ValueError as error:
        assert str(error).startswith(f"until: {text!r}")  # noqa: PT017 - most texts, but not all, are refused
        assert str(error).endswith(" is expected")  # noqa: PT017


@given(st.dictionaries(partitions, points))
def test_both_forms_of_keys_and_all_forms_of_points_mean_the_same(wanted: dict[tuple[str, int], Point]) -> None:
    by_text = {f"{topic}-{partition}": str(point) for (topic, partition), point in wanted.items()}
    assert parse_where(by_text) == parse_where(wanted) == wanted
    assert fit_points(wanted, wanted.keys(), "start", left_out=EARLIEST) == wanted


@given(times_ms, st.integers(-14 * 60, 14 * 60))
def test_a_datetime_and_its_iso_text_are_the_same_time(time_ms: int, minutes: int) -> None:
    zone = timezone(timedelta(minutes=minutes))
    naive = datetime(1970, 1, 1) + timedelta(milliseconds=time_ms)
    expected = time_at(time_ms - minutes * 60_000)
    aware = naive.replace(tzinfo=zone)
    assert parse_where(aware) == parse_point(aware.isoformat()) == expected


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_a_time_without_a_zone_is_local_in_all_its_forms(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        local_ms = round(datetime(2026, 11, 20, 8, tzinfo=ZoneInfo(zone)).timestamp() * 1000)
        forms = [datetime(2026, 11, 20, 8), "2026-11-20T08:00", pd.Timestamp(2026, 11, 20, 8)]
        assert {parse_where(form) for form in forms} == {time_at(local_ms)}
        assert asked_timestamp(datetime(2026, 11, 20, 8)) == parse_time_ms("2026-11-20T08:00", 0) == local_ms
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (-100, 'start: offset -100: 0 to 9223372036854775807 is expected; the text "-100" is the last 100'),
        (2**63, f"start: offset {2**63}: 0 to"),
        (True, "start: True: an offset, a datetime, or text such as earliest, latest or -100 is expected"),
        (1.5, "start: 1.5: an offset"),
        (None, "start: None: an offset"),
        (b"latest", "start: b'latest': an offset"),
        (pd.NaT, "start: NaT: a time is expected"),
        ("yesterday", "start: 'yesterday': earliest, latest, an offset, a tail like -100, or a time like"),
        ("9" * 25, f"an offset or tail of at most {2**63 - 1} is expected"),
        ("-" + "9" * 5000, "an offset or tail of at most"),
        ({0: 5}, """start has 0: ("topic", 0) or "topic-0" is expected for a partition"""),
        ({("orders", "0"): 5}, "start has ('orders', '0'): "),
        ({("orders", True): 5}, "start has ('orders', True): "),
        ({("orders", 0, 1): 5}, "start has ('orders', 0, 1): "),
        ({"orders": 5}, "start has 'orders': "),
        ({"orders-0": 5, ("orders", 0): 5}, "start gives orders-0 twice"),
        ({"orders-0": 5.0}, "start of orders-0: 5.0: an offset"),
        ({"orders-0": -1}, 'start of orders-0: offset -1: 0 to 9223372036854775807 is expected; the text "-1" is the'),
        ({"orders-0": {"orders-0": 1}}, "start of orders-0: {'orders-0': 1}: an offset"),
    ],
)
def test_what_is_no_point_is_refused_with_what_is_expected(where: Any, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_where(where)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (
            ("ordrs", 0),
            "start names ordrs-0, which is not read: a partition of bills, orders is expected; did you mean ",
        ),
        (("zzz", 0), "start names zzz-0, which is not read: a partition of bills, orders is expected"),
        (("orders", 9), "start names orders-9, which is not read: of orders, partitions 0 to 2 can be named"),
        (("orders", -1), "start names orders--1, which is not read: of orders, partitions 0 to 2"),
        (("bills", 0), "start names bills-0, which is not read: of bills, only partition 4 can be named"),
    ],
)
def test_a_partition_that_is_not_read_is_refused_with_what_can_be_named(key: tuple[str, int], message: str) -> None:
    read = [("orders", 0), ("orders", 1), ("orders", 2), ("bills", 4)]
    with pytest.raises(ValueError, match=r"^start names") as caught:
        fit_points({key: EARLIEST}, read, "start", left_out=EARLIEST)
    assert str(caught.value).startswith(message)


def test_partitions_that_a_mapping_leaves_out_get_the_default() -> None:
    read = [("t", 0), ("t", 1)]
    assert fit_points({("t", 1): time_at(5)}, read, "end", left_out=LATEST) == {("t", 0): LATEST, ("t", 1): time_at(5)}
    assert fit_points(EARLIEST, read, "end", left_out=LATEST) == {("t", 0): EARLIEST, ("t", 1): EARLIEST}


def test_a_single_name_is_no_list_of_topics() -> None:
    with pytest.raises(TypeError, match=r"^topics must be a list of names: topics=\['orders'\]$"):
        checked_topics("orders")
    assert checked_topics(["orders"]) == ["orders"]


@pytest.mark.parametrize("given", [5, None, [5], [b"orders"], ["orders", None]])
def test_what_is_no_name_is_refused_as_a_topic(given: Any) -> None:
    with pytest.raises(TypeError, match=r"^(topics must be a list of names|a topic's name must be a str, not )"):
        checked_topics(given)


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
