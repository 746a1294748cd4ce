"""Where reading starts and ends, as users write it in Python, at the command line and in Spark's options.

==============================  ====================================================================================
`earliest`, `latest`            the first record, the end of what may be read
`17`                            an offset
`-100`                          a tail: in each partition, 100 offsets before its end at the time of the lookup
`-10m`                          a time: 10 minutes before now; units are ms, s, m, h and d
`2026-11-20T08:00:00Z`          a time in ISO 8601; without a UTC offset it is local time, that of the process, and in
                                Spark of the zone that the option timeZone names
==============================  ====================================================================================

A time is the first record at or after it, or the end if there is none; as in Kafka, the end of a transaction counts as
a record of the moment when it ended, whatever timestamps its records have. In Python (`parse_where`) an int is an
offset and never negative, a datetime is a time, and a mapping has a point for each partition: the keys are `("orders",
0)` or `"orders-0"`. Spark's options by partition (`offset_point`, `parse_time_ms`) follow Kafka: in offsets -2 is the
earliest and -1 the latest, and the number of a time is milliseconds since 1970.
"""

import re
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import NamedTuple, Protocol, SupportsIndex

from warmlog.texts import checked_text
from warmlog.times import datetime_of, milliseconds_of
from warmlog_protocol.errors import did_you_mean
from warmlog_transport.responses import TopicPartition as TopicPartition

LARGEST_OFFSET = 2**63 - 1

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]+)\s*([a-z]+)")
_NUMBER = re.compile(r"-?[0-9]+")
_SHIFT = re.compile(r"\s*([+-][0-9]{1,30})\s*")
_PARTITION = re.compile(r"(.+)-([0-9]{1,10})", re.DOTALL)
_MOST_MS_FROM_1970 = 2**63 - 1


class PointKind(Enum):
    """What the number of a Point counts."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TAIL = "tail"
    TIME = "time"


class Point(NamedTuple):
    """A point in a log: an end, an offset, so many offsets before the end, or milliseconds since 1970."""

    kind: PointKind
    number: int = 0

    def __str__(self) -> str:
        """Return the text that `parse_point` reads as this point; a time after the year 9999 as milliseconds."""
        match self.kind:
            case PointKind.OFFSET:
                return str(self.number)
            case PointKind.TAIL:
                return f"-{self.number}"
            case PointKind.TIME:
                try:
                    return datetime_of(self.number).isoformat(timespec="milliseconds")
                except OverflowError:
                    return f"{self.number} ms after 1970"
        return str(self.kind.value)


EARLIEST = Point(PointKind.EARLIEST)
LATEST = Point(PointKind.LATEST)
_EDGES = {"earliest": EARLIEST, "latest": LATEST}


class Shift(NamedTuple):
    """So many offsets after what a group has committed, or before it."""

    by: int


Target = Point | Shift
"""What a reset goes to."""

Points = Point | Mapping[TopicPartition, Point]
"""The same point for all partitions, or one for each."""


class PointOfEach(Protocol):
    """A mapping from partitions, ("orders", 0) or "orders-0", to points. Unlike Mapping's, its keys are covariant."""

    def items(self) -> Iterable[tuple[TopicPartition | str, str | int | datetime | Point]]: ...


Where = str | int | datetime | Point | PointOfEach
"""A point as users of the Python API give it, for all partitions or for each; see the module."""


def parse_where(where: object, *, name: str = "start") -> Points:
    """Return the points of a `Where`; times without a zone are local. ValueError begins with `name`."""
    if not isinstance(where, Mapping):
        return _point(where, name)
    points: dict[TopicPartition, Point] = {}
    for key, value in where.items():
        topic, partition = parse_partition(key, name)
        if (topic, partition) in points:
            raise ValueError(f"{name} gives {topic}-{partition} twice")
        points[topic, partition] = _point(value, f"{name} of {topic}-{partition}")
    return points


def _point(value: object, name: str) -> Point:
    if isinstance(value, Point):
        return value
    try:
        if isinstance(value, datetime):
            return Point(PointKind.TIME, milliseconds_of(value))
        if isinstance(value, str):
            return parse_point(value)
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise ValueError(f"{value!r}: an offset, a datetime, or text such as earliest, latest or -100 is expected")
        return Point(PointKind.OFFSET, checked_offset(value))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def parse_partition(key: object, name: str) -> TopicPartition:
    """Return the partition of ("orders", 0) or "orders-0"; ValueError, which begins with `name`, for anything else."""
    if isinstance(key, str) and (found := _PARTITION.fullmatch(key)):
        key = found[1], int(found[2])
    match key:
        case (str(topic), int(partition)) if not isinstance(partition, bool) and partition.bit_length() < 32:
            return topic, partition
    raise ValueError(f'{name} has {key!r}: ("topic", 0) or "topic-0" is expected for a partition')


def fit_points(
    points: Points, partitions: Collection[TopicPartition], name: str, *, left_out: Point | None
) -> dict[TopicPartition, Point]:
    """Return the point of each partition that is read; `left_out` for those that a mapping leaves out, None: none.

    ValueError if a mapping names a partition that is not read.
    """
    if isinstance(points, Point):
        return dict.fromkeys(partitions, points)
    if unread := sorted(points.keys() - set(partitions)):
        raise ValueError(f"{name} names {_unread(unread[0], partitions)}")
    if left_out is None:
        return dict(points)
    return {partition: points.get(partition, left_out) for partition in partitions}


def _unread(named: TopicPartition, partitions: Collection[TopicPartition]) -> str:
    topic, partition = named
    topics = sorted({name for name, _ in partitions})
    what = f"{topic}-{partition}, which is not read"
    if topic in topics:
        numbers = sorted(number for name, number in partitions if name == topic)
        is_gapless = numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1
        listed = f"{numbers[0]} to {numbers[-1]}" if is_gapless else ", ".join(map(str, numbers))
        return f"{what}: of {topic}, {'partitions' if len(numbers) > 1 else 'only partition'} {listed} can be named"
    return f"{what}: a partition of {', '.join(topics) or 'no topic'} is expected{did_you_mean(topic, topics)}"


def checked_topics(topics: Sequence[str]) -> Sequence[str]:
    """Return `topics`. TypeError for a single name, whose letters would be taken as names, and for other types."""
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise TypeError(f"topics must be a list of names: topics=[{topics!r}]")
    return [checked_topic(topic) for topic in topics]


def checked_topic(name: str) -> str:
    return checked_text(name, "a topic's name")


def checked_offset(offset: object) -> int:
    """Return an offset; ValueError unless it is a whole number that an offset can be."""
    if isinstance(offset, bool) or not isinstance(offset, SupportsIndex):
        raise ValueError(f"offset {offset!r}: a whole number is expected")
    number = offset.__index__()
    if not 0 <= number <= LARGEST_OFFSET:
        tail = f'; the text "{number}" is the last {-number}' if number < 0 else ""
        raise ValueError(f"offset {number}: 0 to {LARGEST_OFFSET} is expected{tail}")
    return number


def parse_point(text: str, *, now_ms: int | None = None) -> Point:
    """Parse `earliest`, `latest`, an offset, a tail or a time; ValueError, with the text, says what is expected.

    A time without a UTC offset is local; a relative one counts from `now_ms`, or from now.
    """
    word = text.strip()
    if (edge := _EDGES.get(word.lower())) is not None:
        return edge
    if _NUMBER.fullmatch(word):
        if len(word) > 30 or abs(int(word)) > LARGEST_OFFSET:
            raise ValueError(f"{text!r}: an offset or tail of at most {LARGEST_OFFSET} is expected")
        return Point(PointKind.TAIL, -int(word)) if word.startswith("-") else Point(PointKind.OFFSET, int(word))
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    try:
        return Point(PointKind.TIME, _bounded(_moment(word, now_ms)))
    except ValueError:
        raise ValueError(
            f"{text!r}: earliest, latest, an offset, a tail like -100, or a time like 2026-11-20T08:00Z, "
            f"2026-11-20T08:00+02:00 or -10m is expected"
        ) from None


def parse_target(text: str) -> Target:
    """Parse what a reset goes to: as `parse_point`, but a number with a sign is a shift, and not a tail."""
    if found := _SHIFT.fullmatch(text):
        shift = Shift(int(found[1]))
        if abs(shift.by) > LARGEST_OFFSET:
            raise ValueError(f"{text!r} is more than any offset: at most {LARGEST_OFFSET} is expected")
        return shift
    try:
        return parse_point(text)
    except ValueError as error:
        raise ValueError(str(error).replace("a tail like -100", "a shift like +100 or -100")) from None


def offset_point(offset: int) -> Point:
    """Return an offset as Kafka writes it: -2 is the earliest, -1 the latest. ValueError says what is expected."""
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < -2:
        raise ValueError("an offset, -2 or -1 is expected")
    if offset > LARGEST_OFFSET:
        raise ValueError(f"an offset of at most {LARGEST_OFFSET} is expected")
    return {-2: EARLIEST, -1: LATEST}.get(offset, Point(PointKind.OFFSET, offset))


def parse_time_ms(text: str, now_ms: int) -> int:
    """Parse a time as milliseconds since 1970, negative before; as `parse_point`. ValueError says what is expected."""
    word = text.strip()
    try:
        time_ms = int(word) if word.isdecimal() else _moment(word, now_ms)
    except ValueError:
        raise ValueError("milliseconds since 1970, a time like 2026-11-20T08:00:00Z or -10m is expected") from None
    return _bounded(time_ms)


def _bounded(time_ms: int) -> int:
    if abs(time_ms) > _MOST_MS_FROM_1970:
        raise ValueError(f"a time at most {_MOST_MS_FROM_1970} ms from 1970 is expected")
    return time_ms


def _moment(word: str, now_ms: int) -> int:
    """The milliseconds of a time in ISO 8601 or relative to now; ValueError for anything else."""
    if word.startswith("-") and not word[1:].isdecimal():
        return now_ms - parse_duration_ms(word[1:])
    return milliseconds_of(datetime.fromisoformat(word))


def offset_of(point: Point, earliest: int, latest: int, at_time: int | None) -> int:
    """Return the offset of `point` in a log from `earliest` to `latest`; an offset that it does not have as it is.

    `at_time` is what the broker has found for `looked_up_ms`, None if there is no such record.
    """
    match point.kind:
        case PointKind.OFFSET:
            return point.number
        case PointKind.TAIL:
            return max(earliest, latest - point.number)
        case PointKind.LATEST:
            return latest
        case PointKind.TIME if looked_up_ms(point) is not None:
            return latest if at_time is None else at_time
    return earliest


def looked_up_ms(point: Point) -> int | None:
    """Return the time to ask the broker for, None for other points.

    A time before 1970 is the start of the log: to the broker a negative number is a special offset such as -1.
    """
    return point.number if point.kind is PointKind.TIME and point.number >= 0 else None


def parse_duration_ms(text: str) -> int:
    """Parse `15m`, `200ms` or a number of milliseconds. ValueError says what is expected."""
    word = text.strip().lower()
    found = _DURATION.fullmatch(word if not word.isdecimal() else f"{word}ms")
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError("a number with one of the units ms, s, m, h or d is expected")
    return int(found[1]) * _UNITS_MS[found[2]]
