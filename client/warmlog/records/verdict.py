"""What to do when a partition cannot be read at its position: one table for the consumer and for ranges.

Pure: error, position and policy in, a `Verdict` out. `ConsumerCore`, its fetcher and the range reader carry it out.
"""

from enum import Enum, auto
from typing import NamedTuple

from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    CorruptBatch,
    InconsistentTopicId,
    LogTruncated,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
    UnreadableBatch,
    WarmlogError,
)

MAX_OFFSET = (1 << 63) - 1


class Finding(Enum):
    """What is wrong with a partition, from the broker's response or from the bytes that it sent."""

    UNAVAILABLE = auto()
    """No broker, or an error that passes."""
    UNKNOWN_PARTITION = auto()
    """The leader does not have it; the metadata may say why."""
    TOPIC_DELETED = auto()
    TOPIC_RECREATED = auto()
    OUT_OF_RANGE = auto()
    TRUNCATED = auto()
    """The log was truncated below the position."""
    DAMAGED = auto()
    """From the position on, to an unknown offset."""
    UNREADABLE = auto()
    """Damaged or lost, up to a known offset."""
    FAILED = auto()
    """Any other error."""


class Policy(Enum):
    """How a reader wants losses to be handled."""

    CONSUMER_RAISES = 0
    """`on_out_of_range="error"`."""
    CONSUMER_RESETS = 1
    """`on_out_of_range="earliest"` or `"latest"`."""
    CONSUMER_RESETS_WITHIN_TOPIC = 2
    """The same up to a given offset, which means nothing in another topic."""
    RANGE_RAISES = 3
    """`fails_on_data_loss`."""
    RANGE_SKIPS = 4

    @property
    def is_range(self) -> bool:
        return self in (Policy.RANGE_RAISES, Policy.RANGE_SKIPS)


class Action(Enum):
    """What the reader does then."""

    RETRY = auto()
    """Look up the leader and fetch again after a pause; raise the error when the reader's timeout is over."""
    RAISE = auto()
    """Stay at the position."""
    LOCATE = auto()
    """Find out how far the damage reaches, and decide again."""
    RAISE_ONCE = auto()
    """Raise it, and read on at `next_offset` when read from again."""
    SKIP = auto()
    """Report it, and read on at `next_offset`."""
    RESET = auto()
    """Report it, and read on where the consumer's policy says."""


_RETRY, _RAISE, _SKIP, _RESET = Action.RETRY, Action.RAISE, Action.SKIP, Action.RESET
_LOCATE, _ONCE = Action.LOCATE, Action.RAISE_ONCE

_ACTIONS: dict[Finding, tuple[Action, ...]] = {  # for each Policy, in its order
    Finding.UNAVAILABLE: (_RETRY, _RETRY, _RETRY, _RETRY, _RETRY),
    Finding.UNKNOWN_PARTITION: (_RETRY, _RETRY, _RETRY, _RAISE, _SKIP),
    Finding.TOPIC_DELETED: (_RAISE, _RETRY, _RAISE, _RAISE, _SKIP),
    Finding.TOPIC_RECREATED: (_RAISE, _RESET, _RAISE, _RAISE, _SKIP),
    Finding.OUT_OF_RANGE: (_RAISE, _RESET, _RESET, _RAISE, _SKIP),
    Finding.TRUNCATED: (_RAISE, _SKIP, _SKIP, _RAISE, _SKIP),
    Finding.DAMAGED: (_LOCATE, _LOCATE, _LOCATE, _RAISE, _RAISE),  # a range reader has tried to locate it before
    Finding.UNREADABLE: (_ONCE, _ONCE, _ONCE, _RAISE, _SKIP),
    Finding.FAILED: (_RAISE, _RAISE, _RAISE, _RAISE, _RAISE),
}

_FINDINGS: tuple[tuple[type[WarmlogError], Finding], ...] = (  # the first that fits
    (UnreadableBatch, Finding.UNREADABLE),
    (CorruptBatch, Finding.DAMAGED),
    (LogTruncated, Finding.TRUNCATED),
    (OffsetOutOfRange, Finding.OUT_OF_RANGE),
    (InconsistentTopicId, Finding.TOPIC_RECREATED),
    (UnknownTopicId, Finding.TOPIC_DELETED),
    (UnknownTopicOrPartition, Finding.UNKNOWN_PARTITION),
    (BrokerUnavailable, Finding.UNAVAILABLE),
)


class Verdict(NamedTuple):
    """What to do, and the offset to read on at for RAISE_ONCE and SKIP."""

    finding: Finding
    action: Action
    next_offset: int


def finding_of(error: WarmlogError) -> Finding:
    """Return what `error` says of the partition that could not be read."""
    found = next((finding for kind, finding in _FINDINGS if isinstance(error, kind)), None)
    if found is None:
        found = Finding.UNAVAILABLE if isinstance(error, ApiError) and error.retriable else Finding.FAILED
    return found


def decide(
    error: WarmlogError,
    policy: Policy,
    *,
    finding: Finding | None = None,
    position: int = 0,
    end: int = MAX_OFFSET,
    log_start_offset: int = -1,
) -> Verdict:
    """Return what to do about `error` at `position` of a reader that ends at `end`.

    `finding` is given if the reader knows better than the error. `log_start_offset`: where the log starts now, for
    a range that is OUT_OF_RANGE.
    """
    finding = finding_of(error) if finding is None else finding
    action = _ACTIONS[finding][policy.value]
    next_offset = end
    if isinstance(error, UnreadableBatch):
        next_offset = min(error.next_offset, end)
    elif isinstance(error, LogTruncated) and not policy.is_range:
        if action is Action.SKIP and error.diverging_offset is None:
            action = Action.RESET
        next_offset = end if error.diverging_offset is None else error.diverging_offset
    elif finding is Finding.OUT_OF_RANGE and log_start_offset > position:
        next_offset = min(log_start_offset, end)
    return Verdict(finding, action, next_offset)
