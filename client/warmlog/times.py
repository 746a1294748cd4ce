"""Times as datetimes and as milliseconds since 1970, and the timestamps of ListOffsets requests."""

from datetime import UTC, datetime, timedelta
from math import isnan

from warmlog_protocol.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP

_NAMES = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "max_timestamp": MAX_TIMESTAMP}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds_of(when: datetime) -> int:
    """Whole milliseconds since 1970. A fraction is rounded up, so that a search finds nothing before `when`.

    A datetime without a time zone is in the process's. ValueError for pandas.NaT, which is a datetime that is no time,
    and for one that has no local time.
    """
    if isnan(when.year):
        raise ValueError(f"{when}: a time is expected")
    if when.tzinfo is None:
        try:
            when = datetime.combine(when.date(), when.time()).astimezone()  # pandas has another astimezone
        except OverflowError:
            raise ValueError(f"{when} has no local time") from None
    since = when - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1000 + -(-since.microseconds // 1000)


def datetime_of(timestamp_ms: int) -> datetime:
    """Convert milliseconds since 1970 to a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=timestamp_ms)


def asked_timestamp(at: str | int | datetime) -> int:
    """The timestamp in a ListOffsets request for "earliest", "latest", "max_timestamp", a datetime or milliseconds.

    A datetime before 1970 becomes 1970, as negative timestamps have special meanings.
    """
    if isinstance(at, datetime):
        return max(0, milliseconds_of(at))
    if isinstance(at, int) and at >= 0:
        return at
    if isinstance(at, str) and at in _NAMES:
        return _NAMES[at]
    raise ValueError(f'{at!r}: "earliest", "latest", "max_timestamp", a datetime or milliseconds since 1970 expected')
