"""What to do when a partition cannot be read at its position: one table for the consumer and for ranges.

Pure: error, position and policy in, a `Decision` out. `ConsumerCore`, its fetcher and the range reader carry it out.
"""

from enum import Enum, auto
from typing import NamedTuple

from warmlog import errors

MAX_OFFSET = (1 << 63) - 1


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
    """Report it, and read on at the offset of the consumer's policy."""


_RETRY, _RAISE, _SKIP, _RESET = Action.RETRY, Action.RAISE, Action.SKIP, Action.RESET
_LOCATE, _ONCE = Action.LOCATE, Action.RAISE_ONCE

# The first class that fits, and its action for each Policy in order. Any other error is final unless it is retriable.
_ACTIONS: tuple[tuple[type[errors.WarmlogError], tuple[Action, ...]], ...] = (
    (errors.UnreadableBatch, (_ONCE, _ONCE, _ONCE, _RAISE, _SKIP)),  # up to a known offset
    (errors.CorruptBatch, (_LOCATE, _LOCATE, _LOCATE, _RAISE, _RAISE)),  # a range reader has tried to locate it before
    (errors.LogTruncated, (_RAISE, _SKIP, _SKIP, _RAISE, _SKIP)),
    (errors.OffsetOutOfRange, (_RAISE, _RESET, _RESET, _RAISE, _SKIP)),
    (errors.InconsistentTopicId, (_RAISE, _RESET, _RAISE, _RAISE, _SKIP)),  # the topic was recreated
    (errors.UnknownTopicId, (_RAISE, _RETRY, _RAISE, _RAISE, _SKIP)),  # it was deleted
    (errors.UnknownTopicOrPartition, (_RETRY, _RETRY, _RETRY, _RAISE, _SKIP)),  # a consumer's metadata will say why
    (errors.BrokerUnavailable, (_RETRY, _RETRY, _RETRY, _RETRY, _RETRY)),
)


class Decision(NamedTuple):
    """What to do, and the offset to read on at for RAISE_ONCE and SKIP."""

    action: Action
    next_offset: int


def decide(
    error: errors.WarmlogError, policy: Policy, *, position: int = 0, end: int = MAX_OFFSET, log_start_offset: int = -1
) -> Decision:
    """Return what to do about `error` at `position` of a reader that ends at `end`.

    `log_start_offset` is where the log starts now, for a range whose position is out of range.
    """
    actions = next((actions for kind, actions in _ACTIONS if isinstance(error, kind)), None)
    if actions is None:
        return Decision(_RETRY if isinstance(error, errors.ApiError) and error.retriable else _RAISE, end)
    action, next_offset = actions[policy.value], end
    if isinstance(error, errors.UnreadableBatch):
        next_offset = min(error.next_offset, end)
    elif isinstance(error, errors.LogTruncated) and not policy.is_range:
        if error.diverging_offset is None:
            return Decision(_RESET if action is _SKIP else action, end)
        next_offset = error.diverging_offset
    elif isinstance(error, errors.OffsetOutOfRange) and log_start_offset > position:
        next_offset = min(log_start_offset, end)
    return Decision(action, next_offset)
