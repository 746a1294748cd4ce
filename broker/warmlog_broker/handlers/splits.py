"""FindSplits: where a bulk reader can cut ranges of partitions, so that each of its tasks reads about as much.

It proceeds segment by segment: indexes are read here, headers in a thread. Other requests are served in between.
"""

import time

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_partition, handle_all
from warmlog_broker.network.request import RequestContext, Response
from warmlog_broker.storage.segment.splits import Split, measure
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, InvalidRequest

MIN_TARGET_BYTES = 4096
"""The smallest distance between two cuts, limited by the distance of index entries."""

MAX_SCAN_MS = 60_000
"""Reading headers keeps one of `cold.read.threads` busy."""
MAX_SPLITS = 100_000
"""The most in one response; each takes some 30 bytes."""


async def find_splits(services: Services, _context: RequestContext, request: m.FindSplitsRequest) -> Response:
    """One result for each range, in the order of the request."""
    deadline_s = time.monotonic() + min(request.max_scan_ms, MAX_SCAN_MS) / 1000

    async def find(wanted: m.FindSplitsPartition) -> m.FoundSplits:
        splits = await _splits(services, request, wanted, deadline_s)
        found = [m.FoundSplit(*split) for split in splits]
        return m.FoundSplits(wanted.topic, wanted.partition, ErrorCode.NONE, "", found)

    return m.FindSplitsResponse(await handle_all(services, request.partitions, find, failed_partition(m.FoundSplits)))


async def _splits(
    services: Services, request: m.FindSplitsRequest, wanted: m.FindSplitsPartition, deadline_s: float
) -> list[Split]:
    if wanted.start_offset > wanted.end_offset or request.target_bytes < 1:
        raise InvalidRequest(
            f"{wanted.topic}-{wanted.partition}: splits of {request.target_bytes} bytes in offsets "
            f"{wanted.start_offset} to {wanted.end_offset}"
        )
    services.topics.identified(wanted.topic, wanted.topic_id)
    log = services.topics.partition(wanted.topic, wanted.partition).log
    target_bytes = max(request.target_bytes, MIN_TARGET_BYTES)
    times = services.timestamp_cache if request.max_scan_ms > 0 else None
    splits: list[Split] = []
    for extents, end_offset in log.reader.find_extents(wanted.start_offset, wanted.end_offset, target_bytes):
        splits += await services.loop.run_in_executor(
            services.cold_readers, measure, extents, end_offset, times, deadline_s
        )
        if len(splits) > MAX_SPLITS:
            raise InvalidRequest(
                f"{wanted.topic}-{wanted.partition}: more than {MAX_SPLITS} splits of {target_bytes} bytes"
            )
    return splits
