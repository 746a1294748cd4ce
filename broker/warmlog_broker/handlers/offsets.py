"""Offsets of partitions: ListOffsets, OffsetForLeaderEpoch and DeleteRecords, which moves the log start.

ListOffsets returns the log start, the end, or the first record from a time on. The end is not told before it is sure
that no other broker leads the partition: it never goes back. A lookup by time uses the indexes here,
and decompresses batches in a thread (`bodies`). It never finds a record that the client may not read, whatever
`replica_id` the request claims. Tools get the log end offset (LATEST_TIMESTAMP with DEBUGGING_REPLICA_ID).

OffsetForLeaderEpoch returns where a leader epoch ends.

DeleteRecords deletes the oldest records of partitions by raising their log start offsets. The response is sent once the
log starts are in their checkpoint, which a start trusts. They are not in the metadata log because retention raises them
as well, and because the checkpoint moves with the partition. The next run of retention removes files of segments that
are entirely below the log start.
"""

import asyncio
import logging
from functools import partial

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_partition, handle_all
from warmlog_broker.network.request import RequestContext, Response
from warmlog_broker.replica.partition import Partition, read_bound
from warmlog_broker.storage.cleaner.throttle import Turns
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.log.local_log import ReadBound
from warmlog_broker.storage.segment.segment_lookup import LargestSearch, TimeSearch, TimestampAndOffset
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, CorruptBatch, ErrorCode, InvalidRequest

NOT_FOUND = TimestampAndOffset(-1, -1, -1)

_log = logging.getLogger(__name__)


async def list_offsets(services: Services, _context: RequestContext, request: m.ListOffsetsRequest) -> Response:
    """One result for each partition, in the order of the request."""

    async def find(wanted: m.ListOffsetsPartition) -> m.ListedOffset:
        found = await find_offset(services, request, wanted)
        return m.ListedOffset(wanted.topic, wanted.partition, ErrorCode.NONE, "", *found)

    return m.ListOffsetsResponse(await handle_all(services, request.partitions, find, failed_partition(m.ListedOffset)))


async def find_offset(
    services: Services, request: m.ListOffsetsRequest, wanted: m.ListOffsetsPartition
) -> TimestampAndOffset:
    """Return the record at the `wanted` time, or at the position that a negative number means, if the peer may read it.

    NOT_FOUND if no record is at or after the time. InvalidRequest for unknown negative numbers.
    """
    timestamp_ms = wanted.timestamp_ms
    bound = read_bound(request.isolation)
    partition = _led(services, wanted)
    if timestamp_ms == m.LATEST_TIMESTAMP:
        await partition.confirm()
        return partition.log.reader.latest("log_end" if request.replica_id == m.DEBUGGING_REPLICA_ID else bound)
    if timestamp_ms == m.EARLIEST_TIMESTAMP:
        return partition.log.reader.earliest()
    if timestamp_ms < 0 and timestamp_ms != m.MAX_TIMESTAMP:
        raise InvalidRequest(f"timestamp {timestamp_ms}: a time in milliseconds, or -1, -2 or -3")
    for _ in partition.log.reader.learn_timestamps():  # the first lookup by time since the start opens every index
        await asyncio.sleep(0)
    if timestamp_ms == m.MAX_TIMESTAMP:
        return await _search_largest(services, wanted, bound) or NOT_FOUND
    found = await _search(services, wanted)
    if found is None or found.offset >= _led(services, wanted).log.reader.latest(bound).offset:
        return NOT_FOUND
    return found


async def _search(services: Services, wanted: m.ListOffsetsPartition) -> TimestampAndOffset | None:
    """Search the segments that may hold the record, one after another, in a thread.

    The log may change meanwhile, so the remaining segments are determined again each time.
    """
    from_offset = 0
    while (step := _led(services, wanted).log.reader.search_time(wanted.timestamp_ms, from_offset)) is not None:
        search, next_offset = step
        found = await _run(services, search)
        if not search.slice.is_cut:
            if found is not None:
                return found
            from_offset = next_offset
    return None


async def _search_largest(
    services: Services, wanted: m.ListOffsetsPartition, bound: ReadBound
) -> TimestampAndOffset | None:
    """Find the first record with the largest timestamp among those that the peer may read; None if none has one."""
    best: TimestampAndOffset | None = None
    searched: set[int] = set()
    while (step := _led(services, wanted).log.reader.search_largest(bound, searched, best)) is not None:
        search, base_offset = step
        found = await _run(services, search)
        if not search.slice.is_cut:
            searched.add(base_offset)
            best = max(filter(None, (best, found)), key=lambda each: (each.timestamp_ms, -each.offset), default=None)
    return best


async def _run(services: Services, search: TimeSearch | LargestSearch) -> TimestampAndOffset | None:
    max_decompressed_bytes = services.config.batch_max_decompressed_bytes
    try:
        return await services.bodies.run(partial(search.run, max_decompressed_bytes, Turns().rest))
    except CorruptBatch:
        if search.slice.is_cut:
            return None
        raise


def _led(services: Services, wanted: m.ListOffsetsPartition | m.OffsetForLeaderEpochPartition) -> Partition:
    """Return a partition that this broker leads, unless the request names another leader epoch."""
    partition = services.topics.partition(wanted.topic, wanted.partition)
    partition.check_leader_epoch(wanted.current_leader_epoch)
    return partition


async def offset_for_leader_epoch(
    services: Services, _context: RequestContext, request: m.OffsetForLeaderEpochRequest
) -> m.OffsetForLeaderEpochResponse:
    """One result for each partition, in the order of the request."""

    async def find(wanted: m.OffsetForLeaderEpochPartition) -> m.EpochEndOffset:
        log = _led(services, wanted).log
        epoch, end_offset = log.reader.end_offset_for_epoch(wanted.leader_epoch)
        return m.EpochEndOffset(
            wanted.topic, wanted.partition, ErrorCode.NONE, "", epoch, end_offset, log.log_end_offset
        )

    failed = failed_partition(m.EpochEndOffset)
    return m.OffsetForLeaderEpochResponse(await handle_all(services, request.partitions, find, failed))


async def delete_records(services: Services, _context: RequestContext, request: m.DeleteRecordsRequest) -> Response:
    """One result for each partition, in the order of the request; an error of one does not affect the others."""
    raised: list[Partition] = []

    async def raise_log_start(wanted: m.DeleteRecordsPartition) -> m.DeletedRecords:
        partition = services.topics.partition(wanted.topic, wanted.partition, to_change=True)
        low_watermark = partition.delete_records(wanted.offset)
        raised.append(partition)
        return m.DeletedRecords(wanted.topic, wanted.partition, ErrorCode.NONE, "", low_watermark)

    failed = failed_partition(m.DeletedRecords)
    results = await handle_all(services, request.partitions, raise_log_start, failed)
    try:
        await services.directories.checkpoint(raised)
    except OSError as error:
        _log.error("log starts could not be checkpointed: %s", error)
        failure = storage_error(f"the log start could not be made durable: {error}", error)
        results = [
            result if result.error_code else failed(wanted, failure)
            for result, wanted in zip(results, request.partitions, strict=True)
        ]
    if services.between_brokers is not None:
        late = await asyncio.gather(*(_not_deleted(services, result) for result in results))
        results = [
            result if error is None else failed(result, error) for result, error in zip(results, late, strict=True)
        ]
    return m.DeleteRecordsResponse(results)


async def _not_deleted(services: Services, result: m.DeletedRecords) -> ApiError | None:
    """Return the error if another replica may bring the records back; None once they are deleted for good."""
    if result.error_code:
        return None
    try:
        replication = services.topics.partition(result.topic, result.partition).replication
        if replication is not None:
            await replication.deleted(result.low_watermark)
    except ApiError as error:
        return error
    return None
