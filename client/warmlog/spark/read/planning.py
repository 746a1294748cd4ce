"""Turns options into tasks: asks the broker once for its offsets, and fixes the ranges of one load()."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from warmlog.errors import ApiError, BrokerUnavailable, UnknownTopicOrPartition, may_pass
from warmlog.points import Point
from warmlog.ranges.discover import Discovery
from warmlog.ranges.offset_range import OffsetRange, PartitionOffsets, SizedRange, sized_ranges
from warmlog.ranges.resolve import resolve_ranges, starting_times
from warmlog.spark.options.read_options import PlanLimits, ReadOptions, Retries, TopicChoice
from warmlog.spark.read.group_offsets import started_where_committed
from warmlog.spark.read.plan import Task, plan_tasks
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition, partition_range
from warmlog_transport.retries import pause_s

T = TypeVar("T")

_log = logging.getLogger("warmlog.spark")

PIECES_A_TASK = 16
"""How many cuts at ends of batches to request for each task's worth of bytes."""
FINE_PIECE_BYTES = 1024 * 1024
"""The most bytes between cuts if the user sets `minPartitions`."""
MAX_SCAN_MS = 10_000
"""How long the broker may read headers to find what is outside the requested times."""


def retrying(request: Callable[[], T], retries: Retries, *, patience_s: float = 0.0) -> T:
    """Return what `request` returns; retry after each failure that may pass (see `may_pass`).

    Raises the error after so many `retries`, but not before `patience_s`.
    """
    options = ConnectionOptions(retry_backoff_ms=retries.interval_ms, retry_backoff_max_ms=retries.interval_ms)
    ends_at = time.monotonic() + patience_s
    retried = 0
    while True:
        wait_s = pause_s(1, options)
        try:
            return request()
        except (BrokerUnavailable, ApiError) as error:
            is_over = retried >= retries.count and time.monotonic() + wait_s > ends_at
            if is_over or not may_pass(error):
                raise
            if not retried:
                _log.warning("%s; retrying, first in %d ms", error, wait_s * 1000)
        time.sleep(wait_s)
        retried += 1


def plan_batch(options: ReadOptions) -> list[Task]:
    """Return the tasks of a batch. Warns about data loss if the options allow it."""
    return retrying(lambda: _plan(options), options.retries)


def _plan(options: ReadOptions) -> list[Task]:
    reading = options.reading
    with Discovery(reading.bootstrap, reading.connection, isolation=reading.isolation) as discovery:
        named = (points for points in (options.bounds.starting, options.bounds.ending) if not isinstance(points, Point))
        existed = set() if options.bounds.fails_on_data_loss else {tp for points in named for tp in points}
        states = chosen_states(discovery, options.topics, existed)  # what has offsets has existed
        bounds = started_where_committed(options.bounds, options.group, discovery, states)
        times = discovery.offsets(starting_times(bounds.starting, states))
        resolved = resolve_ranges(states, bounds, times)
        sized = size_ranges(discovery, resolved.ranges, options.limits)
    for loss in resolved.losses:
        _log.warning("%s; skipped, as failOnDataLoss is false", loss)
    if reading.limit is not None:
        whole = tuple(each.range for each in sized if each.range.span)
        return [whole] if whole else []
    return plan_tasks(sized, options.limits)


def size_ranges(discovery: Discovery, ranges: Sequence[OffsetRange], limits: PlanLimits) -> list[SizedRange]:
    """Return the ranges with the borders of their batches, without what is known to be outside their times."""
    piece_bytes = limits.max_bytes // PIECES_A_TASK
    if limits.min_partitions is not None:
        piece_bytes = min(piece_bytes, FINE_PIECE_BYTES)
    has_end_time = any(planned.until_ms is not None for planned in ranges)
    splits = discovery.splits(ranges, max(piece_bytes, 1), max_scan_ms=MAX_SCAN_MS if has_end_time else 0)
    return [sized for planned, found in zip(ranges, splits, strict=True) for sized in sized_ranges(planned, found)]


def chosen_states(
    discovery: Discovery, choice: TopicChoice, known: Collection[TopicPartition] = (), *, fails_on_missing: bool = True
) -> list[PartitionOffsets]:
    """Return the partitions that the options choose.

    With `fails_on_missing`, raises UnknownTopicOrPartition for a named topic or partition that does not exist, and for
    a pattern without a match. Partitions in `known` existed earlier and may be gone, with their topics.
    """
    if choice.pattern:
        topics = discovery.topics_like(choice.pattern, may_be_none=not fails_on_missing or len(known) > 0)
    else:
        topics = discovery.topics(choice.names, {topic for topic, _ in known} if fails_on_missing else choice.names)
    counts = {name: len(topic.partitions) for name, topic in topics.items()}
    for topic, count in sorted(counts.items()) if fails_on_missing else ():
        beyond = choice.named_beyond(topic, count)
        if unknown := [each for each in beyond if any((topic, number) not in known for number in each)]:
            missing = ", ".join(f"{each[0]} to {each[-1]}" if len(each) > 1 else f"{each[0]}" for each in unknown)
            raise UnknownTopicOrPartition(f"topic {topic} has the {partition_range(count)}, not {missing}")
    return discovery.states(topics, choice.includes)
