"""DescribeStatus, DescribePartitions and TraceIndex: what people want to see of a running broker."""

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_partition, handle_all
from warmlog_broker.network.request import RequestContext, Response
from warmlog_broker.replica.partition_state import PartitionState
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.search import trace_searches
from warmlog_broker.storage.log.log import Log
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, InvalidRequest

MAX_SEGMENTS = 1000
"""The most that are described of a partition: each costs a stat of its index file."""
MAX_SEGMENTS_TOLD = 10 * MAX_SEGMENTS
"""The most in a response: those of the partitions that come first."""


def problems_of(services: Services) -> list[str]:
    """Return a sentence for each thing that is wrong with a broker that serves."""
    problems = [f"data directory {each.path} was not usable at the start" for each in services.directories.offline]
    for directory in services.directories:
        if directory.failure:
            problems.append(f"data directory {directory.path} has failed: {directory.failure}")
        elif directory.room.is_short:
            problems.append(f"data directory {directory.path} takes no records: {directory.room}")
    offline = sum(each.state is PartitionState.OFFLINE for each in services.topics.partitions)
    if offline:
        problems.append(f"{offline} partitions are offline")
    if lagging := lagging_replicas(services):
        problems.append(f"{lagging} of its replicas are not in sync")
    return problems


def lagging_replicas(services: Services) -> int:
    """Return how many replicas of this broker are not in sync; none, if it is a cluster alone."""
    view = services.cluster
    return sum(
        view.node_id not in view.leadership(topic.topic_id, number, here).in_sync_replicas
        for topic in (services.topics if services.between_brokers is not None else ())
        for number, here in topic.local.items()
    )


async def describe_status(services: Services, _context: RequestContext, _request: m.DescribeStatusRequest) -> Response:
    """Counters by topic leave out those to which nothing was appended and from which nothing was read."""
    counters, connections = services.counters, services.connections
    flushes = [
        m.FlushCounts(str(path), [round(bound_s * 1e6) for bound_s in flushed.bounds], flushed.counts.copy())
        for path, flushed in ((each.path, each.flusher.flush_seconds) for each in services.directories)
    ]
    counted = sorted(counters.appended_records.keys() | counters.fetched_bytes.keys())
    return m.DescribeStatusResponse(
        not services.directories.all_have_failed.is_set(),
        problems_of(services),
        now_ms(),
        len(connections),
        connections.limit,
        sum(connection.requests_in_flight for connection in connections),
        flushes,
        [
            m.TopicCounts(
                name, counters.appended_records[name], counters.appended_bytes[name], counters.fetched_bytes[name]
            )
            for name in counted
        ],
    )


async def describe_partitions(
    services: Services, _context: RequestContext, request: m.DescribePartitionsRequest
) -> m.DescribePartitionsResponse:
    """One result for each partition, in the order of the request; InvalidRequest if one is named twice."""
    if len({(each.topic, each.partition) for each in request.partitions}) < len(request.partitions):
        raise InvalidRequest("a partition is named twice: name each once")
    left = MAX_SEGMENTS_TOLD

    async def describe(wanted: m.InspectedPartition) -> m.DescribedPartition:
        nonlocal left
        log = services.topics.partition(wanted.topic, wanted.partition).log
        described = _described(log, wanted, min(request.max_segments, MAX_SEGMENTS, left))
        left -= len(described.segments)
        return described

    failed = failed_partition(m.DescribedPartition)
    return m.DescribePartitionsResponse(await handle_all(services, request.partitions, describe, failed))


def _described(log: Log, wanted: m.InspectedPartition, max_segments: int) -> m.DescribedPartition:
    segments = log.local.segments
    newest = segments.base_offsets[-max_segments:] if max_segments > 0 else []
    listed = [
        m.SegmentDescription(base, segment.size_bytes, segment.indexes.offset.count_entries())
        for base in newest
        if (segment := segments.get(base)) is not None
    ]
    return m.DescribedPartition(
        wanted.topic,
        wanted.partition,
        ErrorCode.NONE,
        "",
        log.log_start_offset,
        log.bounds.last_stable_offset,
        log.high_watermark,
        log.log_end_offset,
        log.size_bytes,
        len(segments),
        listed,
    )


async def trace_index(services: Services, _context: RequestContext, request: m.TraceIndexRequest) -> Response:
    """The searches read the index as a fetch does. InvalidRequest if no segment up to the offset has an index entry."""
    log = services.topics.partition(request.topic, request.partition).log
    index = _searched_index(log, request)
    offset = index.last_offset if request.offset < 0 else request.offset
    target = offset - index.base_offset
    searches = [
        m.IndexSearch(name, slots, lower)
        for name, slots, lower in trace_searches(index.probe(index.key), index.entries, index.warm_entries, target)
    ]
    return m.TraceIndexResponse(
        index.base_offset, offset, index.entries, index.entry_bytes, index.warm_entries, searches
    )


def _searched_index(log: Log, request: m.TraceIndexRequest) -> OffsetIndex:
    segments = log.local.segments
    found = segments.active if request.offset < 0 else segments.floor(request.offset)
    while found is not None:
        index = found.indexes.for_offsets(defers_rebuild=True)
        if index is not None and index.entries:
            return index
        found = segments.lower(found.base_offset)
    raise InvalidRequest(
        f"{request.topic}-{request.partition} has no index entry up to that offset: a segment gets its first one once "
        "it has more than index.interval.bytes of records"
    )
