"""What the batches of a log say about its producers: after a start, after a truncation, and for one segment.

The newest snapshot that is intact gives the state at its offset; the batches behind it give the rest. Their sequences
and epochs are not judged: they were when they were appended. A walk goes around damage, of which nothing can be known.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.io.os_errors import is_shortage
from warmlog_broker.storage.producer.producer_state import ProducerStates
from warmlog_broker.storage.producer.snapshots import ProducerSnapshots
from warmlog_broker.storage.record.batch_scan import DamagedLog
from warmlog_broker.storage.record.damage import Damage, find_behind_damage
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.batch import EndTxnMarker, read_batch
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.errors import CorruptBatch

logger = logging.getLogger(__name__)

SNAPSHOTS_KEPT_AT_BASES = 2
"""Snapshots that are missing at the bases of this many last segments are taken again when the log is replayed."""
MARKER_BYTES = 64 * 1024
"""A control batch that takes more, as it is or decompressed, is not opened: markers take 80, and the replay may run in
the thread that serves everybody."""


class WalkedBatch(NamedTuple):
    """A batch, and where it lies."""

    segment: LogSegment
    header: BatchHeader
    position: int


def walk_batches(
    segments: LogSegments, from_offset: int, log_end_offset: int, damage: Sequence[Damage] = ()
) -> Iterator[WalkedBatch]:
    """Each batch with offsets from `from_offset` on, without what is damaged."""
    damaged: set[tuple[Path, int]] = {(place.path, place.position) for place in damage}
    for segment in segments.values(from_offset, log_end_offset + 1):
        end_offset = segment.base_offset
        position: int | None = 0
        while position is not None:
            try:
                for header, at in segment.records.batches(position):
                    end_offset = header.next_offset
                    if header.last_offset >= from_offset and (segment.path, at) not in damaged:
                        yield WalkedBatch(segment, header, at)
                position = None
            except DamagedLog as error:
                behind = find_behind_damage(segment.records, error.position, end_offset, log_end_offset)
                position = behind[0] if behind else None


def restore_producers(
    states: ProducerStates,
    snapshots: ProducerSnapshots,
    segments: LogSegments,
    end_offset: int,
    *,
    damage: Sequence[Damage],
    now_ms: int,
) -> bool:
    """Makes `states` what they are at `end_offset`: the newest intact snapshot, and the batches after it.

    The walk begins earlier where a transaction index is to be made anew, and does so on its way. Transactions that were
    over before, with a marker that may lie above the high watermark, go on to hold the last stable offset back: no
    snapshot tells of them. (Kafka forgets them, as it never truncates above the high watermark.) Snapshots that do not
    fit the segments are removed. False when no batch had to be read.
    """
    still_unsure = states.transactions.completed_before(end_offset)
    bases = segments.base_offsets
    snapshots.remove_outside(bases[0], end_offset)
    snapshots.remove_strays(bases)
    found: dict[int, list[AbortedTxn]] = {s.base_offset: [] for s in segments if s.transactions.is_to_be_rebuilt}
    snapshots.load_newest(states, first_offset=bases[0], at_most=min(found, default=end_offset), now_ms=now_ms)
    if states.end_offset == end_offset:
        states.transactions.hold_back(still_unsure)
        return False
    bases_without_snapshot = [
        base for base in bases[-SNAPSHOTS_KEPT_AT_BASES:] if base > states.end_offset and base not in snapshots
    ]
    for batch in walk_batches(segments, states.end_offset, end_offset, damage):
        while bases_without_snapshot and bases_without_snapshot[0] <= batch.header.base_offset:
            states.end_offset = bases_without_snapshot.pop(0)
            snapshots.take(states, sync=False)
        aborted = replay(states, batch, now_ms)
        if aborted is not None and batch.segment.base_offset in found:
            found[batch.segment.base_offset].append(aborted)
    states.end_offset = end_offset
    states.transactions.hold_back(still_unsure)
    for base_offset, entries in found.items():
        segment = segments.get(base_offset)
        assert segment is not None
        _rebuild(segment, entries)
    return True


def _rebuild(segment: LogSegment, entries: list[AbortedTxn]) -> None:
    """Writes a transaction index; if the disk is too full, the first reader of committed data has it tried again."""
    try:
        segment.transactions.replace(entries)
    except OSError as error:
        if not is_shortage(error):
            raise
        logger.warning("%s was not written: %s", segment.transactions.path, error)
        segment.transactions.leave_empty()


def aborted_in_segment(
    segment: LogSegment,
    segments: LogSegments,
    snapshots: ProducerSnapshots,
    *,
    damage: Sequence[Damage] = (),
    now_ms: int,
) -> list[AbortedTxn]:
    """What the transaction index of one segment should hold, by the log alone."""
    states = ProducerStates()
    first_offset = segments.base_offsets[0]
    snapshots.load_newest(states, first_offset=first_offset, at_most=segment.base_offset, now_ms=now_ms)
    following = segments.higher(segment.base_offset)
    end_offset = segment.read_next_offset() if following is None else following.base_offset
    found = []
    for batch in walk_batches(segments, states.end_offset, end_offset - 1, damage):
        aborted = replay(states, batch, now_ms)
        if aborted is not None and batch.segment is segment:
            found.append(aborted)
    return found


def replay(states: ProducerStates, batch: WalkedBatch, now_ms: int) -> AbortedTxn | None:
    """Takes over one batch as the log holds it; returns the entry that it makes in its segment's transaction index."""
    header = batch.header
    if not header.is_control:
        states.replay(header, now_ms)
        return None
    marker = _read_marker(batch)
    if marker is None:
        return None
    aborted = states.aborted_by(header, marker.control_type)
    states.end_transaction(header, marker, now_ms)
    return aborted


def _read_marker(batch: WalkedBatch) -> EndTxnMarker | None:
    """The marker in a control batch; None for other control batches, which concern no producer."""
    segment, header, position = batch
    try:
        if header.size_bytes > MARKER_BYTES:
            raise CorruptBatch(f"{header.size_bytes} bytes, no marker takes more than {MARKER_BYTES}")
        data = segment.records.read(position, header.size_bytes)
        control_batch = read_batch(data, max_decompressed_bytes=MARKER_BYTES)
        control_type = control_batch.control_type
        if control_type is not None and control_type.is_end_txn:
            return control_batch.end_txn_marker()
    except CorruptBatch as error:
        logger.warning("%s, position %d: a control batch that says nothing: %s", segment.path, position, error)
    return None
