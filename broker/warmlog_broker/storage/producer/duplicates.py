"""Whether a producer's batch, older than the five remembered ones, was appended before: a search in the log.

A producer numbers its records without gaps. If the remembered batch with sequence s is at offset o, the batch with
sequence s - n is at offset o - n or below: exactly there if no other producer wrote in between. The search starts there
and goes back in growing steps.
"""

from warmlog_broker.storage.producer.producer_state import ForgottenSequence, RememberedBatch
from warmlog_broker.storage.segment.segments import LogSegments
from warmlog_protocol.batch.header import BatchHeader
from warmlog_protocol.errors import CorruptBatch, DuplicateSequence, OutOfOrderSequence

SEARCH_LIMIT_BATCHES = 10_000
"""How many batches a search reads before it gives up: some 20 ms on the event loop."""

_FIRST_STEP_OFFSETS = 1024


def find_forgotten(
    error: ForgottenSequence, header: BatchHeader, segments: LogSegments, log_start_offset: int, *, may_have_gaps: bool
) -> RememberedBatch:
    """Return the batch of the log that `header` repeats, which `ProducerStates.check` has refused with `error`.

    If it is not in the log, retention may have removed it, or compaction if there may be gaps: then DuplicateSequence,
    which producers take as success. If it cannot have been appended, that would lose it: then OutOfOrderSequence.
    """
    found, is_exhaustive = find_appended(segments, header, error.newest_first_offset, log_start_offset)
    if found is not None:
        return RememberedBatch(found.last_sequence, found.last_offset, found.last_offset_delta, found.max_timestamp_ms)
    holds_everything = log_start_offset == 0 and not may_have_gaps
    was_never_here = is_exhaustive and (error.is_new_to_producer or holds_everything)
    raise (OutOfOrderSequence if was_never_here else DuplicateSequence)(str(error)) from None


def find_appended(
    segments: LogSegments, wanted: BatchHeader, newest_first_offset: int, log_start_offset: int
) -> tuple[BatchHeader | None, bool]:
    """The batch with `wanted`'s producer, epoch and sequences whose first offset is at most `newest_first_offset`.

    Without one, the bool tells whether the whole log was searched.
    """
    upper = newest_first_offset + 1
    step = _FIRST_STEP_OFFSETS
    looked_at = 0
    found, count = _find_between(segments, wanted, newest_first_offset, upper)
    while found is None and upper > log_start_offset:
        looked_at += count
        if looked_at > SEARCH_LIMIT_BATCHES:
            return None, False
        lower = max(upper - step, log_start_offset)
        found, count = _find_between(segments, wanted, lower, upper)
        upper, step = lower, 2 * step
    return found, True


def _find_between(
    segments: LogSegments, wanted: BatchHeader, first_offset: int, end_offset: int
) -> tuple[BatchHeader | None, int]:
    """The batch, if it begins in `[first_offset, end_offset)`, and how many batches were read."""
    looked_at = 0
    for segment in segments.values(first_offset, end_offset):
        try:
            start = segment.lookup.find_batch(first_offset)
            if start is None:
                continue
            for header, _ in segment.records.batches(start.position):
                if header.base_offset >= end_offset or looked_at > SEARCH_LIMIT_BATCHES:
                    break
                looked_at += 1
                if _is_same_batch(header, wanted):
                    return header, looked_at
        except CorruptBatch:
            continue
    return None, looked_at


def _is_same_batch(header: BatchHeader, wanted: BatchHeader) -> bool:
    return (
        header.producer_id == wanted.producer_id
        and header.producer_epoch == wanted.producer_epoch
        and header.base_sequence == wanted.base_sequence
        and header.last_offset_delta == wanted.last_offset_delta
    )
