"""Which records and segments a log removes, and when their files are unlinked.

Segments are deleted from the oldest on, for one of three reasons, each considered in turn from where the one before it
stopped: all their records are below the log start offset; the log still has `retention.bytes` without them; their
newest record is older than `retention.ms`. The first applies whatever the `cleanup.policy` (KAFKA-7400), the other two
if that says delete. Only segments below the high watermark are deleted, and never the empty active segment. Files are
renamed to end in `.deleted` at once and unlinked after `file.delete.delay.ms`, so that a reader that has found them is
not disturbed. The delay is counted by elapsed time, which no change of the clock affects. After a restart there is no
such reader: files that still wait are unlinked at the next start, whatever the delay.
"""

import logging
from collections.abc import Sequence
from typing import Literal

from warmlog_broker.storage.config import MAX_INT64, UNLIMITED, LogConfig
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_protocol.errors import OffsetOutOfRange, PolicyViolation
from warmlog_protocol.messages import HIGH_WATERMARK

logger = logging.getLogger(__name__)


Reason = Literal["log start", "retention.bytes", "retention.ms"]


def deletable_segments(
    segments: Sequence[LogSegment],
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    config: LogConfig,
    now_ms: int,
) -> list[tuple[LogSegment, int, Reason]]:
    """The segments, oldest first, to delete, with the end (exclusive) and the reason of each. `segments` are all
    segments in order."""
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    candidates = [segment for segment, end_offset in zip(segments, ends, strict=True) if end_offset <= high_watermark]
    if len(candidates) == len(segments) and segments[-1].size_bytes == 0:
        candidates.pop()
    reasons: list[Reason] = []

    for end_offset in ends[:-1][: len(candidates)]:
        if end_offset > log_start_offset:
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
        for index in range(len(reasons), len(candidates)):
            if now_ms - newest_record_ms(segments, index, now_ms) <= config.retention_ms:
                break
            reasons.append("retention.ms")

    return list(zip(candidates, ends, reasons, strict=False))


def newest_record_ms(segments: Sequence[LogSegment], index: int, now_ms: int) -> int:
    """When the newest record of `segments[index]` was written, as far as that can be trusted.

    A timestamp ahead of the clock cannot (KAFKA-14991: one such record kept its segment, and all after it, forever):
    then it is when the file was last written to. If that is ahead as well, as the clock was wrong at the time, it is
    when a later file was written to, as earlier records are not newer.
    """
    newest_ms = segments[index].largest_timestamp_ms
    if newest_ms <= now_ms:
        return newest_ms
    return next((later.modified_ms for later in segments[index:] if later.modified_ms <= now_ms), now_ms)


class LogRetention:
    """Removes records and segments of one log."""

    def __init__(self, local: LocalLog) -> None:
        self._local = local
        self._bounds = local.bounds

    def delete_records(self, offset: int) -> int:
        """Remove the records below `offset`, or below the high watermark for -1; return the log start offset.

        Not durable on return: it is once the checkpoint of log starts has been written. Raises OffsetOutOfRange above
        the high watermark, and PolicyViolation if the topic's cleanup.policy does not delete.
        """
        local, name = self._local, self._local.key.directory_name
        local.check_online()
        if "delete" not in local.config.cleanup_policy:
            raise PolicyViolation(f"{name}: cleanup.policy is {local.config.cleanup_policy}, which deletes no records")
        if offset < HIGH_WATERMARK:
            raise OffsetOutOfRange(f"{name}: there is no offset {offset}")
        self._bounds.raise_log_start(self._bounds.high_watermark.offset if offset == HIGH_WATERMARK else offset)
        return self._bounds.log_start_offset

    def raise_log_start(self, now_ms: int) -> int | None:
        """Raise the log start to the end of the segments that retention no longer keeps; None if it keeps all.

        Returns what to checkpoint before `delete_old_segments` is called: otherwise a crash would leave a log that
        seems to have lost its first segments.
        """
        self._local.check_online()
        deletable = self._deletable(now_ms, MAX_INT64)
        if not deletable:
            return None
        _, end_offset, reason = deletable[-1]
        if self._bounds.raise_log_start(end_offset):
            logger.info("%s: the log starts at %d now (%s)", self._local.key.directory_name, end_offset, reason)
        return end_offset

    def delete_old_segments(self, now_ms: int, *, below: int = MAX_INT64) -> int:
        """Remove the segments that retention no longer keeps and that end at `below` or before; return how many.

        The log start is raised first. Files are renamed now and unlinked later (`LocalLog.take_due_deletions`).
        """
        local = self._local
        local.check_online()
        local.finish_replacement()
        deletable = self._deletable(now_ms, below)
        if not deletable:
            return 0
        if len(deletable) == len(local.segments):
            local.roll(now_ms)
        self._bounds.raise_log_start(deletable[-1][1])
        for segment, _, reason in deletable:
            logger.info("%s: segment %d is removed (%s)", local.key.directory_name, segment.base_offset, reason)
        local.drop_segments([segment for segment, _, _ in deletable], "retention")
        return len(deletable)

    def _deletable(self, now_ms: int, below: int) -> list[tuple[LogSegment, int, Reason]]:
        deletable = deletable_segments(
            list(self._local.segments),
            log_start_offset=self._bounds.log_start_offset,
            log_end_offset=self._local.log_end_offset,
            high_watermark=self._bounds.high_watermark.offset,
            config=self._local.config,
            now_ms=now_ms,
        )
        return [each for each in deletable if each[1] <= below]
