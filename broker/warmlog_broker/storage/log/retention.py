"""Which segments a log may give up, and when their files are unlinked.

Segments go from the oldest on, for one of three reasons, each looked at in turn and from where the one before it
stopped: all their records lie below the log start offset; without them the log still holds `retention.bytes`; their
newest record is older than `retention.ms`. The first holds whatever the `cleanup.policy` (KAFKA-7400), the other two
where that says delete. Only what lies below the high watermark goes, and never the empty active
segment. Files are renamed to end in `.deleted` at once and unlinked after `file.delete.delay.ms`, so that a reader
that has found them is not disturbed. The delay is counted by elapsed time, which no change of the clock affects. After
a restart there is no such reader: files that still wait are unlinked at the next start, whatever the delay.

Carrying out on one log what `retention` has decided.
"""

import logging
from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

from warmlog_broker.storage.config import MAX_INT64, UNLIMITED, LogConfig
from warmlog_broker.storage.directory.leader_epochs import LeaderEpochs
from warmlog_broker.storage.log.bounds import Bounds
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.segment.segment import LogSegment

logger = logging.getLogger(__name__)


Reason = Literal["log start", "retention.bytes", "retention.ms"]


class SegmentFacts(Protocol):
    """What retention looks at. `largest_timestamp_ms` may cost a read, and is asked for last."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def largest_timestamp_ms(self) -> int: ...
    @property
    def modified_ms(self) -> int: ...


Segment = TypeVar("Segment", bound=SegmentFacts)


def deletable_segments(
    segments: Sequence[Segment],
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    config: LogConfig,
    now_ms: int,
) -> list[tuple[Segment, Reason]]:
    """The segments, oldest first, that may go, with the reason for each. `segments` are all, the active one last."""
    candidates = _below_high_watermark(segments, log_end_offset, high_watermark)
    reasons: list[Reason] = []

    next_bases = [segment.base_offset for segment in segments[1:]]
    for next_base in next_bases[: len(candidates)]:
        if next_base > log_start_offset:
            break
        reasons.append("log start")

    if config.deletes and config.retention_bytes != UNLIMITED:
        excess_bytes = sum(segment.size_bytes for segment in segments[len(reasons) :]) - config.retention_bytes
        for segment in candidates[len(reasons) :]:
            excess_bytes -= segment.size_bytes
            if excess_bytes < 0:
                break
            reasons.append("retention.bytes")

    if config.deletes and config.retention_ms != UNLIMITED:
        for place in range(len(reasons), len(candidates)):
            if now_ms - newest_record_ms(segments, place, now_ms) <= config.retention_ms:
                break
            reasons.append("retention.ms")

    return list(zip(candidates, reasons, strict=False))


def newest_record_ms(segments: Sequence[Segment], place: int, now_ms: int) -> int:
    """When the newest record of the segment at `place` was written, as far as that can be believed.

    A timestamp ahead of the clock cannot be (KAFKA-14991: one such record kept its segment, and all behind it, for
    ever): then it is when the file was last written to. If that lies ahead as well, since the clock was wrong at the
    time, it is when a later file was, for what came before that is not newer.
    """
    newest_ms = segments[place].largest_timestamp_ms
    if newest_ms <= now_ms:
        return newest_ms
    return next((later.modified_ms for later in segments[place:] if later.modified_ms <= now_ms), now_ms)


def _below_high_watermark(segments: Sequence[Segment], log_end_offset: int, high_watermark: int) -> list[Segment]:
    """The oldest segments that end at or below the high watermark, without an empty active one."""
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    candidates = [segment for segment, end_offset in zip(segments, ends, strict=True) if end_offset <= high_watermark]
    if len(candidates) == len(segments) and segments[-1].size_bytes == 0:
        candidates.pop()
    return candidates


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
