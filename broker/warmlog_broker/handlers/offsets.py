"""Offsets of partitions: ListOffsets, OffsetForLeaderEpoch and DeleteRecords, which moves the first one.

ListOffsets tells the beginning, the end, or the first record from a time on; OffsetForLeaderEpoch where a leader epoch
ends.

DeleteRecords gives up the oldest records of partitions by raising their log start offsets. The response is sent once
the checkpoint of log starts has been written, which a start trusts whatever has happened after. The checkpoint and not
the metadata log, because retention raises the log start as well: so there is one place that says where a log begins. It
is in the data directory of that log, and goes along when a partition moves. A start never takes the log start for
higher than the end of the log, and what is below it was durable before. Files of segments that are entirely below the
log start are removed by the next run of retention.
"""

import asyncio
import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.replica.partition import Partition, read_bound
from warmlog_broker.storage.directory.leader_epochs import NO_EPOCH, NO_OFFSET
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.segment.segment import TimestampAndOffset
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest, StorageError
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    EpochEndOffset,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochPartition,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

NOT_FOUND = TimestampAndOffset(-1, -1, -1)

_log = logging.getLogger(__name__)


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


def _partition_of(services: Services, wanted: ListOffsetsPartition | OffsetForLeaderEpochPartition) -> Partition:
    """The partition, if the asker knows its leader epoch, or does not care."""
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


async def offset_for_leader_epoch(
    services: Services, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """One result for each partition, in the order of the request."""

    async def find(wanted: OffsetForLeaderEpochPartition) -> EpochEndOffset:
        log = _partition_of(services, wanted).log
        epoch, end_offset = log.end_offset_for_epoch(wanted.leader_epoch)
        return EpochEndOffset(wanted.topic, wanted.partition, ErrorCode.NONE, "", epoch, end_offset, log.log_end_offset)

    items = Items(services, context, "OffsetForLeaderEpoch")
    return OffsetForLeaderEpochResponse(await items.handle_all(request.partitions, find, _epoch_not_found))


def _epoch_not_found(wanted: OffsetForLeaderEpochPartition, error: ApiError) -> EpochEndOffset:
    return EpochEndOffset(wanted.topic, wanted.partition, error.code, str(error), NO_EPOCH, NO_OFFSET, NO_OFFSET)


async def delete_records(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> DeleteRecordsResponse:
    """One result for each partition, in the order of the request; one that is refused does not keep the others."""
    raised: list[Partition] = []

    async def raise_log_start(wanted: DeleteRecordsPartition) -> DeletedRecords:
        partition = services.topics.partition(wanted.topic, wanted.partition)
        log = partition.log
        if partition.is_settling:
            raise StorageError(f"{partition.key.directory_name} has just moved to another data directory: try again")
        if partition.is_frozen:
            raise StorageError(f"{partition.key.directory_name} lies on a read-only disk")
        low_watermark = log.delete_records(wanted.offset)
        raised.append(partition)
        return DeletedRecords(wanted.topic, wanted.partition, ErrorCode.NONE, "", low_watermark)

    items = Items(services, context, "DeleteRecords")
    results = await items.handle_all(request.partitions, raise_log_start, _not_deleted)
    try:
        await services.directories.write_down(raised)
    except OSError as error:
        _log.error("log starts could not be written down: %s", error)
        failure = storage_error(f"the log start could not be made durable: {error}", error)
        results = [
            result if result.error_code else _not_deleted(wanted, failure)
            for result, wanted in zip(results, request.partitions, strict=True)
        ]
    return DeleteRecordsResponse(results)


def _not_deleted(wanted: DeleteRecordsPartition, error: ApiError) -> DeletedRecords:
    return DeletedRecords(wanted.topic, wanted.partition, error.code, str(error), NO_OFFSET)
