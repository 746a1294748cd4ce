"""Split segments whose offsets are too far apart for their indexes, which store them in 32 bits.

Old versions of Kafka could write them: their compaction merged segments whose first and last offset were more than
2^31 - 1 apart. Warmlog writes none, so they are split when a copy of Kafka's files is recovered. An interrupted
adoption discards the copy, so the steps need not survive a crash.
"""

import logging
from collections.abc import Sequence
from itertools import pairwise

from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.record.batch_chain import DamagedLog
from warmlog_broker.storage.recovery.loader import SegmentFactory
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_swap import CLEANED_SUFFIX
from warmlog_protocol.batch import CRC_START

logger = logging.getLogger(__name__)


def split_overflowed(factory: SegmentFactory, base_offsets: Sequence[int], now_ms: int) -> tuple[str, ...]:
    """Split those of a log's segments that overflow, durably, and return a remark about each. OSError from the disk.

    Only headers are read, and only of segments that are not followed by another within 2^31 offsets. The last segment
    is not checked, because compaction never touched it. A damaged one is left to recovery.
    """
    remarks = []
    for base_offset, following in pairwise(base_offsets):
        if following - 1 - base_offset <= MAX_RELATIVE_OFFSET:
            continue
        segment = factory.open(base_offset, now_ms)
        try:
            last_offset = max((header.last_offset for header, _ in segment.records.batches()), default=base_offset)
        except DamagedLog as error:
            logger.error("a segment whose offsets may be too far apart is damaged and not split: %s", error)
            last_offset = base_offset
        if last_offset - base_offset > MAX_RELATIVE_OFFSET:
            count = _split(segment, factory, now_ms)
            remarks.append(f"{segment.path} held offsets too far apart and was split in {count}")
        segment.close_handles()
    return tuple(remarks)


def _split(segment: LogSegment, factory: SegmentFactory, now_ms: int) -> int:
    """Replace `segment` by new ones with its batches, unchanged; return how many."""
    parts: list[LogSegment] = []
    for header, position in segment.records.batches():
        if not parts or header.last_offset - parts[-1].base_offset > MAX_RELATIVE_OFFSET:
            base_offset = header.base_offset if parts else segment.base_offset
            parts.append(factory.open(base_offset, now_ms, suffix=CLEANED_SUFFIX))
        batch = segment.records.read(position, header.size_bytes)
        parts[-1].append(
            header.last_offset, header.max_timestamp_ms, header.last_offset, batch[:CRC_START], batch[CRC_START:]
        )
    segment.delete()
    for part in parts:
        part.on_become_inactive()
        part.change_suffix(CLEANED_SUFFIX, "")
        part.close()
    return len(parts)
