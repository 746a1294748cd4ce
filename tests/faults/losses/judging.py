"""The bound of what may be lost, and what was. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

FLUSHES = 2
"""The one that is under way when a record is due, and its own."""


class Acknowledged(NamedTuple):
    """One batch that the broker has answered for; `at_s` is when the answer came."""

    base_offset: int
    record_count: int
    size_bytes: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Mode:
    """How data comes to be acknowledged before its flush. None for a bound that the settings do not give."""

    name: str
    settings: dict[str, str]
    acks: int
    flush_ms: int | None
    flush_messages: int | None


@dataclass(frozen=True, slots=True)
class Loss:
    """What one cut took of one partition."""

    records: int
    size_bytes: int
    age_ms: float
    """How long before the cut the oldest lost record was acknowledged."""
    allowed_records: int | None
    allowed_age_ms: float | None

    @property
    def is_within_bound(self) -> bool:
        """Whether all of it may be lost."""
        return (self.allowed_records is None or self.records <= self.allowed_records) and (
            self.allowed_age_ms is None or self.age_ms <= self.allowed_age_ms
        )


def loss_of(
    acknowledged: Sequence[Acknowledged], end_offset: int, *, cut_at_s: float, flush_s: float, mode: Mode
) -> Loss:
    """What is missing of `acknowledged` in a log that ends at `end_offset`. `flush_s`: the longest flush there was."""
    lost = [batch for batch in acknowledged if batch.base_offset + batch.record_count > end_offset]
    recent = sum(batch.record_count for batch in acknowledged if batch.at_s > cut_at_s - FLUSHES * flush_s)
    return Loss(
        records=sum(batch.record_count for batch in lost),
        size_bytes=sum(batch.size_bytes for batch in lost),
        age_ms=max((1000 * (cut_at_s - batch.at_s) for batch in lost), default=0.0),
        allowed_records=None if mode.flush_messages is None else mode.flush_messages + recent,
        allowed_age_ms=None if mode.flush_ms is None else mode.flush_ms + FLUSHES * 1000 * flush_s,
    )
