"""Times and points as users type them at the command line, and times as they are printed.

`warmlog.points` is the grammar: `earliest`, `latest`, an offset, `-10` (the last ten of each partition), `-10m`, or a
time in ISO 8601. A time without a UTC offset is local time, the TZ of the process.
"""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from warmlog.cli.terminal.output import note
from warmlog.points import EARLIEST, LATEST, Point, PointKind, parse_point
from warmlog.times import datetime_of

if TYPE_CHECKING:
    from warmlog import Consumer

Instant = Literal["earliest", "latest"] | datetime
Start = Point
End = Point

TIME_EXAMPLE = "a time such as 2013-07-01T06:30 (local time), 2013-07-01T06:30Z or -10m"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = 253_402_214_400_000
"""9999-12-31T00:00Z: a datetime cannot be a day later in every zone."""


def parse_time(text: str) -> datetime:
    """Return the time in `text`, in UTC; ValueError for anything else, and for times before 1970."""
    instant = parse_instant(text, expected=TIME_EXAMPLE)
    if isinstance(instant, str):
        raise ValueError(f"{text!r} is not {TIME_EXAMPLE}")
    return instant


def parse_instant(text: str, *, expected: str = f"earliest, latest or {TIME_EXAMPLE}") -> Instant:
    """Return an end of the log ("earliest", "latest") or a time; the error says that it is not what is `expected`."""
    try:
        point = parse_point(text, zone=None)
    except ValueError:
        raise ValueError(f"{text!r} is not {expected}") from None
    if point in (EARLIEST, LATEST):
        return "earliest" if point == EARLIEST else "latest"
    if point.kind is not PointKind.TIME:
        raise ValueError(f"{text!r} is not {expected}")
    return datetime_of(_checked_ms(point.number, text))


def parse_start(text: str) -> Start:
    """Return where to begin; ValueError for anything but a point, and for times before 1970."""
    point = parse_point(text, zone=None)
    if point.kind is PointKind.TIME:
        _checked_ms(point.number, text)
    return point


def _checked_ms(time_ms: int, text: str) -> int:
    if time_ms < 0:
        raise ValueError(f"{text!r} is before 1970, the earliest time of a record")
    if time_ms > _LAST_MS:
        raise ValueError(f"{text!r} is after 9999-12-31")
    return time_ms


def parse_end(text: str) -> End:
    """Return where to stop, exclusive; like `parse_start`, but not the earliest."""
    end = parse_start(text)
    if end == EARLIEST:
        raise ValueError("there is nothing before 'earliest': give latest, an offset or a time")
    return end


def parse_seconds(text: str, *, may_be_zero: bool = False) -> float:
    """Return the seconds of a duration such as 500ms, 10s or 2m; ValueError for anything else."""
    from warmlog.points import parse_duration_ms

    with suppress(ValueError):
        duration_ms = parse_duration_ms(text)
        if not text.strip().isdecimal() and (duration_ms or may_be_zero):
            return duration_ms / 1000
    raise ValueError(f"{text!r} is not a duration such as 500ms, 10s or 2m")


async def note_if_past_end(consumer: "Consumer", start: Start) -> None:
    """Say on stderr that a started consumer begins at the end because no record is at or after the time `start`."""
    if start.kind is not PointKind.TIME:
        return
    available = await consumer.available()
    if all(consumer.position(*partition) >= offsets.stop for partition, offsets in available.items()):
        note(nothing_after(start.number))


def nothing_after(time_ms: int) -> str:
    """Return a notice that no record is at or after a time, which it names in local time."""
    local = datetime_of(time_ms).astimezone()
    return f"no record is at or after {local.isoformat(timespec='milliseconds')} (local time)"


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
