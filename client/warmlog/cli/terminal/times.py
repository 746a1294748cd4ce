"""Times and places in a log, as people type them.

A time is ISO 8601, such as `2013-07-01`, `2013-07-01T06:30` or `2013-07-01T06:30:15.250+02:00`; without an offset it
is UTC. A place is `earliest`, `latest`, an offset (digits only) or a time.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal

Edge = Literal["earliest", "latest"]
Instant = Edge | datetime
Start = Edge | int | datetime
End = Literal["latest"] | int | datetime

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EDGES: dict[str, Edge] = {"earliest": "earliest", "latest": "latest"}
_MAX_OFFSET = 2**63 - 1


def parse_time(text: str) -> datetime:
    """The time that `text` names, with its offset from UTC; ValueError when it names none, or one before 1970."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2013-07-01T00:00 (UTC) or 2013-07-01T00:00+02:00") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    if time < _EPOCH:
        raise ValueError(f"{text!r} lies before 1970, where the timestamps of records begin")
    return time


def parse_instant(text: str) -> Instant:
    """An edge of the log, or a time."""
    edge = _EDGES.get(text)
    if edge is not None:
        return edge
    if not any(character.isdigit() for character in text):
        raise ValueError(f"{text!r} is neither earliest, nor latest, nor a time such as 2013-07-01T00:00")
    return parse_time(text)


def parse_start(text: str) -> Start:
    """Where to begin: "earliest", "latest", an offset or a time."""
    return parse_instant(text) if (offset := _parse_offset(text)) is None else offset


def parse_end(text: str) -> End:
    """Where to stop: "latest", the first offset that is not read any more, or the time from which nothing is read."""
    place = parse_start(text)
    if place == "earliest":
        raise ValueError("nothing lies before 'earliest'; it must be latest, an offset or a time")
    return place


def _parse_offset(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    offset = int(text) if len(text) < 20 else _MAX_OFFSET + 1
    if offset > _MAX_OFFSET:
        raise ValueError(f"{text} is larger than any offset")
    return offset


def format_ms(timestamp_ms: int) -> str:
    """`timestamp_ms` as ISO 8601 in UTC with milliseconds; digits beyond the year 9999, nothing for no timestamp."""
    if timestamp_ms < 0:
        return ""
    try:
        return f"{_format_second(timestamp_ms // 1000)}.{timestamp_ms % 1000:03d}Z"
    except OverflowError:
        return str(timestamp_ms)


@lru_cache(maxsize=1024)
def _format_second(second: int) -> str:
    """Cached, as records that follow on each other mostly share their second."""
    return f"{_EPOCH + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S}"
