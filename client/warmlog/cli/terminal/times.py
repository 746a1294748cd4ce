"""Times and offsets as users type them.

A time is ISO 8601, such as `2013-07-01`, `2013-07-01T06:30` or `2013-07-01T06:30:15.250+02:00`; without a UTC offset it
is UTC. A start or end is `earliest`, `latest`, an offset (digits only) or a time.
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
    """Return the time in `text`, with its UTC offset; ValueError for anything else, and for times before 1970."""
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2013-07-01T00:00 (UTC) or 2013-07-01T00:00+02:00") from None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    if time < _EPOCH:
        raise ValueError(f"{text!r} is before 1970, the earliest time of a record")
    return time


def parse_instant(text: str) -> Instant:
    """Return an end of the log ("earliest", "latest") or a time."""
    edge = _EDGES.get(text)
    if edge is not None:
        return edge
    if not any(character.isdigit() for character in text):
        raise ValueError(f"{text!r} is neither earliest, nor latest, nor a time such as 2013-07-01T00:00")
    return parse_time(text)


def parse_start(text: str) -> Start:
    """Return where to begin: "earliest", "latest", an offset or a time."""
    return parse_instant(text) if (offset := _parse_offset(text)) is None else offset


def parse_end(text: str) -> End:
    """Return where to stop, exclusive: "latest", an offset or a time."""
    end = parse_start(text)
    if end == "earliest":
        raise ValueError("there is nothing before 'earliest': give latest, an offset or a time")
    return end


def _parse_offset(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    offset = int(text) if len(text) < 20 else _MAX_OFFSET + 1
    if offset > _MAX_OFFSET:
        raise ValueError(f"{text} is larger than any offset")
    return offset


def format_ms(timestamp_ms: int) -> str:
    """Return `timestamp_ms` as ISO 8601 in UTC, as digits after the year 9999, or "" if negative (no timestamp)."""
    if timestamp_ms < 0:
        return ""
    try:
        return f"{_format_second(timestamp_ms // 1000)}.{timestamp_ms % 1000:03d}Z"
    except OverflowError:
        return str(timestamp_ms)


@lru_cache(maxsize=1024)
def _format_second(second: int) -> str:
    """Cached, because consecutive records mostly share their second."""
    return f"{_EPOCH + timedelta(seconds=second):%Y-%m-%dT%H:%M:%S}"
