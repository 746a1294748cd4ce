"""Fetch: ranges of log files, once there is enough to read or after `max_wait_ms`.

The leader tells a reader of another rack which replica is nearer. That one answers below the high watermark that it
knows.

The response is sent at once if `min_bytes` can be read, if a partition has an error, or if the fetch may not wait.
Otherwise it waits (`replica/delayed_fetch`) and reads again when it is woken. A thread reads what is not in the page
cache before the response is sent, so that a cold reader never blocks the event loop.

If the request has the leader epoch of the batch before its offset, the response says at once if the log does not hold
that batch: it was truncated after it was read, for example by a power cut on a topic with write.caching.

A fetch with read_committed ends at the last stable offset, and the response lists the aborted transactions that may
have records in it, which the client leaves out.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct

from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import handle
from warmlog_broker.handlers.metadata import NO_TOPIC_ID
from warmlog_broker.network.request import Deferred, MessageWithSlices, RequestContext, Response
from warmlog_broker.replica.cluster_view import NO_LEADER
from warmlog_broker.replica.delayed_fetch import DelayedFetches, WantedRead
from warmlog_broker.replica.partition import Partition, read_bound
from warmlog_broker.replica.partition_state import Role
from warmlog_broker.storage.io.os_errors import storage_error
from warmlog_broker.storage.log.reader import FetchData
from warmlog_broker.storage.segment.file_records import DamagedLog, FileSlice
from warmlog_broker.storage.segment.segment_indexes import IndexRebuild, LostIndex
from warmlog_broker.storage.segment.segments import LogOffsetMetadata
from warmlog_protocol import messages as m
from warmlog_protocol.batch.header import NO_OFFSET
from warmlog_protocol.errors import ApiError, ErrorCode, NotLeaderOrFollower, OffsetOutOfRange, StorageError

MANY_ITEMS = 128
"""A fetch of more partitions is read in several turns of the event loop."""
ITEMS_A_TURN = 32
"""Partitions that are read in one turn, in about 1 ms."""

_log = logging.getLogger(__name__)


class ReadPartition(Struct, frozen=True, gc=False):
    fetched: m.FetchedPartition
    slices: list[FileSlice]


@dataclass(slots=True)
class FetchResult:
    """The results by partition, in the order of the request."""

    partitions: list[ReadPartition] = field(default_factory=list)
    wanted: dict[Partition, WantedRead] = field(default_factory=dict)
    """The positions at which to wait for more data."""
    size_bytes: int = 0
    has_error: bool = False
    """Whether there is an error or a divergence, so that the response does not wait for data."""
    has_gap: bool = False
    """Whether a response must be sent at once because a partition has no batch at the fetch offset."""
    rebuilds: list[IndexRebuild] = field(default_factory=list)
    """Rebuilds of missing indexes that are needed to read partitions."""

    def failed(self, request: m.FetchPartition, error: ApiError) -> ReadPartition:
        self.has_error = True
        if isinstance(error, LostIndex):
            self.rebuilds.append(error.rebuild)
        return ReadPartition(failed(request, error), [])

    def response(self) -> MessageWithSlices:
        message = m.FetchResponse([each.fetched for each in self.partitions])
        return MessageWithSlices(message, [each.slices for each in self.partitions])


class PendingFetch(Deferred):
    """A fetch that waits for data."""

    __slots__ = ("_waits",)

    def __init__(self, waits: DelayedFetches) -> None:
        super().__init__()
        self._waits = waits

    def drop(self) -> bool:
        """Stop waiting. Return False if the wait has ended, and the response is being sent."""
        return self._waits.forget(self) > 0


def fetch(services: Services, context: RequestContext, request: m.FetchRequest) -> Response:
    """Read, and respond or wait."""
    return _read_then(services, request, partial(_respond_or_wait, services, context, request))


def _read_then(services: Services, request: m.FetchRequest, then: Callable[[FetchResult], Response]) -> Response:
    """Return what `then` returns for the result: at once, or in several turns for many partitions."""
    if len(request.partitions) <= MANY_ITEMS:
        return then(read_partitions(services, request))

    async def in_turns() -> Response:
        return then(await _read_in_turns(services, request))

    return in_turns()


def _respond_or_wait(
    services: Services, context: RequestContext, request: m.FetchRequest, result: FetchResult
) -> Response:
    max_wait_ms = min(request.max_wait_ms, services.config.fetch_max_wait_ms)
    if result.rebuilds:
        return _rebuild_and_respond(services, request, result.rebuilds)
    if is_due(result, request.min_bytes, max_wait_ms, skips_gaps=request.skips_gaps):
        return _respond(services, result)
    pending = PendingFetch(services.delayed_fetches)
    is_waiting = services.delayed_fetches.add(
        pending,
        result.wanted,
        min_bytes=min(request.min_bytes, request.max_bytes, services.config.fetch_max_bytes),
        max_wait_ms=max_wait_ms,
        on_done=partial(pending.run, partial(_read_then, services, request, partial(_respond, services))),
    )
    if is_waiting:
        return pending
    services.lines.write(
        logging.WARNING,
        "fetches that could not wait",
        f"Fetch of {context.peer} got its response at once: {len(services.delayed_fetches)} fetches wait already",
        services.loop.time(),
    )
    return _respond(services, result)


async def _rebuild_and_respond(
    services: Services, request: m.FetchRequest, rebuilds: Sequence[IndexRebuild]
) -> Response:
    """Have missing indexes rebuilt by a thread, and read again. One that is missing then is a retriable error."""
    for rebuild in rebuilds:
        try:
            try:
                await asyncio.shield(asyncio.wrap_future(rebuild.begin(services.cold_readers)))
            finally:
                rebuild.finish()
        except (OSError, MemoryError) as error:
            _log.error("an index cannot be rebuilt: %s", error)
    return _respond(services, await _read_in_turns(services, request))


def is_due(result: FetchResult, min_bytes: int, max_wait_ms: int, *, skips_gaps: bool = False) -> bool:
    """Return whether the response is to be sent now."""
    if max_wait_ms <= 0 or result.size_bytes >= min_bytes or result.has_error or not result.wanted:
        return True
    return skips_gaps and result.has_gap


def read_partitions(services: Services, request: m.FetchRequest) -> FetchResult:
    """Read every partition, within the limits of the request, each partition and the broker.

    The first batch of the first partition that has any is read whole, however large it is.
    """
    result = FetchResult()
    _read_some(services, request, request.partitions, result)
    return result


async def _read_in_turns(services: Services, request: m.FetchRequest) -> FetchResult:
    """As `read_partitions`, in several turns of the event loop."""
    result = FetchResult()
    async with services.wide_fetches:
        for first in range(0, len(request.partitions), ITEMS_A_TURN):
            _read_some(services, request, request.partitions[first : first + ITEMS_A_TURN], result)
            await asyncio.sleep(0)
    return result


def _read_some(
    services: Services, request: m.FetchRequest, partitions: Sequence[m.FetchPartition], result: FetchResult
) -> None:
    """Read `partitions`, some of those in `request`, and add the outcome to `result`."""
    limit_bytes = min(request.max_bytes, services.config.fetch_max_bytes)
    read = partial(_read, services, request, limit_bytes, result)
    for wanted in partitions:
        result.partitions.append(handle(services, wanted, read, result.failed))


def _read(
    services: Services, request: m.FetchRequest, limit_bytes: int, result: FetchResult, wanted: m.FetchPartition
) -> ReadPartition:
    """Read one partition and add it to `result`, which then holds at most `limit_bytes`."""
    topic = services.topics.identified(wanted.topic, wanted.topic_id)
    partition = services.topics.partition(wanted.topic, wanted.partition)
    partition.check_leader_epoch(wanted.current_leader_epoch, may_follow=bool(request.rack))
    log, bound, near = partition.log, read_bound(request.isolation), NO_LEADER
    diverging = log.reader.divergence(wanted.fetch_offset, wanted.last_fetched_epoch)
    try:
        if diverging is None:
            left_bytes = max(0, min(wanted.max_bytes, limit_bytes - result.size_bytes))
            data = log.reader.read(wanted.fetch_offset, left_bytes, bound=bound, min_one_batch=result.size_bytes == 0)
            if request.max_bytes == 1 and partition.replication is not None:
                partition.check_again(data.slices)
        elif partition.role is Role.LEADING:
            data = FetchData(LogOffsetMetadata(wanted.fetch_offset), [], 0, False)
        else:
            raise OffsetOutOfRange(f"the log has no epoch {wanted.last_fetched_epoch} there")
    except (DamagedLog, OffsetOutOfRange, OSError) as error:
        if not isinstance(error, OffsetOutOfRange):
            partition.unreadable(error)
        if partition.role is not Role.LEADING:
            raise NotLeaderOrFollower(f"the leader has to answer: {error}") from error
        raise
    if request.rack and partition.replication is not None:
        near = partition.replication.near_replica(request.rack, wanted.fetch_offset)
    slices = [] if data.is_first_batch_incomplete else data.slices
    size_bytes = sum(piece.size_bytes for piece in slices)
    fetched = m.FetchedPartition(
        topic=wanted.topic,
        partition=wanted.partition,
        error_code=ErrorCode.NONE,
        error_message="",
        high_watermark=log.bounds.high_watermark.offset,
        last_stable_offset=log.bounds.last_stable_offset,
        log_start_offset=log.bounds.log_start_offset,
        leader_epoch=partition.leader_epoch,
        topic_id=topic.topic_id,
        size_bytes=size_bytes,
        aborted_transactions=[
            m.AbortedTransaction(aborted.producer_id, aborted.first_offset) for aborted in data.aborted
        ],
        has_dense_offsets=log.reader.are_offsets_dense_from(wanted.fetch_offset),
        next_offset=data.next_offset,
        diverging=None if diverging is None else m.DivergingEpoch(*diverging),
        row_gaps_up_to=log.local.gaps.rows_up_to,
        near_replica=near,
    )
    result.size_bytes += size_bytes
    result.has_error |= diverging is not None
    result.has_gap |= data.next_offset != NO_OFFSET
    result.wanted[partition] = WantedRead(data.start, wanted.max_bytes, bound)
    return ReadPartition(fetched, slices)


def _respond(services: Services, result: FetchResult) -> Response:
    """Return the response, once all of it is in the page cache."""
    fetched_bytes = services.counters.fetched_bytes
    for each in result.partitions:
        if size_bytes := each.fetched.size_bytes:
            fetched_bytes[each.fetched.topic] += size_bytes
    try:
        for each in result.partitions:
            for piece in each.slices:
                if not piece.is_cached():
                    return _warm(services, result)
    except OSError:
        return _warm(services, result)
    return result.response()


async def _warm(services: Services, result: FetchResult) -> MessageWithSlices:
    """Read the bytes into the page cache. A partition that cannot be read gets an error instead."""
    slices = [each.slices for each in result.partitions]
    errors = await services.loop.run_in_executor(services.cold_readers, _read_all, slices)
    for index, error in errors.items():
        fetched = result.partitions[index].fetched
        message = f"{fetched.topic}-{fetched.partition} cannot be read: {error}"
        _log.error("%s", message)
        with suppress(ApiError):
            services.topics.partition(fetched.topic, fetched.partition).unreadable(error, slices[index])
        failure = StorageError(message) if isinstance(error, ApiError) else storage_error(message, error)
        result.partitions[index] = ReadPartition(failed(fetched, failure), [])
    return result.response()


def _read_all(partitions: Sequence[Sequence[FileSlice]]) -> dict[int, OSError | MemoryError | ApiError]:
    """In a thread: read all bytes into the page cache; return errors by the index of the partition."""
    errors: dict[int, OSError | MemoryError | ApiError] = {}
    for index, slices in enumerate(partitions):
        try:
            for piece in slices:
                piece.read_through()
        except (OSError, MemoryError, ApiError) as error:
            errors[index] = error
    return errors


def failed(request: m.FetchPartition | m.FetchedPartition, error: ApiError) -> m.FetchedPartition:
    """Return the result of a partition that cannot be read."""
    return m.FetchedPartition(
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
