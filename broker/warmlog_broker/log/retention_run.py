"""Carrying out on one log what `retention` has decided."""

import logging

from warmlog_broker.log.bounds import Bounds
from warmlog_broker.log.config import MAX_INT64
from warmlog_broker.log.leader_epochs import LeaderEpochs
from warmlog_broker.log.local_log import LocalLog
from warmlog_broker.log.producer_state import ProducerStates
from warmlog_broker.log.retention import Reason, deletable_segments
from warmlog_broker.log.segment import LogSegment

logger = logging.getLogger(__name__)


def raise_log_start_for_retention(local: LocalLog, bounds: Bounds, epochs: LeaderEpochs, now_ms: int) -> int | None:
    """See `Log.raise_log_start_for_retention`."""
    local.check_online()
    deletable = _deletable(local, bounds, now_ms, MAX_INT64)
    if not deletable:
        return None
    segment, reason = deletable[-1]
    end_offset = _end_of(local, segment)
    if bounds.raise_log_start(end_offset):
        epochs.truncate_from_start(end_offset)
        logger.info("%s: the log starts at %d now (%s)", local.key.directory_name, end_offset, reason)
    return end_offset


def give_up_old_segments(
    local: LocalLog, bounds: Bounds, epochs: LeaderEpochs, producers: ProducerStates, now_ms: int, below: int
) -> int:
    """See `Log.delete_old_segments`. The log start is raised before the first segment goes."""
    local.check_online()
    local.settle()
    deletable = _deletable(local, bounds, now_ms, below)
    if not deletable:
        return 0
    if len(deletable) == len(local.segments):
        local.roll(now_ms, 0, producers)
        bounds.rolled()
    kept = local.segments.higher(deletable[-1][0].base_offset)
    assert kept is not None
    if bounds.raise_log_start(kept.base_offset):
        epochs.truncate_from_start(kept.base_offset)
    for segment, reason in deletable:
        logger.info("%s: segment %d goes (%s)", local.key.directory_name, segment.base_offset, reason)
    local.give_up([segment for segment, _ in deletable], "retention")
    return len(deletable)


def _deletable(local: LocalLog, bounds: Bounds, now_ms: int, below: int) -> list[tuple[LogSegment, Reason]]:
    deletable = deletable_segments(
        list(local.segments),
        log_start_offset=bounds.log_start_offset,
        log_end_offset=local.log_end_offset,
        high_watermark=bounds.high_watermark.offset,
        config=local.factory.config,
        now_ms=now_ms,
    )
    return [(segment, reason) for segment, reason in deletable if _end_of(local, segment) <= below]


def _end_of(local: LocalLog, segment: LogSegment) -> int:
    """Where the segment ends (exclusive)."""
    following = local.segments.higher(segment.base_offset)
    return local.log_end_offset if following is None else following.base_offset
