"""ListOffsets: the beginning, the end, or the first record from a time on."""

import asyncio
import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.replica.partition import Partition, read_bound
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.storage.io.os_errors import storage_error
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
from warmlog_protocol.wire.connection import Request

PARTITIONS_A_TURN = 100
"""After so many others have their turn: a lookup by time takes 50 µs."""
NOT_FOUND = TimestampAndOffset(-1, -1, -1)

_log = logging.getLogger(__name__)


async def list_offsets(services: Services, asker: Asker, request: Request) -> ListOffsetsResponse:  # noqa: ARG001
    """One result for each partition, in the order of the request."""
    message = request.message
    assert isinstance(message, ListOffsetsRequest)
    results = []
    for number, wanted in enumerate(message.partitions):
        if number % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
            await asyncio.sleep(0)
        if wanted.timestamp_ms not in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP):
            await _learn_timestamps(services, wanted)
        results.append(_answer(services, message, wanted))
    return ListOffsetsResponse(results)


async def _learn_timestamps(services: Services, wanted: ListOffsetsPartition) -> None:
    """Has the first lookup by time since the start, which opens every index, keep nobody waiting."""
    topic = services.topics.find(wanted.topic)
    if topic is None or not 0 <= wanted.partition < len(topic.partitions):
        return
    partition = topic.partitions[wanted.partition]
    if partition.allows.read:
        for _ in partition.log.learn_timestamps():
            await asyncio.sleep(0)


def _answer(services: Services, message: ListOffsetsRequest, wanted: ListOffsetsPartition) -> ListedOffset:
    try:
        partition = services.topics.partition(wanted.topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        found = find_offset(partition, message, wanted.timestamp_ms)
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


def find_offset(partition: Partition, message: ListOffsetsRequest, timestamp_ms: int) -> TimestampAndOffset:
    """What lies at `timestamp_ms`, or at one of the names that stand for one, as far as the asker may read.

    NOT_FOUND where no record is at or after the time. InvalidRequest for other negative numbers.
    """
    log = partition.log
    bound = read_bound(message.isolation, message.replica_id)
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


def _failed(wanted: ListOffsetsPartition, error: ApiError) -> ListedOffset:
    return ListedOffset(wanted.topic, wanted.partition, error.code, str(error), *NOT_FOUND)
