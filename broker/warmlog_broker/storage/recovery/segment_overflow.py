"""Segments whose offsets are too far apart for their indexes, which store them in 32 bits: split when a log is loaded.

Old versions of Kafka could write them: their compaction merged segments whose first and last offset were more than
2^31 - 1 apart. The batches are copied unchanged to as many new segments as needed, which replace the old one by the
same steps as after a compaction (`segment_swap`).

Most segments need not be opened: one that is followed by another within 2^31 offsets cannot be affected.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import zip_longest

from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.record.batch_scan import DamagedLog
from warmlog_broker.storage.recovery.recovery import RecoveryReport
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_swap import DELETED_SUFFIX, Replacement
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.batch import CRC_START

logger = logging.getLogger(__name__)

OpenCleaned = Callable[[int], LogSegment]
"""Creates the segment with that base offset under names that end in `.cleaned`."""


def split_overflowed(
    segments: Sequence[LogSegment], open_cleaned: OpenCleaned, report: RecoveryReport
) -> list[LogSegment]:
    """`segments`, all of a log in order, with those that overflow split, durably.

    The last one is not checked: compaction never touched the active segment, and appends were always checked. A damaged
    one stays as it is.
    """
    result: list[LogSegment] = []
    for segment, following in zip_longest(segments, segments[1:]):
        if following is None or following.base_offset - 1 - segment.base_offset <= MAX_RELATIVE_OFFSET:
            result.append(segment)
            continue
        try:
            parts = split_segment(segment, open_cleaned) if _overflows(segment) else [segment]
        except DamagedLog as error:
            logger.error("a segment with offsets too far apart cannot be split: %s", error)
            parts = [segment]
        if len(parts) > 1:
            report.rebuilt.append(f"{segment.path} held offsets too far apart and was split in {len(parts)}")
        result += parts
    return result


def split_segment(segment: LogSegment, open_cleaned: OpenCleaned) -> list[LogSegment]:
    """Replace `segment` by new ones with its batches, and return them. ValueError if it does not overflow.

    DamagedLog if a batch cannot be the next one: then nothing has changed.
    """
    parts: list[LogSegment] = []
    try:
        for header, position in segment.records.batches():
            if not parts or header.last_offset - parts[-1].base_offset > MAX_RELATIVE_OFFSET:
                parts.append(open_cleaned(header.base_offset if parts else segment.base_offset))
            batch = segment.records.read(position, header.size_bytes)
            parts[-1].append(
                header.last_offset, header.max_timestamp_ms, header.last_offset, batch[:CRC_START], batch[CRC_START:]
            )
        if len(parts) < 2:
            raise ValueError(f"{segment.path} does not overflow and is not split")
        for part in parts:
            part.on_become_inactive()
            part.flush()
    except BaseException:
        for part in reversed(parts):
            part.delete()
        raise

    def retire(old: LogSegment, _keeps_snapshot: bool) -> None:
        old.change_suffix("", DELETED_SUFFIX)

    Replacement(LogSegments([segment]), parts, [segment], directory=segment.directory, retire=retire).complete()
    segment.delete()
    return parts


def _overflows(segment: LogSegment) -> bool:
    """Whether the segment holds an offset more than 2^31 - 1 above its base. Reads headers only."""
    last_offset = segment.base_offset
    try:
        for header, _ in segment.records.batches():
            last_offset = header.last_offset
    except DamagedLog as error:
        logger.debug("left to recovery: %s", error)
    return last_offset - segment.base_offset > MAX_RELATIVE_OFFSET
