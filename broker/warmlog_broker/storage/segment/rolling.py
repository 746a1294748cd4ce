"""When a new segment begins."""

from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.segment.segment import LogSegment


def should_roll(
    segment: LogSegment,
    *,
    incoming_bytes: int,
    incoming_last_offset: int,
    incoming_max_timestamp_ms: int,
    segment_bytes: int,
    segment_ms: int,
    now_ms: int,
) -> bool:
    """Whether a batch needs a new segment.

    It does if this one would grow too large, is too old, has a full index, or if the batch's offset is too far from the
    base offset. An empty segment is never too large or too old: another would be no better.
    """
    size_bytes = segment.records.size_bytes
    return (
        size_bytes > max(segment_bytes - incoming_bytes, 0)
        or not 0 <= incoming_last_offset - segment.base_offset <= MAX_RELATIVE_OFFSET
        or segment.indexes.are_full()
        or (
            size_bytes > 0
            and time_waited_for_roll_ms(segment, now_ms, incoming_max_timestamp_ms)
            > segment_ms - segment.roll_jitter_ms
        )
    )


def time_waited_for_roll_ms(segment: LogSegment, now_ms: int, incoming_max_timestamp_ms: int) -> int:
    """The age that segment.ms limits: from the first batch's timestamp to the incoming one's.

    So a stream of old records never rolls by time (KAFKA-4099). If the first batch has no timestamp, it is the time
    since the segment was created or opened.
    """
    first_ms = segment.first_batch_timestamp_ms()
    if first_ms is not None and first_ms >= 0:
        return incoming_max_timestamp_ms - first_ms
    return now_ms - segment.created_ms


def is_overdue(segment: LogSegment, *, segment_ms: int, now_ms: int) -> bool:
    """Whether a segment that has data has been active for longer than `segment_ms` by the clock.

    Appends roll by the records' timestamps; this is for logs without appends.
    """
    return segment.size_bytes > 0 and now_ms - segment.created_ms > segment_ms - segment.roll_jitter_ms
