"""Carrying out on one log what `retention` has decided."""

import logging

from warmlog_broker.log.bounds import Bounds
from warmlog_broker.log.leader_epochs import LeaderEpochs
from warmlog_broker.log.local_log import LocalLog
from warmlog_broker.log.producer_state import ProducerStates
from warmlog_broker.log.retention import deletable_segments

logger = logging.getLogger(__name__)


def give_up_old_segments(
    local: LocalLog, bounds: Bounds, epochs: LeaderEpochs, producers: ProducerStates, now_ms: int
) -> int:
    """See `Log.delete_old_segments`. The log start is raised before the first segment goes."""
    local.check_online()
    local.settle()
    segments = list(local.segments)
    deletable = deletable_segments(
        segments,
        log_start_offset=bounds.log_start_offset,
        log_end_offset=local.log_end_offset,
        high_watermark=bounds.high_watermark.offset,
        config=local.factory.config,
        now_ms=now_ms,
    )
    if not deletable:
        return 0
    if len(deletable) == len(segments):
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
