"""Rebuild the state of a log's producers from its batches: after a start, after a truncation, and for one segment.

The newest intact snapshot gives the state at its offset; the batches after it give the rest. Their sequences and epochs
are not validated again. Damaged batches are skipped.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.snapshots import ProducerSnapshots
from warmlog_broker.storage.segment.scan import Damage, scan
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_indexes import place_in_segment
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.batch import EndTxnMarker, read_batch
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.errors import CorruptBatch

logger = logging.getLogger(__name__)

SNAPSHOTS_KEPT_AT_BASES = 2
"""A log replay writes missing snapshots at the base offsets of this many last segments."""
MARKER_BYTES = 64 * 1024
"""A larger control batch, stored or decompressed, is not decoded: markers take 80 bytes, and a replay may run on the
event loop."""

_new_tuple = tuple.__new__  # a third of the time that a NamedTuple takes, at each batch


class WalkedBatch(NamedTuple):
    segment: LogSegment
    header: BatchHeader
    position: int


def walk_batches(
    segments: LogSegments, from_offset: int, last_base_offset: int, damage: Sequence[Damage] = ()
) -> Iterator[WalkedBatch]:
    """Yield each batch with offsets from `from_offset` on that is not damaged, up to the end of the last segment that
    begins at or before `last_base_offset`."""
    for segment in segments.values(from_offset, last_base_offset + 1):
        damaged = {each.position for each in damage if each.path == segment.path}
        start = 0 if from_offset <= segment.base_offset else _start_in(segment, from_offset)
        for found in scan(segment.records, start, place_in_segment(segment.base_offset)):
            if isinstance(found, tuple):
                header, position = found
                if header.base_offset + header.last_offset_delta >= from_offset and position not in damaged:
                    yield _new_tuple(WalkedBatch, (segment, header, position))


def _start_in(segment: LogSegment, from_offset: int) -> int:
    """Return the position of the first batch with an offset from `from_offset` on; 0 if damage hides it."""
    try:
        found = segment.lookup.find_batch(from_offset)
    except CorruptBatch:
        return 0
    return segment.size_bytes if found is None else found.position


def restore_producers(
    states: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: LogSegments,
    end_offset: int,
    *,
    damage: Sequence[Damage],
    now_ms: int,
) -> bool:
    """Set `states` to the state at `end_offset`: the newest intact snapshot, and the batches after it.

    The replay begins earlier if a transaction index must be rebuilt, which it does too. Snapshots that do not fit the
    segments are removed. Completed transactions whose markers may be above the high watermark keep holding the last
    stable offset back, although no snapshot contains them. (Kafka forgets them, as it never truncates above the high
    watermark.) False if no batch had to be read.
    """
    unconfirmed = states.transactions.completed_before(end_offset)
    bases = segments.base_offsets
    snapshots.remove_outside(bases[0], end_offset)
    wrong = [segment.transactions for segment in segments if segment.transactions.needs_rebuild]
    to_rebuild = {index.base_offset: index.right_entries() for index in wrong}
    start_at_most = min((index.right_below for index in wrong), default=end_offset)
    snapshots.load_newest(states, first_offset=bases[0], at_most=start_at_most, now_ms=now_ms)
    snapshots.remove_strays(bases)
    must_replay = states.end_offset != end_offset
    if must_replay:
        missing_snapshots = [base for base in bases[-SNAPSHOTS_KEPT_AT_BASES:] if base not in snapshots]
        for batch in walk_batches(segments, states.end_offset, end_offset, damage):
            while missing_snapshots and missing_snapshots[0] <= batch.header.base_offset:
                base_offset = missing_snapshots.pop(0)
                if base_offset > states.end_offset:
                    states.end_offset = base_offset
                    snapshots.take(states)
            aborted = replay(states, batch, now_ms)
            index = batch.segment.transactions
            if aborted is not None and index.needs_rebuild and aborted.last_offset >= index.right_below:
                to_rebuild[index.base_offset].append(aborted)
        states.end_offset = end_offset
        _rebuild_transaction_indexes(segments, to_rebuild)
    states.transactions.hold_back(unconfirmed)
    return must_replay


def _rebuild_transaction_indexes(segments: LogSegments, entries: dict[int, list[AbortedTxn]]) -> None:
    """Write the transaction indexes by base offset. If the disk is full, the next read_committed reader tries again."""
    for base_offset, aborted in entries.items():
        segment = segments.get(base_offset)
        assert segment is not None
        try:
            segment.transactions.replace(aborted)
        except OSError as error:
            if not is_resource_exhaustion(error):
                raise
            logger.warning("%s was not written: %s", segment.transactions.path, error)
            segment.transactions.leave_empty()


def replay(states: ProducerStates, batch: WalkedBatch, now_ms: int) -> AbortedTxn | None:
    """Record one batch of the log; returns the entry that it adds to its segment's transaction index."""
    header = batch.header
    if not header.is_control:
        states.replay(header, now_ms)
        return None
    segment, _, position = batch
    marker = read_marker(header, lambda: segment.records.read(position, header.size_bytes))
    if marker is None:
        return None
    aborted = states.aborted_by(header, marker.control_type)
    states.end_transaction(header, marker, now_ms)
    return aborted


def read_marker(header: BatchHeader, read: Callable[[], bytes]) -> EndTxnMarker | None:
    """Return the marker in a control batch, which `read` returns; None for any other batch, and a malformed one."""
    if not header.is_control:
        return None
    try:
        if header.size_bytes > MARKER_BYTES:
            raise CorruptBatch(f"{header.size_bytes} bytes, a marker takes at most {MARKER_BYTES}")
        batch = read_batch(read(), max_decompressed_bytes=MARKER_BYTES)
        control_type = batch.control_type
        if control_type is not None and control_type.is_end_txn:
            return batch.end_txn_marker()
    except CorruptBatch as error:
        logger.warning("skipped a malformed control batch at offset %d: %s", header.base_offset, error)
    return None
