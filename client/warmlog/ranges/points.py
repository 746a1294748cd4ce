"""Where reading starts and ends, as users write it: an end of the log, an offset, a tail, or a time.

==============================  ====================================================================================
`earliest`, `latest`            the first record, the end of what may be read
`-100`                          a tail: 100 offsets before the end
`1700000000000`                 a time: milliseconds since 1970
`2026-11-20T08:00:00Z`          a time in ISO 8601; without a zone it is UTC
`-10m`                          a time: 10 minutes before now; units are ms, s, m, h and d
==============================  ====================================================================================

Offsets and times are parsed by different functions, as a number can be either.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from warmlog.cluster.responses import TopicPartition
from warmlog.ranges.offset_range import LARGEST_OFFSET
from warmlog.times import milliseconds_of

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*([a-z]+)")
_TAIL = re.compile(r"-\d+")
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


EARLIEST = Point(PointKind.EARLIEST)
LATEST = Point(PointKind.LATEST)

Points = Point | Mapping[TopicPartition, Point]
"""The same point for all partitions, or one for each."""


def parse_offset(text: str) -> Point:
    """Parse `earliest`, `latest` or a tail. ValueError says what is expected."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return EARLIEST if word == "earliest" else LATEST
    if _TAIL.fullmatch(word):
        if -int(word) > LARGEST_OFFSET:
            raise ValueError(f"a tail of at most {LARGEST_OFFSET} offsets is expected")
        return Point(PointKind.TAIL, -int(word))
    raise ValueError("earliest, latest or a tail like -100 is expected")


def offset_point(offset: int) -> Point:
    """Return an offset as Kafka writes it: -2 is the earliest, -1 the latest. ValueError says what is expected."""
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < -2:
        raise ValueError("an offset, -2 or -1 is expected")
    if offset > LARGEST_OFFSET:
        raise ValueError(f"an offset of at most {LARGEST_OFFSET} is expected")
    return {-2: EARLIEST, -1: LATEST}.get(offset, Point(PointKind.OFFSET, offset))


def parse_time_ms(text: str, now_ms: int) -> int:
    """Parse a time as milliseconds since 1970, negative before. ValueError says what is expected."""
    time_ms = _time_ms(text.strip(), now_ms)
    if abs(time_ms) > _MOST_MS_FROM_1970:
        raise ValueError(f"a time at most {_MOST_MS_FROM_1970} ms from 1970 is expected")
    return time_ms


def _time_ms(word: str, now_ms: int) -> int:
    if word.isdecimal():
        return int(word)
    try:
        if word.startswith("-") and not word[1:].isdecimal():
            return now_ms - parse_duration_ms(word[1:])
        return milliseconds_of(datetime.fromisoformat(word))
    except ValueError:
        raise ValueError("milliseconds since 1970, a time like 2026-11-20T08:00:00Z or -10m is expected") from None


def parse_duration_ms(text: str) -> int:
    """Parse `15m`, `200ms` or a number of milliseconds. ValueError says what is expected."""
    word = text.strip().lower()
    found = _DURATION.fullmatch(word if not word.isdecimal() else f"{word}ms")
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError("a number with one of the units ms, s, m, h or d is expected")
    return int(found[1]) * _UNITS_MS[found[2]]
