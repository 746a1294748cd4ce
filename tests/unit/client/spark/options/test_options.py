"""Options of the Spark format: what is understood, what is said of the rest, and the page that is printed from them."""

import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmlog.errors import InvalidConfig
from warmlog.points import EARLIEST, LATEST, Point, PointKind
from warmlog.ranges.read_settings import Projection, ReadSettings, Remedies
from warmlog.ranges.resolve import ReadBounds
from warmlog.spark.options.offsets_json import offsets_document, offsets_of, parse_offsets
from warmlog.spark.options.option_table import OPTIONS, Use
from warmlog.spark.options.options import Given, take_options
from warmlog.spark.options.read_options import (
    PlanLimits,
    ReadOptions,
    Retries,
    TopicChoice,
    parse_read_options,
    parse_stream_options,
    projection_of,
)
from warmlog_protocol.messages import IsolationLevel
from warmlog_protocol.wire.frames import MAX_HEADER_BYTES
from warmlog_transport.responses import TopicPartition

BASE = {"bootstrap.servers": "b:1", "subscribe": "t"}
NOW_MS = 1_700_000_000_000
REMEDIES = Remedies(
    when_lost="load() again, or start later with startingOffsets, or set failOnDataLoss to false",
    when_recreated="load() again, or set failOnDataLoss to false",
    when_damaged="leave these offsets out with startingOffsets and endingOffsets, or set failOnDataLoss to false",
    when_cut="load() again, or set failOnDataLoss to false",
)


def parse(**given: str) -> ReadOptions:
    return parse_read_options(BASE | given, NOW_MS)


def time_at(timestamp_ms: int) -> Point:
    return Point(PointKind.TIME, timestamp_ms)


def test_defaults_are_those_of_a_batch_of_sparks_kafka_connector_except_that_only_what_is_committed_is_read() -> None:
    options = parse()
    assert options.reading.bootstrap == ("b:1",)
    assert options.topics == TopicChoice(("t",))
    assert (options.bounds.starting, options.bounds.ending) == (EARLIEST, LATEST)
    assert options.bounds.fails_on_data_loss
    assert not options.bounds.fails_on_missing_time, "the partition is empty, unlike in a stream"
    assert parse(startingOffsetsByTimestampStrategy="error").bounds.fails_on_missing_time
    assert parse_stream_options(BASE, NOW_MS).bounds.fails_on_missing_time
    assert options.limits == PlanLimits()
    assert options.reading == ReadSettings(
        remedies=REMEDIES, bootstrap=("b:1",), isolation=IsolationLevel.READ_COMMITTED
    )
    assert options.retries == Retries(3, 1000)
    assert projection_of(take_options(BASE, Use.BATCH)) == Projection()


def test_errors_tell_the_user_of_a_stream_what_helps_a_stream() -> None:
    remedies = parse_stream_options(BASE, NOW_MS).reading.remedies
    assert remedies.when_lost == (
        "set failOnDataLoss to false, or start the query with a new checkpoint and startingOffsets"
    )
    assert remedies.when_recreated == remedies.when_lost
    assert remedies.when_cut == "start the query with a new checkpoint and startingOffsets"
    assert "after the damaged batch with a new checkpoint and startingOffsets" in remedies.when_damaged


def test_options_are_known_in_any_case() -> None:
    given = {
        "BOOTSTRAP.servers": "b:1, c , [::1]:9",
        "Subscribe": " x ,y,, x",
        "startingoffsets": '{"x": {"0": 23, "1": -2}, "y": {"0": 0}}',
        "ENDINGOFFSETS": '{"x": {"0": 30, "1": -1}, "y": {"0": 5}}',
        "minpartitions": "7",
        "MAXrecordsPerPartition": "9",
        "INCLUDEHEADERS": "True",
        "failondataloss": "FALSE",
        "maxbytesperpartition": "64m",
        "limit": "5",
        "FETCH.maxbytes": "1m",
        "fetch.inflight": "8",
        "kafkaConsumer.pollTimeoutMs": "5000",
        "fetchOffset.numRetries": "0",
        "fetchOffset.retryIntervalMs": "10ms",
        "verifyChecksums": "false",
        "kafka.isolation.level": "read_uncommitted",
    }
    options = parse_read_options(given, NOW_MS)
    assert options == ReadOptions(
        TopicChoice(("x", "y")),
        ReadBounds(
            {("x", 0): Point(PointKind.OFFSET, 23), ("x", 1): EARLIEST, ("y", 0): Point(PointKind.OFFSET, 0)},
            {("x", 0): Point(PointKind.OFFSET, 30), ("x", 1): LATEST, ("y", 0): Point(PointKind.OFFSET, 5)},
            fails_on_data_loss=False,
            fails_on_missing_time=False,
            loss_remedy="set failOnDataLoss to false",
            missing_time_remedy="set startingOffsetsByTimestampStrategy to latest",
        ),
        PlanLimits(min_partitions=7, max_records=9, max_bytes=64 << 20),
        ReadSettings(
            fetch_bytes=1 << 20,
            in_flight=8,
            deadline_s=5.0,
            verifies_crc=False,
            fails_on_data_loss=False,
            remedies=REMEDIES,
            limit=5,
            isolation=IsolationLevel.READ_UNCOMMITTED,
            bootstrap=("b:1", "c:7400", "[::1]:9"),
        ),
        Retries(0, 10),
    )
    assert projection_of(take_options(given, Use.BATCH)).names[-1] == "headers"


@pytest.mark.parametrize("side", ["starting", "ending"])
def test_a_time_comes_before_times_by_partition_and_these_before_offsets(side: str) -> None:
    offsets = {f"{side}Offsets": '{"t": {"0": 3}}'}
    by_partition = offsets | {f"{side}OffsetsByTimestamp": '{"t": {"0": 5, "1": "-1h", "2": "1970-01-01T00:00:01Z"}}'}
    of_all = by_partition | {f"{side}Timestamp": "7"}
    assert getattr(parse(**offsets).bounds, side) == {("t", 0): Point(PointKind.OFFSET, 3)}
    assert getattr(parse(**by_partition).bounds, side) == {
        ("t", 0): time_at(5),
        ("t", 1): time_at(NOW_MS - 3_600_000),
        ("t", 2): time_at(1000),
    }
    assert getattr(parse(**of_all).bounds, side) == time_at(7)


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("1699999999999", 1_699_999_999_999),
        ("-10m", NOW_MS - 600_000),
        ("-250ms", NOW_MS - 250),
        ("-2d", NOW_MS - 2 * 86_400_000),
        ("2023-11-14T22:13:20Z", NOW_MS),
        ("2023-11-14T23:13:20.5+01:00", NOW_MS + 500),
        ("1969-12-31T23:59:59.999Z", -1),
        ("1900-01-01T00:00Z", -25_567 * 86_400_000),
    ],
)
def test_times_are_milliseconds_iso_or_so_long_before_now(text: str, expected_ms: int) -> None:
    assert parse(startingTimestamp=text).bounds.starting == time_at(expected_ms)


@pytest.mark.parametrize(
    ("zone", "hours"), [("UTC", 0), ("Europe/Berlin", 1), ("+05:30", 5.5), ("-08:00", -8), ("America/New_York", -5)]
)
def test_a_time_without_a_utc_offset_is_in_the_given_zone_and_refused_without_one(zone: str, hours: float) -> None:
    midnight = time_at(NOW_MS - (22 * 3600 + 13 * 60 + 20) * 1000 - round(hours * 3_600_000))
    for options in (
        {"startingTimestamp": "2023-11-14"},
        {"startingOffsets": "2023-11-14T00:00"},
        {"startingOffsetsByTimestamp": '{"t": {"0": "2023-11-14T00:00"}}'},
    ):
        starting = parse(**options, timeZone=zone).bounds.starting
        assert starting in (midnight, {("t", 0): midnight})
        with pytest.raises(InvalidConfig, match=r"without a UTC offset: write one, .* or give the option timeZone"):
            parse(**options)


@pytest.mark.parametrize("zone", ["Mars", "+1", "../etc/passwd", "1"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidConfig, match="a zone like Europe/Berlin, UTC or"):
        parse(startingTimestamp="-10m", timeZone=zone)


def test_a_tail_is_so_many_offsets_before_the_end() -> None:
    bounds = parse(startingOffsets="-100", endingOffsets="-5").bounds
    assert (bounds.starting, bounds.ending) == (Point(PointKind.TAIL, 100), Point(PointKind.TAIL, 5))


def test_offsets_and_times_for_all_partitions_are_those_of_consumers() -> None:
    bounds = parse(startingOffsets="17", endingOffsets="-10m").bounds
    assert (bounds.starting, bounds.ending) == (Point(PointKind.OFFSET, 17), time_at(NOW_MS - 600_000))
    bounds = parse(startingOffsets="2023-11-14T00:00Z").bounds
    assert bounds.starting == parse(startingTimestamp="2023-11-14T00:00:00+00:00").bounds.starting


def test_topics_are_chosen_by_name_by_pattern_or_with_their_partitions() -> None:
    broker = {"bootstrap.servers": "b:1"}
    chosen = parse_read_options({**broker, "assign": '{"x": [3, 0], "y": [1]}'}, NOW_MS).topics
    assert chosen.names == ("x", "y")
    assert [place for place in (("x", 0), ("x", 1), ("x", 3), ("y", 1)) if chosen.includes(place)] == [
        ("x", 0),
        ("x", 3),
        ("y", 1),
    ]
    assert (chosen.named_beyond("x", 4), chosen.named_beyond("x", 3)) == ([], [range(3, 4)])
    assert (chosen.named_beyond("y", 2), chosen.named_beyond("y", 1)) == ([], [range(1, 2)])
    assert parse_read_options({**broker, "subscribePattern": "t.*"}, NOW_MS).topics == TopicChoice(pattern="t.*")
    some = parse(partitions="0, 3-5,9").topics
    assert [number for number in range(12) if some.includes(("t", number))] == [0, 3, 4, 5, 9]
    assert some.named_beyond("t", 10) == []
    assert some.named_beyond("t", 5) == [range(5, 6), range(9, 10)]


def test_kafkas_name_for_the_broker_is_an_alias() -> None:
    kafka = {"kafka.bootstrap.servers": "k:2"}
    assert parse_read_options({"subscribe": "t", **kafka}, NOW_MS).reading.bootstrap == ("k:2",)
    with pytest.raises(InvalidConfig, match=r"bootstrap.servers is given twice, as '.:.' and as '.:.'"):
        parse(**kafka)
    assert parse(**{"kafka.bootstrap.servers": "b:1"}).reading.bootstrap == ("b:1",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"startingOfsets": "earliest"}, "format warmlog has no option startingOfsets: did you mean startingOffsets?"),
        ({"xyzzy": "t"}, "no option xyzzy, only bootstrap.servers, subscribe, subscribePattern, "),
        ({"kafka.bootstrap.server": "b"}, "did you mean kafka.bootstrap.servers?"),
        ({"kafka.max.poll.records": "9"}, "it does not use Kafka's client, leave its settings out"),
        ({"kafka.session.timeout.ms": "9"}, "it does not use Kafka's client, leave its settings out"),
        ({"kafka.group.id": "g"}, "format warmlog joins no consumer group: leave out kafka.group.id, or name"),
        ({"path": "t"}, "load() of format warmlog takes no path: name the topics with the option subscribe"),
        ({"owner": "root", "provider": "warmlog"}, "a table of format warmlog cannot be created, as Spark"),
        ({"subscribe": " , "}, "option subscribe is missing: the topics to read, separated by commas"),
        ({"subscribePattern": "x"}, "options subscribe and subscribePattern are given: give only one of them"),
        ({"subscribe": ",", "subscribePattern": "("}, "options subscribe and subscribePattern are given"),
        ({"partitions": "3-1"}, "option partitions is '3-1': partition numbers like 0,3-7 are expected"),
        ({"bootstrap.servers": "b:x"}, "option bootstrap.servers: address 'b:x' is not HOST:PORT"),
        ({"minPartitions": "0"}, "option minPartitions is '0': a whole number of at least 1 is expected"),
        ({"minPartitions": "many"}, "option minPartitions is 'many': a whole number"),
        ({"failOnDataLoss": "yes"}, "option failOnDataLoss is 'yes': true or false is expected"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "is 'first': error or latest is expected"),
        ({"startingOffsets": "latest"}, "option startingOffsets cannot be latest: a batch cannot start at the latest"),
        ({"endingOffsets": "earliest"}, "option endingOffsets cannot be earliest: a batch cannot end at"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "option startingOffsets gives t-0 the latest: a batch cannot start"),
        ({"endingOffsets": '{"t": {"3": -2}}'}, "option endingOffsets gives t-3 the earliest: a batch cannot end"),
        ({"startingOffsets": '{"t": {"0": -3}}'}, "t-0 has -3: an offset, -2 or -1 is expected"),
        ({"startingOffsets": '{"t": {"0": 1.5}}'}, "t-0 has 1.5, JSON like"),
        ({"startingOffsets": '{"t": {"0": true}}'}, "t-0 has True, JSON like"),
        ({"startingOffsets": '{"t": {"zero": 1}}'}, 'option startingOffsets is \'{"t": {"zero": 1}}\': invalid'),
        ({"startingOffsets": '{"t": {"0": 1, "0": 2}}'}, "a name is given twice"),
        ({"startingOffsets": '{"t": {"0": 1, "00": 2}}'}, "a partition is given twice"),
        ({"startingOffsets": '{"t": 5}'}, "JSON like"),
        (
            {"startingOffsets": "[]"},
            "option startingOffsets is '[]': earliest, latest, an offset, a tail like",
        ),
        ({"endingOffsets": "-10x"}, "2026-11-20T08:00+02:00 or -10m is expected, or JSON like"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970, a time like 2026-11-20T08:00:00Z or -10m is"),
        ({"startingTimestamp": "-100"}, "milliseconds since 1970, a time like 2026-11-20T08:00:00Z or -10m is"),
        ({"endingOffsetsByTimestamp": '{"t": {"0": 1.5}}'}, "t-0 has 1.5: a time is expected"),
        ({"fetchOffset.numRetries": "-1"}, "is '-1': a whole number of at least 0 is expected"),
        ({"fetch.timeoutMs": "2 weeks"}, "a number with one of the units ms, s, m, h or d is expected"),
        (
            {"startingOffsets": "committed"},
            "option startingOffsets is committed: name the consumer group with the option",
        ),
        ({"group": "g"}, "option group has no use without startingOffsets=committed or commitOffsets=true"),
        (
            {"group": "g", "startingOffsets": "committed", "startingTimestamp": "-1h"},
            "option group has no use without startingOffsets=committed",
        ),
        ({"endingOffsets": "committed"}, "earliest, latest, an offset, a tail like -100"),
        (
            {"group": "g", "startingOffsets": "committed", "commitOffsets": "true"},
            "option commitOffsets is for a stream, not for a batch: whether each micro-batch that is done",
        ),
        ({"maxBytesPerPartition": "lots"}, "a size of at least 1 byte like 1048576, 256m or 4 MiB is expected"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(given: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(message)) as caught:
        parse(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "largest", "too_large", "message"),
    [
        ("startingTimestamp", f"{2**63 - 1}", f"{2**63}", f"a time at most {2**63 - 1} ms from 1970 is expected"),
        ("endingTimestamp", "-99999999999d", f"-{2**63}d", f"a time at most {2**63 - 1} ms from 1970 is expected"),
        (
            "startingOffsetsByTimestamp",
            f'{{"t": {{"0": {2**63 - 1}}}}}',
            f'{{"t": {{"0": {2**63}}}}}',
            f"a time at most {2**63 - 1} ms from 1970 is expected",
        ),
        (
            "startingOffsets",
            f'{{"t": {{"0": {2**63 - 1}}}}}',
            f'{{"t": {{"0": {2**63}}}}}',
            f"t-0 has {2**63}: an offset of at most {2**63 - 1} is expected",
        ),
        (
            "endingOffsets",
            f"-{2**63 - 1}",
            f"-{2**63}",
            f"an offset or tail of at most {2**63 - 1} is expected",
        ),
        (
            "endingOffsets",
            f'{{"t": {{"{2**31 - 1}": 0}}}}',
            f'{{"t": {{"{2**31}": 0}}}}',
            f"there is no partition {2**31}, {2**31 - 1} is the largest number",
        ),
        ("partitions", f"0-{2**31 - 1}", f"0-{2**31}", f"partition numbers of at most {2**31 - 1} are expected"),
        ("partitions", "0-9", f"3,0-{'9' * 20}", f"partition numbers of at most {2**31 - 1} are expected"),
        ("minPartitions", f"{2**31 - 1}", f"{2**31}", f"a whole number of at most {2**31 - 1} is expected"),
        ("maxRecordsPerPartition", f"{2**63 - 1}", "9" * 30, f"a whole number of at most {2**63 - 1} is expected"),
        ("limit", f"{2**63 - 1}", f"{2**63}", f"a whole number of at most {2**63 - 1} is expected"),
        ("maxBytesPerPartition", "1000000t", "9" * 30, f"a size of at most {2**63 - 1} bytes is expected"),
        ("fetch.maxBytes", "92m", "93m", "a size of at most 96468992 bytes is expected"),
        ("fetch.maxBytes", "4m", "2g", "a size of at most 96468992 bytes is expected"),
        ("fetch.inFlight", "1000", "1001", "a whole number of at most 1000 is expected"),
        ("fetchOffset.numRetries", "9999", "9" * 30, f"a whole number of at most {2**31 - 1} is expected"),
        ("fetchOffset.retryIntervalMs", "36500d", "36501d", "at most 36500d is expected"),
        ("fetch.timeoutMs", "30d", "9" * 30, "at most 36500d is expected"),
    ],
)
def test_numbers_are_bounded_where_they_are_parsed(name: str, largest: str, too_large: str, message: str) -> None:
    """Behind that, the broker would say that a field of a request is out of bounds, or nobody would say anything."""
    parse(**{name: largest})
    with pytest.raises(InvalidConfig, match=re.escape(f"option {name} is {too_large!r}: {message}")):
        parse(**{name: too_large})


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_numbers_of_a_stream_are_bounded_too(name: str) -> None:
    parse_stream_options(BASE | {name: f"{2**63 - 1}"}, NOW_MS)
    with pytest.raises(InvalidConfig, match=f"option {name} is '{2**63}': a .* of at most {2**63 - 1} "):
        parse_stream_options(BASE | {name: f"{2**63}"}, NOW_MS)


def test_the_largest_fetch_fits_a_frame_with_its_header_and_a_field_of_a_request() -> None:
    reading = parse(**{"fetch.maxBytes": "92m"}).reading
    assert reading.fetch_bytes + MAX_HEADER_BYTES == reading.connection.max_frame_bytes < 2**31


@pytest.mark.parametrize(
    ("assign", "message"),
    [
        (f'{{"t": [0, {2**31}]}}', f"there is no partition {2**31}, {2**31 - 1} is the largest number"),
        ("{}", "no topic is named"),
        ('{"t": []}', "topic t has the partitions []"),
        ('{"t": [-1]}', "topic t has the partitions [-1]"),
        ('{"t": 3}', "not iterable"),
        ("t", "Expecting value"),
    ],
)
def test_an_assignment_of_another_form_is_refused(assign: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(message)):
        parse_read_options({"bootstrap.servers": "b:1", "assign": assign}, NOW_MS)


@pytest.mark.parametrize("blank", ["", " \t"])
@pytest.mark.parametrize("use", [Use.BATCH, Use.STREAM, Use.WRITE])
def test_an_option_that_is_given_blank_is_no_option_left_out(use: Use, blank: str) -> None:
    """As from an unset variable in a job's template: `failOnDataLoss` must not become false by that."""
    for option in OPTIONS.values():
        for name in (option.name, *option.aliases) if option.use & use else ():
            with pytest.raises(InvalidConfig, match=re.escape(f"option {option.name} is empty: {option.sentence}")):
                take_options({name.lower(): blank}, use)


def test_a_missing_broker_is_named_as_such() -> None:
    with pytest.raises(InvalidConfig, match=r"option bootstrap\.servers is missing: host:port of a broker"):
        parse_read_options({"subscribe": "t"}, NOW_MS)


def test_what_is_read_cannot_be_said_twice() -> None:
    with pytest.raises(InvalidConfig, match="option assign names the partitions already"):
        parse_read_options({"bootstrap.servers": "b:1", "assign": '{"t": [0]}', "partitions": "0"}, NOW_MS)


def test_an_option_of_a_batch_is_refused_where_it_is_not_for(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidConfig, match="option endingOffsets is for a batch, not for a stream: where to end"):
        take_options({"endingOffsets": "latest"}, Use.STREAM)
    with pytest.raises(
        InvalidConfig, match="option subscribe is for a batch and a stream, not for writing: the topics"
    ):
        take_options({"subscribe": "t"}, Use.WRITE)
    assert not caplog.records


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("1", 1), ("64k", 65_536), ("4 MiB", 4 << 20), ("1g", 1 << 30), ("10B", 10)]
)
def test_sizes_have_units(text: str, size_bytes: int) -> None:
    assert Given({"fetch.maxBytes": text}).size_bytes("fetch.maxBytes") == size_bytes


@pytest.mark.parametrize("text", ["0", "-1", "m", "1.5m", "4 apples"])
def test_sizes_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="a size of at least 1 byte like 1048576, 256m or 4 MiB is expected"):
        Given({"fetch.maxBytes": text}).size_bytes("fetch.maxBytes")


def describe_options() -> str:
    """Return the table as Markdown: a heading for each option, so that it can be found and linked."""
    parts = []
    for option in OPTIONS.values():
        uses = ", ".join(
            use.name.lower() for use in (Use.BATCH, Use.STREAM, Use.WRITE) if use in option.use and use.name
        )
        names = " or ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = f" · *default* `{option.default}`" if option.default else ""
        parts.append(f"## {names}\n\n{option.sentence}\n\n*for* {uses} · *type* {option.kind}{default}\n")
    return "\n".join(parts)


def test_the_description_names_every_option() -> None:
    page = describe_options()
    assert all(f"`{option.name}`" in page for option in OPTIONS.values())


PAGE = Path(__file__).parents[5] / "docs" / "spark-options.md"


def test_the_page_says_what_the_table_says() -> None:
    assert PAGE.read_text() == f'# Options of format("warmlog") in Spark\n\n{describe_options()}'


partitions = st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 300))
offsets_by_partition = st.dictionaries(partitions, st.integers(-2, 2**63 - 1), max_size=20)


@given(offsets_by_partition, st.randoms(use_true_random=False))
def test_equal_offsets_have_equal_text_in_any_order(offsets: dict[TopicPartition, int], shuffle: random.Random) -> None:
    items = list(offsets.items())
    shuffle.shuffle(items)
    text = json.dumps(offsets_document(dict(items)))
    assert text == json.dumps(offsets_document(offsets))
    assert parse_offsets(text) == offsets
    assert offsets_of(json.loads(text)) == offsets_of(offsets_document(offsets)) == offsets


def test_topics_are_sorted_by_name_and_partitions_by_number() -> None:
    document = offsets_document({("b", 10): 1, ("b", 9): 2, ("a", 0): 3})
    assert json.dumps(document) == '{"a": {"0": 3}, "b": {"9": 2, "10": 1}}'


@pytest.mark.parametrize(
    "text", ["", "[]", "5", '{"t": 5}', '{"t": {"x": 1}}', '{"t": {"-1": 1}}', '{"t": {"0": "1"}}']
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="JSON like"):
        parse_offsets(text)
