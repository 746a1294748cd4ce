"""ListOffsets: the beginning, the end, or the first record from a time on.

A lookup by time finds its place in the indexes here, and opens batches in a thread (`bodies`).

No client finds records that it may not read, whatever `replica_id` its request claims. The log end offset by itself is
no secret: tools that tell how much is not committed yet ask for it (LATEST_TIMESTAMP with DEBUGGING_REPLICA_ID).
"""

import asyncio
import logging
from functools import partial

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.replica.partition import read_bound
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.storage.cleaner.throttle import Turns
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.segment.segment import TimeSearch, TimestampAndOffset
from warmlog_protocol.errors import ApiError, CorruptBatch, ErrorCode, InvalidRequest
from warmlog_protocol.messages import (
    DEBUGGING_REPLICA_ID,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from warmlog_protocol.wire.connection import Request

PARTITIONS_A_TURN = 100
"""After so many others have their turn."""
NOT_FOUND = TimestampAndOffset(-1, -1, -1)

_log = logging.getLogger(__name__)


async def list_offsets(services: Services, asker: Asker, request: Request) -> ListOffsetsResponse:
    """One result for each partition, in the order of the request."""
    message = request.message
    assert isinstance(message, ListOffsetsRequest)
    results = []
    for number, wanted in enumerate(message.partitions):
        if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
            await asyncio.sleep(0)
        results.append(await _answer(services, asker, message, wanted))
    return ListOffsetsResponse(results)


async def _answer(
    services: Services, asker: Asker, message: ListOffsetsRequest, wanted: ListOffsetsPartition
) -> ListedOffset:
    try:
        found = await find_offset(services, asker, message, wanted)
    except ApiError as error:
        return _failed(wanted, error)
    except OSError as error:
        _log.error("%s-%d: offsets cannot be looked up: %s", wanted.topic, wanted.partition, error)
        return _failed(wanted, storage_error(f"{wanted.topic}-{wanted.partition}: {error}", error))
    except Exception:
        return _failed(wanted, own_failure(f"ListOffsets of {wanted.topic!r} {wanted.partition}"))
    return ListedOffset(
        wanted.topic, wanted.partition, ErrorCode.NONE, "", found.timestamp_ms, found.offset, found.leader_epoch
    )


async def find_offset(
    services: Services, asker: Asker, message: ListOffsetsRequest, wanted: ListOffsetsPartition
) -> TimestampAndOffset:
    """The record at the time that is `wanted`, or at one of the names that stand for one, as far as the asker may read.

    NOT_FOUND where no record is at or after the time. InvalidRequest for other negative numbers.
    """
    timestamp_ms = wanted.timestamp_ms
    bound = read_bound(message.isolation, is_replica=asker.is_replica)
    log = _log_of(services, wanted)
    if timestamp_ms == LATEST_TIMESTAMP:
        return log.latest("log_end" if message.replica_id == DEBUGGING_REPLICA_ID else bound)
    if timestamp_ms == EARLIEST_TIMESTAMP:
        return log.earliest()
    if timestamp_ms < 0 and timestamp_ms != MAX_TIMESTAMP:
        raise InvalidRequest(f"timestamp {timestamp_ms}: a time in milliseconds, or -1, -2 or -3")
    for _ in log.learn_timestamps():  # the first lookup by time since the start opens every index
        await asyncio.sleep(0)
    found = await _search(services, wanted)
    if found is None or found.offset >= _log_of(services, wanted).latest(bound).offset:
        return NOT_FOUND
    return found


async def _search(services: Services, wanted: ListOffsetsPartition) -> TimestampAndOffset | None:
    """Looks through the segments that may have the record, one after another, in a thread: batches are opened for it.

    Meanwhile the log may have changed in any way, so it is asked anew each time what is left to search.
    """
    from_offset = 0
    while (step := _next_search(_log_of(services, wanted), wanted.timestamp_ms, from_offset)) is not None:
        search, next_offset = step
        found = await _run(services, search)
        if not search.slice.is_cut:
            if found is not None:
                return found
            from_offset = next_offset
    return None


def _next_search(log: Log, timestamp_ms: int, from_offset: int) -> tuple[TimeSearch, int] | None:
    if timestamp_ms == MAX_TIMESTAMP:
        return log.search_max_timestamp(from_offset)
    return log.search_time(timestamp_ms, from_offset)


async def _run(services: Services, search: TimeSearch) -> TimestampAndOffset | None:
    max_decompressed_bytes = services.config.batch_max_decompressed_bytes
    try:
        return await services.bodies.run(partial(search.run, max_decompressed_bytes, Turns().rest))
    except CorruptBatch:
        if search.slice.is_cut:
            return None
        raise


def _log_of(services: Services, wanted: ListOffsetsPartition) -> Log:
    partition = services.topics.partition(wanted.topic, wanted.partition)
    partition.check_leader_epoch(wanted.current_leader_epoch)
    return partition.log


def _failed(wanted: ListOffsetsPartition, error: ApiError) -> ListedOffset:
    return ListedOffset(wanted.topic, wanted.partition, error.code, str(error), *NOT_FOUND)
