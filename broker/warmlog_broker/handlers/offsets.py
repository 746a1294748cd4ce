"""ListOffsets: the beginning, the end, or the first record from a time on."""

import asyncio

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.replica.partition import Partition, read_bound
from warmlog_broker.storage.segment.segment import TimestampAndOffset
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

NOT_FOUND = TimestampAndOffset(-1, -1, -1)


async def list_offsets(services: Services, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
    """One result for each partition, in the order of the request."""

    async def find(wanted: ListOffsetsPartition) -> ListedOffset:
        if wanted.timestamp_ms not in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP):
            # The first lookup by time since the start opens every index.
            for _ in _partition_of(services, wanted).log.learn_timestamps():
                await asyncio.sleep(0)
        found = find_offset(_partition_of(services, wanted), request, wanted.timestamp_ms)
        return ListedOffset(wanted.topic, wanted.partition, ErrorCode.NONE, "", *found)

    items = Items(services, context, "ListOffsets")
    return ListOffsetsResponse(await items.handle_all(request.partitions, find, _offset_not_found))


def _partition_of(services: Services, wanted: ListOffsetsPartition) -> Partition:
    partition = services.topics.partition(wanted.topic, wanted.partition)
    partition.check_leader_epoch(wanted.current_leader_epoch)
    return partition


def find_offset(partition: Partition, request: ListOffsetsRequest, timestamp_ms: int) -> TimestampAndOffset:
    """What lies at `timestamp_ms`, or at one of the names that stand for one, as far as the asker may read.

    NOT_FOUND where no record is at or after the time. InvalidRequest for other negative numbers.
    """
    log = partition.log
    bound = read_bound(request.isolation, request.replica_id)
    if timestamp_ms == LATEST_TIMESTAMP:
        return log.latest(bound)
    if timestamp_ms == EARLIEST_TIMESTAMP:
        return log.earliest()
    if timestamp_ms == MAX_TIMESTAMP:
        found = log.max_timestamp()
    elif timestamp_ms >= 0:
        found = log.offset_for_timestamp(timestamp_ms)
    else:
        raise InvalidRequest(f"timestamp {timestamp_ms}: a time in milliseconds, or -1, -2 or -3")
    if found is None or found.offset >= log.latest(bound).offset:
        return NOT_FOUND
    return found


def _offset_not_found(wanted: ListOffsetsPartition, error: ApiError) -> ListedOffset:
    return ListedOffset(wanted.topic, wanted.partition, error.code, str(error), *NOT_FOUND)
