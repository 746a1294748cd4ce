"""Reads ranges and returns them as Arrow record batches: for Spark's tasks, `arrow_reader` and `Consumer.to_arrow`.

An event loop fetches (`range_fetch`); the thread that reads checks what has arrived and converts it. Responses are
received into Arrow's memory, and their data stays there.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from warmlog.arrow.columns import arrow_memory
from warmlog.arrow.int_array import ArrayColumn
from warmlog.arrow.reader import ArrowMerger, TimeBounds
from warmlog.errors import ApiError, ClientClosed, LogTruncated, UnreadableBatch
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_fetch import RangeFetch
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.ranges.resolve import Loss
from warmlog.records.fetched import FetchedBatches
from warmlog_protocol.batch import RecordBatch, check_crc
from warmlog_protocol.messages import NO_LEADER_EPOCH
from warmlog_transport.cluster import Cluster
from warmlog_transport.loop_thread import LoopCall, LoopThread, bulk_loop

T = TypeVar("T")
Begin = Callable[[Callable[[], Coroutine[Any, Any, Any]]], LoopCall[Any]]
"""Has the event loop that fetches run a coroutine."""
OnLoss = Callable[[Loss], None]

_log = logging.getLogger("warmlog.ranges")


def warn_of_loss(lost: Loss) -> None:
    """Log that lost offsets are skipped."""
    _log.warning("%s; skipped", lost)


def read_ranges(
    ranges: Sequence[OffsetRange],
    projection: Projection,
    settings: ReadSettings | None = None,
    *,
    on_loss: OnLoss = warn_of_loss,
) -> "RangeReader":
    """Iterate over the records of `ranges`, in order, as pyarrow record batches with the columns of `projection`.

    `on_loss` is called for lost offsets if `settings` allow to skip them. An error is raised again by each further
    call: what follows it is never returned as if it were everything. After an interruption (Ctrl-C) the next call
    continues after the last batch that was returned, over a new connection.
    """
    return RangeReader(_Task(ranges, projection, settings or ReadSettings(), on_loss))


async def read_all(ranges: Sequence[OffsetRange], projection: Projection, settings: ReadSettings) -> list[Any]:
    """Return what `read_ranges` yields. The event loop of the caller fetches, and a thread converts."""
    if not ranges:
        return []
    loop = asyncio.get_running_loop()

    def begin(work: Callable[[], Coroutine[Any, Any, T]]) -> LoopCall[T]:
        called = LoopCall(loop.call_soon_threadsafe, work)
        called.begin()
        return called

    task = _Task(ranges, projection, settings, warn_of_loss)
    async with task.cluster() as cluster:  # its end ends the thread, if this was cancelled
        reading = _read(task, _Place(0, None, settings.limit), cluster, begin)
        return await asyncio.to_thread(lambda: [batch for batch, _ in reading])


class _Task(NamedTuple):
    ranges: Sequence[OffsetRange]
    projection: Projection
    settings: ReadSettings
    on_loss: OnLoss

    def cluster(self) -> Cluster:
        """Return the cluster to read from, known by the brokers of the plan and those that the user named."""
        leaders = (planned.leader for planned in self.ranges if planned.leader)
        replicas = (address for planned in self.ranges for address in planned.replicas)
        addresses = list(dict.fromkeys((*leaders, *self.settings.bootstrap, *replicas)))
        return Cluster(addresses, self.settings.connection, allocate=arrow_memory)


class _Place(NamedTuple):
    """Where to continue: at `offset` of the range with this number, or at its start, for so many more rows."""

    number: int
    offset: int | None
    rows: int | None


class RangeReader(Iterator[Any]):
    """Arrow batches of some ranges, fetched by a thread that begins with the first one."""

    def __init__(self, task: _Task) -> None:
        self._task = task
        self._place = _Place(0, None, task.settings.limit)
        self._reading = _read_in_thread(task, self._place)
        self._error: Exception | None = None
        self._is_interrupted = False

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error
        if self._is_interrupted:
            self._is_interrupted = False
            _log.warning(
                "reading was interrupted and continues after the last batch that was returned: make a new reader to "
                "read again what an interrupted read_all() had read"
            )
            self._reading = _read_in_thread(self._task, self._place)
        try:
            batch, self._place = next(self._reading)
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise
        except BaseException:
            self._is_interrupted = True
            raise
        return batch

    def close(self) -> None:
        """Close the connections and end the iteration."""
        self._reading.close()


def _read_in_thread(task: _Task, place: _Place) -> Generator[tuple[Any, _Place], None, None]:
    """As `_read`, with a thread that fetches until this generator ends."""
    if not task.ranges or place.rows == 0:
        return
    with LoopThread("warmlog ranges", bulk_loop) as thread, thread.entered(task.cluster) as cluster:
        yield from _read(task, place, cluster, thread.begin)
        if throttled_s := cluster.throttled_s():
            _log.info("brokers have delayed reading by %.1f s because of quotas", throttled_s)


def _read(task: _Task, place: _Place, cluster: Cluster, begin: Begin) -> Iterator[tuple[Any, _Place]]:
    """Yield Arrow batches from `place` on, each with the place after it."""
    rows = place.rows
    for number, planned in enumerate(task.ranges[place.number :], place.number):
        start = place.offset if number == place.number and place.offset is not None else planned.start
        converter = _Converter(planned, task.projection, task.settings, start)
        fetch = RangeFetch(cluster, planned, task.settings, start)
        for batch in _batches(fetch, converter, begin, task.on_loss):
            wanted = batch if rows is None else batch.slice(0, rows)
            rows = None if rows is None else rows - wanted.num_rows
            yield wanted, _Place(number, converter.returned_to, rows)
            if rows == 0:
                return


def _batches(fetch: RangeFetch, converter: "_Converter", begin: Begin, on_loss: OnLoss) -> Iterator[Any]:
    """Yield the Arrow batches of one range. While one response is converted, the next one is awaited."""
    coming = begin(fetch.next)
    try:
        while True:
            found = coming.result()
            try:
                if found is None:
                    yield from converter.flush()
                    return
                coming = begin(fetch.next)
                if isinstance(found, FetchedBatches):
                    yield from converter.convert(found)
                    continue
            except ApiError as error:
                coming.cancel()  # what follows is fetched again
                if isinstance(error, UnreadableBatch):
                    converter.position, converter.epoch = error.base_offset, NO_LEADER_EPOCH
                found = begin(partial(fetch.failed, error, converter.position, converter.epoch)).result()
                coming = begin(fetch.next)
            if found is not None:
                on_loss(found)
                converter.position, converter.epoch = found.end, NO_LEADER_EPOCH
    finally:
        with suppress(ClientClosed):
            coming.cancel()


class _Converter:
    """Turns the batches of one range into Arrow, in their order. `position` is the first offset not read."""

    def __init__(self, planned: OffsetRange, projection: Projection, settings: ReadSettings, start: int) -> None:
        self.position = start
        self.epoch = planned.start_epoch if start == planned.start else NO_LEADER_EPOCH
        """The leader epoch of the batch before the position; -1 while unknown."""
        self._range = planned
        self._verifies_crc = settings.verifies_crc
        self._merger = ArrowMerger(
            planned.topic,
            planned.partition,
            projection.names,
            as_text=projection.as_text,
            times=TimeBounds(planned.from_ms, planned.until_ms),
        )
        self.flush = self._merger.flush

    @property
    def returned_to(self) -> int:
        """One above the last offset of the Arrow batches that are made; -1 before the first."""
        return self._merger.next_offset

    def convert(self, fetched: FetchedBatches) -> Iterator[Any]:
        """Yield the Arrow batches that `fetched` completes.

        After an ApiError `position` is where the batch begins that cannot be read, unless the error says where.
        """
        planned, end = self._range, self._range.end
        while self.position < end and (header := fetched.next_header(self.position)) is not None:
            # Written after the plan, although the log reached the end of the range then? No CRC covers a leader epoch:
            # one that the partition has not had yet is damaged and proves nothing.
            is_later = NO_LEADER_EPOCH < planned.leader_epoch < header.partition_leader_epoch <= fetched.leader_epoch
            if is_later and header.base_offset < end:
                cut = max(header.base_offset, self.position)
                reason = f"the log was cut at {cut} after these ranges were planned, and the records there are new"
                raise LogTruncated(*planned.tp, end, cut, reason)
            batch = RecordBatch(header, fetched.bytes_of(header), column_type=ArrayColumn)
            if self._verifies_crc:
                check_crc(header, batch.buffer)
            if not fetched.is_hidden(batch):
                yield from self._merger.add(batch, self.position, end)
            fetched.position += header.size_bytes
            self.position, self.epoch = header.next_offset, header.partition_leader_epoch
        if self.position < fetched.next_offset:
            self.position, self.epoch = fetched.next_offset, fetched.next_epoch
