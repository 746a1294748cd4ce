"""DeleteRecords: the oldest records of partitions are given up, by raising their log start offsets.

It is answered once the checkpoint of log starts has been written, which a start believes whatever has happened after.
The checkpoint and not the metadata log, because retention raises the log start as well: so there is one place that
says where a log begins, and it lies in the data directory of that log, and goes along when a partition moves. A start
never takes the log start for higher than the end of the log, and what lies below it was durable before.

The files of segments that lie below the log start as a whole go at the next look of retention.
"""

import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_protocol.errors import ApiError, ErrorCode, StorageError
from warmlog_protocol.messages import (
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)

NO_OFFSET = -1

_log = logging.getLogger(__name__)


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
