"""Which transaction indexes can be believed, and making the others anew from the log.

An index that lacks entries makes readers of committed data deliver what was aborted, so it is never believed blindly:

- Of a segment that recovery has checked, it is made anew before the log opens (`restore_producers`), for nothing above
  the recovery point need have reached the disk.
- Of any other segment that was found on disk it is looked at when it is first needed, which for most is never. It is
  made anew, durably, when it is damaged, when it has no entry, when its first or last entry points at no marker of its
  producer, and when the segment has lost its offset index: then somebody has removed its side files. Only that an index
  alone is missing cannot be told from a segment in which nothing was aborted: `warmlog log verify` finds that out.

To make it anew takes the transactions that were open where the segment begins: the producer snapshot there, or an older
one and the batches behind it.
"""

import logging
from collections.abc import Sequence

from warmlog_broker.storage.index.abstract_index import CorruptIndex
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.producer.replay import aborted_in_segment
from warmlog_broker.storage.producer.snapshots import ProducerSnapshots
from warmlog_broker.storage.record.damage import Damage
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.errors import CorruptBatch

logger = logging.getLogger(__name__)


def settle_transaction_index(
    segment: LogSegment,
    segments: LogSegments,
    snapshots: ProducerSnapshots,
    *,
    damage: Sequence[Damage] = (),
    now_ms: int,
) -> None:
    """Makes the transaction index of `segment` one that can be believed; OSError when the disk refuses."""
    index = segment.transactions
    if index.is_settled:
        return
    reason = why_not_believed(segment)
    if not reason:
        index.is_settled = True
        return
    logger.warning("%s: rebuilding it from the log: %s", index.path, reason)
    index.replace(aborted_in_segment(segment, segments, snapshots, damage=damage, now_ms=now_ms))


def why_not_believed(segment: LogSegment) -> str:
    """What is wrong with the transaction index of a segment that was found on disk; empty when nothing is."""
    index = segment.transactions
    if not segment.size_bytes:
        return "the log has no data" if index.file_exists() else ""
    if index.is_to_be_rebuilt:
        return "it could not be written, or not be read"
    if not index.file_exists():
        return (
            "side files are missing" if segment.indexes.was_rebuilt or not segment.indexes.offset.file_exists() else ""
        )
    try:
        index.sanity_check()
        if not index.entries:
            return "it holds no entry"
        for entry in {index.entry(0), index.entry(index.entries - 1)}:
            if not _is_marker_of(segment, entry):
                return f"{entry} is of no marker in the log"
    except CorruptIndex as error:
        return str(error)
    return ""


def _is_marker_of(segment: LogSegment, entry: AbortedTxn) -> bool:
    """Whether the entry's producer has a control batch where the entry says; taken for granted in a damaged log."""
    try:
        found = segment.translate_offset(entry.last_offset)
        if found is None or found.base_offset != entry.last_offset:
            return False
        header, _ = next(segment.records.batches(found.position))
    except CorruptBatch:
        return True
    return header.is_control and header.producer_id == entry.producer_id
