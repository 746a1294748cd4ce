"""The options of one load() or stream, parsed.

Starting and ending points have three forms each, with Kafka's precedence: the time for all partitions, times by
partition, offsets. A batch cannot start at the latest offset or end at the earliest.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from functools import partial
from typing import cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from warmlog.points import EARLIEST, LATEST, Point, PointKind, Points, offset_point, parse_point, parse_time_ms
from warmlog.ranges.offset_range import LARGEST_PARTITION
from warmlog.ranges.read_settings import KAFKA_COLUMNS, Projection, ReadSettings, Remedies
from warmlog.ranges.resolve import ReadBounds
from warmlog.spark.options.offsets_json import parse_assignment, parse_by_partition, parse_offsets
from warmlog.spark.options.option_table import Use
from warmlog.spark.options.options import Given, missing, parse_size_bytes, take_options
from warmlog.spark.options.schema import parse_columns
from warmlog_protocol.errors import InvalidConfig
from warmlog_protocol.messages import IsolationLevel
from warmlog_protocol.wire.frames import MAX_HEADER_BYTES
from warmlog_transport.responses import TopicPartition

LOSS_REMEDY = "set failOnDataLoss to false"
_REMEDIES = Remedies(
    when_lost=f"load() again, or start later with startingOffsets, or {LOSS_REMEDY}",
    when_cut=f"load() again, or {LOSS_REMEDY}",
    when_recreated=f"load() again, or {LOSS_REMEDY}",
    when_damaged=f"leave these offsets out with startingOffsets and endingOffsets, or {LOSS_REMEDY}",
)
_CONTINUE = f"{LOSS_REMEDY}, or start the query with a new checkpoint and startingOffsets"
_STREAM_REMEDIES = Remedies(
    when_lost=_CONTINUE,
    when_cut="start the query with a new checkpoint and startingOffsets",
    when_recreated=_CONTINUE,
    when_damaged=f"{LOSS_REMEDY}, or start the query after the damaged batch with a new checkpoint and startingOffsets",
)
_ISOLATION = ("read_uncommitted", "read_committed")
_COMMITTED = "committed"
"""Of startingOffsets. What is committed is known only when ranges are planned; until then the start is the earliest."""
_CHOICES = ("assign", "subscribe", "subscribePattern")
_LARGEST_INT = 2**31 - 1
"""The most tasks that Spark can count."""
_MOST_IN_FLIGHT = 1000
_MOST_FETCH_BYTES = ReadSettings().connection.max_frame_bytes - MAX_HEADER_BYTES
"""So that the response fits into a frame, with any number of aborted transactions in its header."""
_NUMBERS = re.compile(r"(\d+)(?:\s*-\s*(\d+))?")

TASK_BYTES = 256 * 1024 * 1024
TASK_RECORDS = 2_000_000


@dataclass(frozen=True)
class PlanLimits:
    """Bounds of a plan; None if the user did not set one.

    `max_bytes` is a target, which a large stored batch exceeds. `max_records`, in offsets, is exact.
    """

    max_bytes: int = TASK_BYTES
    max_records: int | None = None
    min_partitions: int | None = None

    @property
    def target_records(self) -> int:
        return self.max_records or TASK_RECORDS


@dataclass(frozen=True)
class TopicChoice:
    """Which partitions are read: exactly one of the first three names the topics."""

    names: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    partitions: tuple[range, ...] = ()
    """Only these of every topic; empty for all."""

    def includes(self, tp: TopicPartition) -> bool:
        """Whether this partition of a chosen topic is read."""
        topic, partition = tp
        if self.assigned:
            return partition in self.assigned[topic]
        return not self.partitions or any(partition in numbers for numbers in self.partitions)

    def named_beyond(self, topic: str, count: int) -> list[range]:
        """Return the partitions named by number that `topic`, which has `count`, does not have."""
        named = [range(number, number + 1) for number in self.assigned[topic]] if self.assigned else self.partitions
        return [range(max(numbers.start, count), numbers.stop) for numbers in named if numbers.stop > count]


@dataclass(frozen=True)
class Retries:
    count: int = 3
    interval_ms: int = 1000


@dataclass(frozen=True)
class GroupUse:
    """The consumer group whose offsets are used: to start, as startingOffsets=committed says, or to commit."""

    name: str
    is_start: bool
    commits: bool


@dataclass(frozen=True)
class Admission:
    """Bounds of a micro-batch; None for no bound."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = 15 * 60_000
    """How long `min_offsets` may delay a micro-batch."""
    max_bytes: int | None = None


@dataclass(frozen=True)
class ReadOptions:
    """The options of one batch, checked."""

    topics: TopicChoice
    bounds: ReadBounds
    limits: PlanLimits = PlanLimits()
    reading: ReadSettings = ReadSettings()  # noqa: RUF009 - frozen
    retries: Retries = Retries()
    group: GroupUse | None = None


@dataclass(frozen=True)
class StreamOptions(ReadOptions):
    is_start_counted: bool = False
    """Whether the start counts back from the end or from now, and so is another one each time."""
    admission: Admission = Admission()


def parse_read_options(given: Mapping[str, str], now_ms: int) -> ReadOptions:
    """Parse the options of a batch; relative times count from `now_ms`. InvalidConfig for the first bad one."""
    options = take_options(given, Use.BATCH)
    starting = _checked("start", options, _points(options, "starting", now_ms, EARLIEST), refused=LATEST)
    ending = _checked("end", options, _points(options, "ending", now_ms, LATEST), refused=EARLIEST)
    return _read_options(options, starting, ending, _REMEDIES, when_missing="latest")


def parse_stream_options(given: Mapping[str, str], now_ms: int) -> StreamOptions:
    """Parse the options of a stream; relative times count from `now_ms`. InvalidConfig for the first bad one.

    A stream starts at the latest offset by default.
    """
    options = take_options(given, Use.STREAM)
    starting = _points(options, "starting", now_ms, LATEST)
    is_tail = isinstance(starting, Point) and starting.kind is PointKind.TAIL
    admission = Admission(
        max_offsets=options.number("maxOffsetsPerTrigger"),
        min_offsets=options.number("minOffsetsPerTrigger"),
        max_delay_ms=options.duration_ms("maxTriggerDelay"),
        max_bytes=options.parsed("maxBytesPerTrigger", parse_size_bytes),
    )
    return StreamOptions(
        **vars(_read_options(options, starting, LATEST, _STREAM_REMEDIES, when_missing="error")),
        is_start_counted=is_tail or starting != _points(options, "starting", now_ms + 1, LATEST),
        admission=admission,
    )


def _read_options(
    options: Given, starting: Points, ending: Points, remedies: Remedies, *, when_missing: str
) -> ReadOptions:
    """Return what a batch and a stream have in common; `remedies` are for the errors of tasks.

    `when_missing` is the default of startingOffsetsByTimestampStrategy.
    """
    strategy = "startingOffsetsByTimestampStrategy"
    if strategy in options:
        when_missing = options.one_of(strategy, ("error", "latest"))
    fails_on_data_loss = options.boolean("failOnDataLoss")
    bounds = ReadBounds(
        starting=starting,
        ending=ending,
        starting_name=_points_name(options, "starting"),
        ending_name=_points_name(options, "ending"),
        fails_on_data_loss=fails_on_data_loss,
        fails_on_missing_time=when_missing == "error",
        loss_remedy=LOSS_REMEDY,
        missing_time_remedy=f"set {strategy} to latest",
    )
    reading = ReadSettings(
        fetch_bytes=options.size_bytes("fetch.maxBytes", _MOST_FETCH_BYTES),
        in_flight=options.number("fetch.inFlight", _MOST_IN_FLIGHT) or 1,
        deadline_s=options.duration_ms("fetch.timeoutMs") / 1000,
        verifies_crc=options.boolean("verifyChecksums"),
        fails_on_data_loss=fails_on_data_loss,
        remedies=remedies,
        isolation=IsolationLevel[options.one_of("isolation.level", _ISOLATION).upper()],
        limit=options.number("limit"),
        bootstrap=options.addresses("bootstrap.servers"),
        connection=options.connection(ReadSettings.connection),
    )
    return ReadOptions(
        topics=_topic_choice(options),
        bounds=bounds,
        limits=PlanLimits(
            max_bytes=options.size_bytes("maxBytesPerPartition"),
            max_records=options.number("maxRecordsPerPartition"),
            min_partitions=options.number("minPartitions", _LARGEST_INT),
        ),
        reading=reading,
        retries=Retries(
            options.count("fetchOffset.numRetries", _LARGEST_INT), options.duration_ms("fetchOffset.retryIntervalMs")
        ),
        group=_group_use(options),
    )


def _topic_choice(options: Given) -> TopicChoice:
    """Return which partitions to read. InvalidConfig unless exactly one option names the topics."""
    given = [name for name in _CHOICES if name in options]
    if not given:
        raise missing("subscribe")
    if len(given) > 1:
        raise InvalidConfig(f"options {' and '.join(given)} are given: give only one of them")
    names = options.names("subscribe")
    if "subscribe" in options and not names:
        raise missing("subscribe")
    assigned = options.parsed("assign", parse_assignment) or {}
    if assigned and "partitions" in options:
        raise InvalidConfig("option assign names the partitions already: leave out the option partitions")
    return TopicChoice(
        names=names or tuple(assigned),
        pattern=options.parsed("subscribePattern", _pattern) or "",
        assigned=assigned,
        partitions=options.parsed("partitions", _number_ranges) or (),
    )


def _group_use(options: Given) -> GroupUse | None:
    """Return how the option group is used. InvalidConfig if it is missing, or has no use."""
    is_start = _starts_where_committed(options)
    commits = options.boolean("commitOffsets")
    name = options.text("group")
    if name is None and (is_start or commits):
        what = "startingOffsets is committed" if is_start else "commitOffsets is true"
        raise InvalidConfig(f"option {what}: name the consumer group with the option group")
    if name is None:
        return None
    if not is_start and not commits:
        raise InvalidConfig("option group has no use without startingOffsets=committed or commitOffsets=true")
    return GroupUse(name, is_start, commits)


def _starts_where_committed(options: Given) -> bool:
    has_time = "startingTimestamp" in options or "startingOffsetsByTimestamp" in options
    return not has_time and (options.text("startingOffsets") or "").strip().lower() == _COMMITTED


def projection_of(options: Given) -> Projection:
    """Return the columns of a load() without a schema."""
    chosen = options.parsed("columns", parse_columns)
    if chosen is None:
        return Projection((*KAFKA_COLUMNS, "headers") if options.boolean("includeHeaders") else KAFKA_COLUMNS)
    if "includeHeaders" in options:
        raise InvalidConfig("option columns names all columns: leave out the option includeHeaders")
    return chosen


def _points_name(options: Given, side: str) -> str:
    """Return the option that gives points for each partition, as errors name it."""
    by_time = f"{side}OffsetsByTimestamp"
    return f"option {by_time if by_time in options else f'{side}Offsets'}"


def _points(options: Given, side: str, now_ms: int, default: Point) -> Points:
    zone = options.parsed("timeZone", _zone)
    time_ms = options.parsed(f"{side}Timestamp", lambda text: parse_time_ms(_dated(text, zone), now_ms))
    if time_ms is not None:
        return Point(PointKind.TIME, time_ms)
    times = options.parsed(f"{side}OffsetsByTimestamp", partial(_times, now_ms=now_ms, zone=zone))
    if times is not None:
        return times
    if f"{side}Offsets" not in options:
        return default
    if side == "starting" and _starts_where_committed(options):
        return EARLIEST
    points = options.parsed(f"{side}Offsets", partial(_offsets, now_ms=now_ms, zone=zone))
    assert points is not None
    return points


def _dated(text: str, zone: tzinfo | None) -> str:
    """Return a time in ISO 8601 with its UTC offset, and any other text as it is; ValueError if the zone is unknown."""
    word = text.strip()
    try:
        when = None if word.lstrip("-").isdecimal() else datetime.fromisoformat(word)
    except ValueError:
        return text
    if when is None or when.tzinfo is not None:
        return text
    if zone is None:
        raise ValueError(
            "a time without a UTC offset: write one, as in 2026-11-20T08:00+01:00, or give the option timeZone, as "
            'spark.conf.get("spark.sql.session.timeZone")'
        )
    return when.replace(tzinfo=zone).isoformat()


def _zone(text: str) -> tzinfo:
    try:
        return ZoneInfo(text) if text[:1] not in "+-" else cast("tzinfo", datetime.strptime(text, "%z").tzinfo)
    except (ValueError, ZoneInfoNotFoundError, OSError):
        raise ValueError("a zone like Europe/Berlin, UTC or +01:00 is expected") from None


def _offsets(text: str, now_ms: int, zone: tzinfo | None) -> Points:
    if not text.strip().startswith("{"):
        dated = _dated(text, zone)
        try:
            return parse_point(dated, now_ms=now_ms)
        except ValueError as error:
            expected = str(error).removeprefix(f"{text!r}: ")
            raise ValueError(f'{expected}, or JSON like {{"topic": {{"0": 23, "1": -2}}}}') from None
    points = {}
    for tp, number in parse_offsets(text).items():
        try:
            points[tp] = offset_point(number)
        except ValueError as error:
            raise ValueError(f"{tp[0]}-{tp[1]} has {number}: {error}") from None
    return points


def _times(text: str, now_ms: int, zone: tzinfo | None) -> Points:
    points = {}
    for (topic, partition), value in parse_by_partition(text).items():
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"{topic}-{partition} has {value!r}: a time is expected")
        points[topic, partition] = Point(PointKind.TIME, parse_time_ms(_dated(str(value), zone), now_ms))
    return points


def _checked(verb: str, options: Given, points: Points, *, refused: Point) -> Points:
    """Return `points`, unless a batch cannot `verb` at them."""
    name = f"{verb}ingOffsets"
    reason = f"a batch cannot {verb} at the {refused.kind.value} offset"
    if points == refused and name in options:
        raise InvalidConfig(f"option {name} cannot be {refused.kind.value}: {reason}")
    for (topic, partition), point in () if isinstance(points, Point) else points.items():
        if point == refused:
            raise InvalidConfig(f"option {name} gives {topic}-{partition} the {refused.kind.value}: {reason}")
    return points


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{error}; a Python regular expression is expected") from None
    return text


def _number_ranges(text: str) -> tuple[range, ...]:
    numbers = []
    for part in text.split(","):
        found = _NUMBERS.fullmatch(part.strip())
        if found is None or int(found[2] or found[1]) < int(found[1]):
            raise ValueError("partition numbers like 0,3-7 are expected")
        numbers.append(range(int(found[1]), int(found[2] or found[1]) + 1))
        if numbers[-1][-1] > LARGEST_PARTITION:
            raise ValueError(f"partition numbers of at most {LARGEST_PARTITION} are expected")
    return tuple(numbers)
