"""FindSplits: where a bulk reader can cut ranges of partitions, so that its tasks have about as much to read each.

Segment by segment: indexes are looked into here, headers are read in a thread. In between, others have their turn, so
that a range of a thousand segments stops nobody.
"""

import logging
import time

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.segment.splits import Split, measure
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest
from warmlog_protocol.messages import (
    FindSplitsPartition,
    FindSplitsRequest,
    FindSplitsResponse,
    FoundSplit,
    FoundSplits,
)
from warmlog_protocol.wire.connection import Request

MIN_TARGET_BYTES = 4096
"""Of the distance between two cuts: an index has an entry every so often."""

MAX_SCAN_MS = 60_000
"""Reading headers keeps one of `cold.read.threads` busy."""
MAX_SPLITS = 100_000
"""In one answer, where each takes some 30 bytes."""

_log = logging.getLogger(__name__)


async def find_splits(services: Services, asker: Asker, request: Request) -> FindSplitsResponse:  # noqa: ARG001
    """One result for each range, in the order of the request."""
    message = request.message
    assert isinstance(message, FindSplitsRequest)
    deadline_s = time.monotonic() + min(message.max_scan_ms, MAX_SCAN_MS) / 1000
    return FindSplitsResponse([await _answer(services, message, wanted, deadline_s) for wanted in message.partitions])


async def _answer(
    services: Services, message: FindSplitsRequest, wanted: FindSplitsPartition, deadline_s: float
) -> FoundSplits:
    try:
        splits = await _splits(services, message, wanted, deadline_s)
    except ApiError as error:
        return FoundSplits(wanted.topic, wanted.partition, error.code, str(error))
    except OSError as error:
        _log.error("%s-%d: splits cannot be found: %s", wanted.topic, wanted.partition, error)
        failure = storage_error(f"{wanted.topic}-{wanted.partition}: {error}", error)
        return FoundSplits(wanted.topic, wanted.partition, failure.code, str(failure))
    except Exception:
        bug = own_failure(f"FindSplits of {wanted.topic!r} {wanted.partition}")
        return FoundSplits(wanted.topic, wanted.partition, bug.code, str(bug))
    found = [FoundSplit(*split) for split in splits]
    return FoundSplits(wanted.topic, wanted.partition, ErrorCode.NONE, "", found)


async def _splits(
    services: Services, message: FindSplitsRequest, wanted: FindSplitsPartition, deadline_s: float
) -> list[Split]:
    if wanted.start_offset > wanted.end_offset or message.target_bytes < 1:
        raise InvalidRequest(
            f"{wanted.topic}-{wanted.partition}: splits of {message.target_bytes} bytes in offsets "
            f"{wanted.start_offset} to {wanted.end_offset}"
        )
    services.topics.identified(wanted.topic, wanted.topic_id)
    log = services.topics.partition(wanted.topic, wanted.partition).log
    target_bytes = max(message.target_bytes, MIN_TARGET_BYTES)
    times = services.times_found if message.max_scan_ms > 0 else None
    splits: list[Split] = []
    for stretches, end_offset in log.find_stretches(wanted.start_offset, wanted.end_offset, target_bytes):
        splits += await services.loop.run_in_executor(
            services.cold_readers, measure, stretches, end_offset, times, deadline_s
        )
        if len(splits) > MAX_SPLITS:
            raise InvalidRequest(
                f"{wanted.topic}-{wanted.partition}: more than {MAX_SPLITS} splits of {target_bytes} bytes"
            )
    return splits
