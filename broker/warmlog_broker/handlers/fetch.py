"""Fetch: ranges of log files, when there is enough to read or the time is over.

A fetch is answered at once if `min_bytes` can be read, if anything is wrong with a partition, or if it does not want to
wait. Otherwise it waits (fetch_waits) and reads anew when it is woken. What is not in the page cache is read by a
thread before the answer is sent, so that a cold reader never stops the event loop.

A reader that says of which leader epoch the batch before its offset is, is told at once if the log does not hold that
batch: the log was cut after it was read, as by a power cut on a topic with write.caching.

A fetch of committed data ends at the last stable offset, and says which aborted transactions may have records in it:
leaving those out is the client's part.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.replica.delayed_fetch import WantedRead
from warmlog_broker.replica.partition import Partition, read_bound
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.log.bounds import ReadBound
from warmlog_broker.storage.log.reader import FetchData
from warmlog_broker.storage.record.batch_scan import UNKNOWN_OFFSET, DamagedLog
from warmlog_broker.storage.record.file_records import FileSlice
from warmlog_broker.storage.segment.offset_metadata import LogOffsetMetadata
from warmlog_broker.storage.segment.segment_indexes import IndexRebuild, LostIndex
from warmlog_protocol.errors import (
    ApiError,
    ErrorCode,
    StorageError,
)
from warmlog_protocol.messages import (
    AbortedTransaction,
    DivergingEpoch,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from warmlog_protocol.wire.connection import Request

MANY_ITEMS = 128
"""A fetch that names more partitions is read in turns."""
ITEMS_A_TURN = 32
"""So many of its partitions are read at a time, about 1 ms: others have their turn in between."""
NO_OFFSET = -1
NO_TOPIC_ID = bytes(16)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class FetchResult:
    """What was found, partition by partition, in the order of the request."""

    partitions: list[FetchedPartition] = field(default_factory=list)
    slices: list[list[FileSlice]] = field(default_factory=list)
    """The bytes of each partition."""
    wanted: dict[Partition, WantedRead] = field(default_factory=dict)
    """Where to wait for more."""
    size_bytes: int = 0
    has_error: bool = False
    """Or a divergence: something that is not to wait for data."""
    has_gap: bool = False
    """Whether a reader has to be told where to go on, as there is nothing where it wants to read."""
    rebuilds: list[IndexRebuild] = field(default_factory=list)
    """Of indexes without which partitions could not be read."""

    def add(self, fetched: FetchedPartition, slices: list[FileSlice]) -> None:
        """The next partition of the request, with its bytes."""
        self.partitions.append(fetched)
        self.slices.append(slices)
        self.size_bytes += fetched.size_bytes

    def add_error(self, request: FetchPartition, error: ApiError) -> None:
        """The next partition cannot be read."""
        self.has_error = True
        self.add(_failed(request, error), [])
        if isinstance(error, LostIndex):
            self.rebuilds.append(error.rebuild)

    def all_slices(self) -> list[FileSlice]:
        """The payload."""
        return [piece for slices in self.slices for piece in slices]


def fetch(services: Services, asker: Asker, request: Request) -> None:
    """Reads, and answers or waits."""
    message = request.message
    assert isinstance(message, FetchRequest)
    if len(message.partitions) > MANY_ITEMS:
        services.tasks.start(_fetch_in_turns(services, asker, request.correlation_id, message))
    else:
        _answer_or_wait(services, asker, request.correlation_id, message, read_partitions(services, asker, message))


def _answer_or_wait(
    services: Services, asker: Asker, correlation_id: int, message: FetchRequest, result: FetchResult
) -> None:
    max_wait_ms = min(message.max_wait_ms, services.config.fetch_max_wait_ms)
    if result.rebuilds:
        services.tasks.start(_rebuild_and_answer(services, asker, correlation_id, message, result.rebuilds))
        return
    if is_due(result, message.min_bytes, max_wait_ms, skips_gaps=message.skips_gaps):
        _answer(services, asker, correlation_id, result)
        return
    is_waiting = services.fetch_waits.add(
        asker,
        result.wanted,
        min_bytes=min(message.min_bytes, message.max_bytes, services.config.fetch_max_bytes),
        max_wait_ms=max_wait_ms,
        on_done=lambda: _read_and_answer(services, asker, correlation_id, message),
    )
    if not is_waiting:
        services.lines.write(
            logging.WARNING,
            "fetches that could not wait",
            f"Fetch of {asker.name} answered at once: {len(services.fetch_waits)} fetches wait already",
            services.loop.time(),
        )
        _answer(services, asker, correlation_id, result)


def _read_and_answer(services: Services, asker: Asker, correlation_id: int, message: FetchRequest) -> None:
    """At the end of a wait."""
    if len(message.partitions) > MANY_ITEMS:
        services.tasks.start(_read_and_answer_in_turns(services, asker, correlation_id, message))
    else:
        _answer(services, asker, correlation_id, read_partitions(services, asker, message))


async def _fetch_in_turns(services: Services, asker: Asker, correlation_id: int, message: FetchRequest) -> None:
    async with services.wide_fetches:
        _answer_or_wait(services, asker, correlation_id, message, await _read_in_turns(services, asker, message))
        services.outbox.send()
        await asyncio.sleep(0)


async def _read_and_answer_in_turns(
    services: Services, asker: Asker, correlation_id: int, message: FetchRequest
) -> None:
    async with services.wide_fetches:
        _answer(services, asker, correlation_id, await _read_in_turns(services, asker, message))
        services.outbox.send()
        await asyncio.sleep(0)


async def _rebuild_and_answer(
    services: Services, asker: Asker, correlation_id: int, message: FetchRequest, rebuilds: Sequence[IndexRebuild]
) -> None:
    """Has lost indexes rebuilt by a thread, and reads again. What is lost then is an error, which can be retried."""
    for rebuild in rebuilds:
        try:
            try:
                await asyncio.shield(asyncio.wrap_future(rebuild.begin(services.cold_readers)))
            finally:
                rebuild.finish()
        except (OSError, MemoryError) as error:
            _log.error("an index cannot be rebuilt: %s", error)
    _answer(services, asker, correlation_id, await _read_in_turns(services, asker, message))
    services.outbox.send()


def is_due(result: FetchResult, min_bytes: int, max_wait_ms: int, *, skips_gaps: bool = False) -> bool:
    """Whether the fetch is to be answered now."""
    if max_wait_ms <= 0 or result.size_bytes >= min_bytes or result.has_error or not result.wanted:
        return True
    return skips_gaps and result.has_gap


def read_partitions(services: Services, asker: Asker, message: FetchRequest) -> FetchResult:
    """Reads every partition, within the limits of the request, each partition and the broker.

    The first batch of the first partition that has any is read whole, however large it is.
    """
    result = FetchResult()
    _read_some(services, asker, message, message.partitions, result)
    return result


async def _read_in_turns(services: Services, asker: Asker, message: FetchRequest) -> FetchResult:
    """As `read_partitions`, while others have their turn."""
    result = FetchResult()
    for first in range(0, len(message.partitions), ITEMS_A_TURN):
        _read_some(services, asker, message, message.partitions[first : first + ITEMS_A_TURN], result)
        await asyncio.sleep(0)
    return result


def _read_some(
    services: Services,
    asker: Asker,
    message: FetchRequest,
    partitions: Sequence[FetchPartition],
    result: FetchResult,
) -> None:
    """Adds what can be read of `partitions`, some of those that `message` names, to `result`."""
    bound = read_bound(message.isolation, is_replica=asker.is_replica)
    left_bytes = min(message.max_bytes, services.config.fetch_max_bytes) - result.size_bytes
    for request in partitions:
        limit_bytes = max(0, min(request.max_bytes, left_bytes))
        try:
            left_bytes -= _read(services, request, bound, limit_bytes, result)
        except ApiError as error:
            if isinstance(error, DamagedLog):
                services.topics.partition(request.topic, request.partition).complain(f"damaged or lost: {error}")
            result.add_error(request, error)
        except OSError as error:
            text = f"{request.topic}-{request.partition} cannot be read: {error}"
            services.topics.partition(request.topic, request.partition).complain(text)
            result.add_error(request, storage_error(text, error))
        except Exception:
            result.add_error(request, own_failure(f"Fetch of {request.topic!r} {request.partition}"))


def _read(services: Services, request: FetchPartition, bound: ReadBound, limit_bytes: int, result: FetchResult) -> int:
    """Adds what can be read of one partition to `result`; returns how many bytes that are."""
    topic = services.topics.identified(request.topic, request.topic_id)
    partition = services.topics.partition(request.topic, request.partition)
    partition.check_leader_epoch(request.current_leader_epoch)
    log = partition.log
    diverging = log.divergence(request.fetch_offset, request.last_fetched_epoch)
    if diverging is None:
        data = log.read(request.fetch_offset, limit_bytes, bound=bound, min_one_batch=result.size_bytes == 0)
    else:
        data = FetchData(LogOffsetMetadata(request.fetch_offset), [], 0, False)
        result.has_error = True
    slices = [] if data.is_first_batch_incomplete else data.slices
    size_bytes = sum(piece.size_bytes for piece in slices)
    fetched = FetchedPartition(
        topic=request.topic,
        partition=request.partition,
        error_code=ErrorCode.NONE,
        error_message="",
        high_watermark=log.high_watermark,
        last_stable_offset=log.last_stable_offset,
        log_start_offset=log.log_start_offset,
        leader_epoch=partition.leader_epoch,
        topic_id=topic.topic_id,
        size_bytes=size_bytes,
        aborted_transactions=[
            AbortedTransaction(aborted.producer_id, aborted.first_offset) for aborted in data.aborted
        ],
        has_dense_offsets=log.are_offsets_dense_from(request.fetch_offset),
        next_offset=data.next_offset,
        diverging=None if diverging is None else DivergingEpoch(*diverging),
    )
    result.add(fetched, slices)
    result.has_gap |= data.next_offset != UNKNOWN_OFFSET
    result.wanted[partition] = WantedRead(data.start, request.max_bytes, bound)
    return size_bytes


def _answer(services: Services, asker: Asker, correlation_id: int, result: FetchResult) -> None:
    """Sends `result`, once all of it is in the page cache."""
    slices = result.all_slices()
    try:
        cold = [piece for piece in slices if not piece.is_cached()]
    except OSError:
        cold = slices
    if cold:
        services.tasks.start(_warm_and_answer(services, asker, correlation_id, result))
    else:
        asker.answer(correlation_id, FetchResponse(result.partitions), slices)


async def _warm_and_answer(services: Services, asker: Asker, correlation_id: int, result: FetchResult) -> None:
    errors = await services.loop.run_in_executor(services.cold_readers, _read_all, result.slices)
    for index, error in errors.items():
        fetched = result.partitions[index]
        _log.error("%s-%d cannot be read: %s", fetched.topic, fetched.partition, error)
        message = f"{fetched.topic}-{fetched.partition} cannot be read: {error}"
        failure = StorageError(message) if isinstance(error, ApiError) else storage_error(message, error)
        result.slices[index] = []
        result.partitions[index] = _failed(fetched, failure)
    asker.answer(correlation_id, FetchResponse(result.partitions), result.all_slices())
    services.outbox.send()


def _read_all(partitions: Sequence[Sequence[FileSlice]]) -> dict[int, OSError | MemoryError | ApiError]:
    """In a thread: brings everything into the page cache; the errors by the partition's place."""
    errors: dict[int, OSError | MemoryError | ApiError] = {}
    for index, slices in enumerate(partitions):
        try:
            for piece in slices:
                piece.read_through()
        except (OSError, MemoryError, ApiError) as error:
            errors[index] = error
    return errors


def _failed(request: FetchPartition | FetchedPartition, error: ApiError) -> FetchedPartition:
    return FetchedPartition(
        topic=request.topic,
        partition=request.partition,
        error_code=error.code,
        error_message=str(error),
        high_watermark=NO_OFFSET,
        last_stable_offset=NO_OFFSET,
        log_start_offset=NO_OFFSET,
        leader_epoch=NO_OFFSET,
        topic_id=NO_TOPIC_ID,
        size_bytes=0,
        next_offset=error.next_offset if isinstance(error, DamagedLog) else NO_OFFSET,
    )
