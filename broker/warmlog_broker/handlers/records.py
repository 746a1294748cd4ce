"""DeleteRecords: the oldest records of partitions are given up, by raising their log start offsets.

It is answered once the checkpoint of log starts has been written, which a start believes whatever has happened after.
The checkpoint and not the metadata log, because retention raises the log start as well: so there is one place that
says where a log begins, and it lies in the data directory of that log, and goes along when a partition moves. A start
never takes the log start for higher than the end of the log, and what lies below it was durable before.

The files of segments that lie below the log start as a whole go at the next look of retention.
"""

import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.replica.partition import Partition
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_protocol.errors import ApiError, ErrorCode
from warmlog_protocol.messages import (
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)
from warmlog_protocol.wire.connection import Request

NO_OFFSET = -1

_log = logging.getLogger(__name__)


async def delete_records(services: Services, asker: Asker, request: Request) -> DeleteRecordsResponse:  # noqa: ARG001
    """One result for each partition, in the order of the request; one that is refused does not keep the others."""
    message = request.message
    assert isinstance(message, DeleteRecordsRequest)
    results: list[DeletedRecords] = []
    raised: list[Partition] = []
    for wanted in message.partitions:
        try:
            partition = services.topics.partition(wanted.topic, wanted.partition)
            low_watermark = partition.delete_records(wanted.offset)
        except ApiError as error:
            results.append(_failed(wanted, error))
        except Exception:
            results.append(_failed(wanted, own_failure(f"DeleteRecords of {wanted.topic!r} {wanted.partition}")))
        else:
            raised.append(partition)
            results.append(DeletedRecords(wanted.topic, wanted.partition, ErrorCode.NONE, "", low_watermark))
    try:
        await services.directories.write_down(raised)
    except OSError as error:
        _log.error("log starts could not be written down: %s", error)
        failure = storage_error(f"the log start could not be made durable: {error}", error)
        results = [
            result if result.error_code else _failed(wanted, failure)
            for result, wanted in zip(results, message.partitions, strict=True)
        ]
    return DeleteRecordsResponse(results)


def _failed(wanted: DeleteRecordsPartition, error: ApiError) -> DeletedRecords:
    return DeletedRecords(wanted.topic, wanted.partition, error.code, str(error), NO_OFFSET)
