"""Verify transaction indexes, and rebuild from the log those that are wrong.

An index that lacks entries makes read_committed readers deliver aborted records, so:

- The index of a segment that recovery has checked is rebuilt before the log opens (`restore_producers`): what is above
  the recovery point may not have reached the disk.
- Any other index found on disk is verified when it is first needed. It is rebuilt, durably, if it is damaged, has no
  entry, has a first or last entry that points at no marker of its producer, or if the segment has lost its offset
  index: then its side files were removed. If only the transaction index was removed, the segment looks like one in
  which nothing was aborted; `warmlog log verify` detects that.

A rebuild needs the transactions that were open where the segment begins: from the producer snapshot there, or from an
older one and the batches after it.
"""

import logging
from collections.abc import Sequence

from warmlog_broker.storage.index.abstract_index import CorruptIndex
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.replay import replay, walk_batches
from warmlog_broker.storage.producer.snapshots import ProducerSnapshots
from warmlog_broker.storage.segment.scan import Damage
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_indexes import IndexState
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.errors import CorruptBatch

logger = logging.getLogger(__name__)

_NO_CLOCK_MS = 0


def verify_transaction_index(
    segment: LogSegment, segments: LogSegments, snapshots: ProducerSnapshots, *, damage: Sequence[Damage]
) -> None:
    """Verify the transaction index of `segment`, and rebuild it if it is wrong; OSError if the disk refuses."""
    index = segment.transactions
    if index.is_verified:
        return
    fault = find_fault(segment)
    if not fault:
        index.is_verified = True
        return
    logger.warning("%s: rebuilding it from the log: %s", index.path, fault)
    states = ProducerStates()
    first_offset = segments.base_offsets[0]
    snapshots.load_newest(states, first_offset=first_offset, at_most=segment.base_offset, now_ms=_NO_CLOCK_MS)
    found = []
    for batch in walk_batches(segments, states.end_offset, segment.base_offset, damage):
        aborted = replay(states, batch, _NO_CLOCK_MS)
        if aborted is not None and batch.segment is segment:
            found.append(aborted)
    index.replace(found)


def find_fault(segment: LogSegment) -> str:
    """What is wrong with the transaction index of a segment that was found on disk; empty if nothing is."""
    index = segment.transactions
    if not segment.size_bytes:
        return "the log has no data" if index.file_exists() else ""
    if index.needs_rebuild:
        return "it could not be written or read"
    if not index.file_exists():
        indexes = segment.indexes
        has_lost_files = indexes.was_rebuilt or not (indexes.state is IndexState.NEW or indexes.offset.file_exists())
        return "side files are missing" if has_lost_files else ""
    try:
        index.sanity_check()
        if not index.entries:
            return "it has no entry"
        for entry in {index.entry(0), index.entry(index.entries - 1)}:
            if not _is_marker_of(segment, entry):
                return f"{entry} does not match a marker in the log"
    except CorruptIndex as error:
        return str(error)
    return ""


def _is_marker_of(segment: LogSegment, entry: AbortedTxn) -> bool:
    """Whether the entry's producer has a control batch where the entry says; assumed in a damaged log."""
    try:
        header = segment.lookup.header_of(entry.last_offset)
    except CorruptBatch:
        return True
    if header is None or header.base_offset != entry.last_offset:
        return False
    return header.is_control and header.producer_id == entry.producer_id
