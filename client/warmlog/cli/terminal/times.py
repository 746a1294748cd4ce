"""Times and points as users type them at the command line, and times as they are printed.

`warmlog.points` is the grammar: `earliest`, `latest`, an offset, `-10` (the last ten of each partition), `-10m`, or a
time in ISO 8601. A time without a UTC offset is local time, the TZ of the process.
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from warmlog.cli.terminal.output import note
from warmlog.points import EARLIEST, Point, PointKind, parse_duration_ms, parse_point
from warmlog.times import datetime_of

if TYPE_CHECKING:
    from warmlog import Consumer

TIME_EXAMPLE = "a time such as 2013-07-01T06:30 (local time), 2013-07-01T06:30Z or -10m"

_LAST_MS = 253_402_214_400_000
"""9999-12-31T00:00Z: a datetime cannot be a day later in every zone."""


def parse_time_ms(text: str) -> int:
    """Return milliseconds since 1970; ValueError for anything but a time, and for times before 1970."""
    return _parse_one_of((PointKind.TIME,), text, TIME_EXAMPLE).number


def parse_edge_or_time(text: str) -> str | int:
    """Return "earliest", "latest" or the milliseconds of a time, as `Admin.look_up_offsets` takes them."""
    kinds = (PointKind.EARLIEST, PointKind.LATEST, PointKind.TIME)
    point = _parse_one_of(kinds, text, f"earliest, latest or {TIME_EXAMPLE}")
    return point.number if point.kind is PointKind.TIME else str(point)


def _parse_one_of(kinds: Collection[PointKind], text: str, expected: str) -> Point:
    try:
        point = parse_point(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {expected}") from None
    if point.kind not in kinds:
        raise ValueError(f"{text!r} is not {expected}")
    return _checked(point, text)


def parse_start(text: str) -> Point:
    """Return where to begin; ValueError for anything but a point, and for times before 1970."""
    return _checked(parse_point(text), text)


def _checked(point: Point, text: str) -> Point:
    if point.kind is PointKind.TIME and point.number < 0:
        raise ValueError(f"{text!r} is before 1970, the earliest time of a record")
    if point.kind is PointKind.TIME and point.number > _LAST_MS:
        raise ValueError(f"{text!r} is after 9999-12-31")
    return point


def parse_end(text: str, start: Point = EARLIEST) -> Point:
    """Return where to stop, exclusive; like `parse_start`, but not the earliest, and not before `start`."""
    end = parse_start(text)
    if end == EARLIEST:
        raise ValueError("there is nothing before 'earliest': give latest, an offset or a time")
    forward = start.number - end.number if end.kind is PointKind.TAIL else end.number - start.number
    if end.kind is start.kind and forward < 0:
        raise ValueError(f"{text!r} is before --from")
    return end


def parse_seconds(text: str, *, may_be_zero: bool = False) -> float:
    """Return the seconds of a duration such as 500ms, 10s or 2m; ValueError for anything else."""
    with suppress(ValueError):
        duration_ms = parse_duration_ms(text)
        if not text.strip().isdecimal() and (duration_ms or may_be_zero):
            return duration_ms / 1000
    raise ValueError(f"{text!r} is not a duration such as 500ms, 10s or 2m")


async def note_if_past_end(consumer: "Consumer", start: Point) -> None:
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
    """Return local time as ISO 8601 with its UTC offset; digits after the year 9999, "" if negative (no timestamp)."""
    if timestamp_ms < 0:
        return ""
    try:
        second, offset = _format_second(timestamp_ms // 1000)
        return f"{second}.{timestamp_ms % 1000:03d}{offset}"
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)


@lru_cache(maxsize=1024)
def _format_second(second: int) -> tuple[str, str]:
    """Return the second and its UTC offset. Cached, because consecutive records mostly share their second."""
    text = datetime.fromtimestamp(second).astimezone().isoformat(timespec="seconds")
    return text[:19], text[19:]
