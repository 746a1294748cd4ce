"""Lookups by time with all their steps, as the broker takes them in two threads."""

import sys

from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_broker.storage.segment.segment_lookup import TimeSearch, TimestampAndOffset
from warmlog_protocol.codec.compression import DEFAULT_MAX_DECOMPRESSED_BYTES


def record_at(log: Log, timestamp_ms: int) -> TimestampAndOffset | None:
    """The first record with this timestamp or a later one."""
    from_offset = 0
    while (step := log.reader.search_time(timestamp_ms, from_offset)) is not None:
        search, from_offset = step
        if (found := _run(search)) is not None:
            return found
    return None


def latest_record(log: Log) -> TimestampAndOffset | None:
    """The first record with the largest timestamp."""
    step = log.reader.search_max_timestamp()
    return None if step is None else _run(step[0])


def record_in(segment: LogSegment, timestamp_ms: int, starting_offset: int) -> TimestampAndOffset | None:
    """The first record from `starting_offset` on with this timestamp or a later one."""
    return _run(segment.lookup.search_time(timestamp_ms, starting_offset))


def latest_record_in(segment: LogSegment) -> TimestampAndOffset | None:
    """The first record with the largest timestamp."""
    search = segment.search_max_timestamp()
    return None if search is None else _run(search)


def _run(search: TimeSearch) -> TimestampAndOffset | None:
    return search.run(DEFAULT_MAX_DECOMPRESSED_BYTES, lambda: None, sys.maxsize)
