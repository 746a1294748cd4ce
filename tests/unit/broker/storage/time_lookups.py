"""Lookups by time with all their steps, as the broker takes them in two threads."""

import sys

from warmlog_broker.storage.log.local_log import ReadBound
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_lookup import LargestSearch, TimeSearch, TimestampAndOffset
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES


def record_at(log: Log, timestamp_ms: int) -> TimestampAndOffset | None:
    """The first record with this timestamp or a later one."""
    from_offset = 0
    while (step := log.reader.search_time(timestamp_ms, from_offset)) is not None:
        search, from_offset = step
        if (found := _run(search)) is not None:
            return found
    return None


def latest_record(log: Log, bound: ReadBound = "log_end") -> TimestampAndOffset | None:
    """The first record with the largest timestamp."""
    best: TimestampAndOffset | None = None
    searched: set[int] = set()
    while (step := log.reader.search_largest(bound, searched, best)) is not None:
        search, base_offset = step
        searched.add(base_offset)
        found = _run(search)
        best = max(filter(None, (best, found)), key=lambda each: (each.timestamp_ms, -each.offset), default=None)
    return best


def record_in(segment: LogSegment, timestamp_ms: int, starting_offset: int) -> TimestampAndOffset | None:
    """The first record from `starting_offset` on with this timestamp or a later one."""
    return _run(segment.lookup.search_time(timestamp_ms, starting_offset))


def latest_record_in(segment: LogSegment) -> TimestampAndOffset | None:
    """The first record with the largest timestamp."""
    if segment.max_timestamp_ms < 0:
        return None
    return _run(segment.lookup.search_largest(segment.max_timestamp, segment.base_offset, sys.maxsize))


def _run(search: TimeSearch | LargestSearch) -> TimestampAndOffset | None:
    return search.run(DEFAULT_MAX_DECOMPRESSED_BYTES, lambda: None, sys.maxsize)
