"""The lag of groups as commands show it."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from warmlog.cli.terminal.tables import Age, Cell

if TYPE_CHECKING:
    from warmlog import GroupLag


class TotalLag(NamedTuple):
    """All unread records of a group, and the age of the oldest; None if it is unknown."""

    records: int
    seconds: float | None


def total_lag(lags: "Collection[GroupLag]") -> TotalLag:
    """Return the sum over partitions; those whose figures are unknown count as none, but leave no age of 0."""
    seconds = [lag.seconds for lag in lags]
    known = [age for age in seconds if age is not None and (age or None not in seconds)]
    return TotalLag(sum(lag.records or 0 for lag in lags), max(known, default=None))


def age_cell(seconds: float | None) -> Cell:
    """Return a cell with the age; empty if it is unknown."""
    return "" if seconds is None else Age(round(seconds * 1000))


def lag_document(lag: "GroupLag") -> dict[str, Any]:
    """Return the lag in one partition for scripts."""
    return {
        "topic": lag.topic,
        "partition": lag.partition,
        "committed": lag.committed,
        "log_start_offset": lag.log_start_offset,
        "high_watermark": lag.high_watermark,
        "lag_records": lag.records,
        "lag_seconds": lag.seconds,
        "metadata": lag.metadata,
        "error": None if lag.error is None else str(lag.error),
    }
