"""Reads ranges and yields them as Arrow record batches: for Spark's tasks, `arrow_reader` and `Consumer.to_arrow`.

Several fetches are in flight (see fetch_window). After a lost connection, or if the leader has moved, the leader is
looked up and reading continues at the first offset that was not read; it gives up when the position has not moved for
`deadline_s`. `records.verdict` decides about everything that cannot be read: it is an error, or skipped and reported.
Records written after a truncation are lost data as well: their leader epoch is later than that of the plan.
Errors are one line, as Spark shows it: partition, offsets, broker, and what to do.
"""

import logging
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from threading import Event
from typing import Any, NamedTuple

from warmlog.arrow.int_array import ArrayColumn
from warmlog.arrow.reader import ArrowMerger
from warmlog.arrow.time_bounds import TimeBounds
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientClosed,
    CorruptBatch,
    LogTruncated,
    OffsetOutOfRange,
    UnreadableBatch,
    WarmlogError,
    error_from_code,
)
from warmlog.ranges.fetch_window import Fetch, FetchWindow
from warmlog.ranges.leader_connection import LeaderConnection
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.ranges.resolve import REMOVED, Loss
from warmlog.records.fetched import AbortedRanges, error_in, first_header, is_intact, whole_headers
from warmlog.records.verdict import Action, Policy, decide
from warmlog.sockets.connection import BlockingConnection
from warmlog_protocol.batch import HEADER_BYTES, RecordBatch, check_crc, read_header
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    NO_LEADER_EPOCH,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_transport.errors import TOPIC_IS_GONE

_RECREATED = "the topic was deleted or recreated after these ranges were planned"

_log = logging.getLogger("warmlog.ranges")


def warn_of_loss(lost: Loss) -> None:
    """Log that lost offsets are skipped."""
    _log.warning("%s; skipped", lost)


def read_ranges(
    ranges: Sequence[OffsetRange],
    projection: Projection,
    settings: ReadSettings | None = None,
    is_over: Event | None = None,
    *,
    on_loss: Callable[[Loss], None] = warn_of_loss,
) -> Iterator[Any]:
    """Yield the records of `ranges`, in order, as pyarrow record batches with the columns of `projection`.

    Another thread may set `is_over`: then the next fetch raises ClientClosed. `on_loss` is called for lost offsets if
    `settings` allow to skip them. After an error or an interruption at any point, the next call continues with the next
    record, over a new connection.
    """
    task = _Task(ranges, projection, settings or ReadSettings(), is_over or Event(), on_loss)
    return _RangeBatches(partial(_read, task), _Position(0, None, task.settings.limit))


class _Task(NamedTuple):
    """The arguments of `read_ranges`."""

    ranges: Sequence[OffsetRange]
    projection: Projection
    settings: ReadSettings
    is_over: Event
    on_loss: Callable[[Loss], None]


class _Position(NamedTuple):
    """Where to continue: at `offset` of the range with this number, or at its start, for so many more rows."""

    number: int
    offset: int | None
    rows: int | None


class _ReadBatch(NamedTuple):
    """An Arrow batch to be handed out, None once it was, and where to continue after it."""

    batch: Any
    position: _Position


class _RangeBatches(Iterator[Any]):
    """Arrow batches with each record once. An interrupted step leaves only `_ready`, which changes as a whole."""

    def __init__(self, read: Callable[[_Position], Generator[_ReadBatch, None, None]], position: _Position) -> None:
        """`read` reads from a position on."""
        self._read = read
        self._ready = _ReadBatch(None, position)
        self._reading = read(position)
        self._is_cut_short = False

    def __next__(self) -> Any:
        if self._ready.batch is None:
            self._read_on()
        batch, position = self._ready
        if batch is None:
            raise StopIteration
        self._ready = _ReadBatch(None, position)
        return batch

    def close(self) -> None:
        """Close the connection and end the iteration."""
        self._reading.close()
        self._is_cut_short = False

    def _read_on(self) -> None:
        if self._is_cut_short:
            self._reading = self._read(self._ready.position)
        self._is_cut_short = True
        self._ready = next(self._reading, self._ready)
        self._is_cut_short = False


def _read(task: _Task, position: _Position) -> Generator[_ReadBatch, None, None]:
    """The records from `position` on, over a new connection."""
    rows = position.rows
    if rows == 0:
        return
    with LeaderConnection(task.settings.connection, task.settings.bootstrap) as leader:
        for number, planned in enumerate(task.ranges[position.number :], position.number):
            reader = _RangeReader(task, planned, leader, position.offset if number == position.number else None)
            for batch in reader.read():
                wanted = batch if rows is None else batch.slice(0, rows)
                rows = None if rows is None else rows - wanted.num_rows
                yield _ReadBatch(wanted, _Position(number, reader.handed_out, rows))
                if rows == 0:
                    return


class _RangeReader:
    def __init__(self, task: _Task, planned: OffsetRange, leader: LeaderConnection, start: int | None) -> None:
        """`start` is where to begin within `planned`; None: at its own start."""
        settings, projection = task.settings, task.projection
        self._is_over = task.is_over
        self._on_loss = task.on_loss
        self._range = planned
        self._epoch = planned.start_epoch  # of the batch before the position
        self._log_start_offset = -1  # when the position was last out of range
        self._settings = settings
        self._policy = Policy.RANGE_RAISES if settings.fails_on_data_loss else Policy.RANGE_SKIPS
        self._leader = leader
        self._window = FetchWindow(
            planned.start if start is None else start,
            planned.end,
            in_flight=settings.in_flight,
            fetch_bytes=settings.fetch_bytes,
        )
        self._merger = ArrowMerger(
            planned.topic,
            planned.partition,
            projection.names,
            as_text=projection.as_text,
            times=TimeBounds(planned.from_ms, planned.until_ms),
        )

    @property
    def handed_out(self) -> int:
        """One above the last offset that the Arrow batches made so far go up to."""
        return self._merger.next_offset

    def read(self) -> Iterator[Any]:
        failed_at, failing_since, attempts = -1, 0.0, 0
        while not self._window.is_done:
            self._check_wanted()
            try:
                yield from self._read_connected()
            except (BrokerUnavailable, ApiError) as error:
                self._leader.drop()
                if not self._is_retried(error):
                    continue
                if failed_at != self._window.position:
                    failed_at, failing_since, attempts = self._window.position, time.monotonic(), 0
                self._back_off(error, failing_since, attempts)
                self._leader.find(self._range)
                attempts += 1
        yield from self._merger.flush()

    def _read_connected(self) -> Iterator[Any]:
        """Read to the end of the range or until something fails. Responses no longer needed are dropped."""
        window = self._window
        window.restart()
        correlation_ids: dict[int, int] = {}
        connection = self._leader.connected(self._range)
        while not window.is_done:
            self._check_wanted()
            if delay_s := connection.throttled_for_s:
                self._is_over.wait(delay_s)
                self._check_wanted()
            for fetch in window.to_send():
                correlation_ids[fetch.start] = connection.request(self._request(fetch))
            fetch = window.next_due()
            response = connection.wait(correlation_ids.pop(fetch.start))
            try:
                yield from self._take(connection, fetch, response)
            except CorruptBatch as error:
                located = self._locate(connection, error)
                if located is error:
                    raise
                raise located from error
        if correlation_ids:
            self._leader.drop()

    def _check_wanted(self) -> None:
        if self._is_over.is_set():
            position = self._window.position
            raise ClientClosed(f"{self._range}, stopped at {position}: the reader was closed")

    def _request(self, fetch: Fetch) -> FetchRequest:
        planned = self._range
        wanted = FetchPartition(
            planned.topic,
            planned.partition,
            fetch.start,
            fetch.max_bytes,
            topic_id=planned.topic_id or None,
            last_fetched_epoch=self._epoch if fetch.start == self._window.position else NO_LEADER_EPOCH,
        )
        settings = self._settings
        return FetchRequest(
            settings.max_wait_ms, 1, fetch.max_bytes, [wanted], isolation=settings.isolation, skips_gaps=True
        )

    def _take(self, connection: BlockingConnection, fetch: Fetch, response: ReceivedResponse) -> Iterator[Any]:
        """Yield Arrow batches of what is new in `response`, and move the window."""
        assert isinstance(response.result, FetchResponse)
        fetched = response.result.partitions[0]
        payload, window = response.payload, self._window
        before = window.position
        if fetched.error_code:
            if fetch.start != before:
                window.accepts(fetch, None)
                return  # the error may concern only what is not read now: the next fetch starts at the position
            raise self._fetch_error(connection, fetched)
        if fetched.diverging is not None:
            raise LogTruncated(*self._range.tp, before, fetched.diverging.end_offset)
        if not window.accepts(fetch, read_header(payload).base_offset if len(payload) >= HEADER_BYTES else None):
            return
        self._pass_gap(fetched)
        batches: list[RecordBatch] = []
        is_committed_only = self._settings.isolation is IsolationLevel.READ_COMMITTED
        aborted = AbortedRanges(fetched.aborted_transactions) if is_committed_only else None
        for batch in _whole_batches(payload, fetch.start, fetched):
            batches.append(batch)
            is_hidden = aborted is not None and aborted.hides(batch)
            if batch.next_offset > window.position:
                if self._is_new(batch, fetched):
                    raise self._truncated(max(batch.base_offset, window.position))
                if self._settings.verifies_crc:
                    check_crc(batch.header, batch.buffer)
                if not is_hidden:
                    yield from self._merger.add(batch, window.position, window.end)
                window.advance(batch.next_offset)
                self._epoch = batch.header.partition_leader_epoch
            if window.is_done:
                break  # what follows was not requested and may be damaged
        window.learn(batches)
        if window.position == before == fetch.start:
            raise BrokerUnavailable(f"it sent nothing; its high watermark is {fetched.high_watermark}")

    def _pass_gap(self, fetched: FetchedPartition) -> None:
        """Move over offsets without records. The epoch to notice a truncation by is now the leader's."""
        if fetched.next_offset > self._window.position:
            self._window.advance(min(fetched.next_offset, self._window.end))
            self._epoch = fetched.leader_epoch

    def _is_new(self, batch: RecordBatch, fetched: FetchedPartition) -> bool:
        """Whether `batch` was written after the plan, although the log reached the end of the range then.

        No CRC covers a leader epoch: one that the partition has not had yet is damaged and proves nothing.
        """
        planned, epoch = self._range, batch.header.partition_leader_epoch
        return (
            NO_LEADER_EPOCH < planned.leader_epoch < epoch <= fetched.leader_epoch and batch.base_offset < planned.end
        )

    def _truncated(self, diverging_offset: int) -> LogTruncated:
        reason = f"the log was cut at {diverging_offset} after these ranges were planned, and the records there are new"
        return LogTruncated(*self._range.tp, self._range.end, diverging_offset, reason)

    def _fetch_error(self, connection: BlockingConnection, fetched: FetchedPartition) -> ApiError:
        """The error of the partition. OffsetOutOfRange needs to know where the log starts now: raises if that fails."""
        error = error_in(fetched, self._window.position)
        if isinstance(error, OffsetOutOfRange):
            earliest = ListOffsetsPartition(self._range.topic, self._range.partition, EARLIEST_TIMESTAMP)
            listed = connection.call(ListOffsetsRequest([earliest]), ListOffsetsResponse).partitions[0]
            if listed.error_code:
                raise error_from_code(listed.error_code, listed.error_message)
            self._log_start_offset = listed.offset
        return error

    # --- what is lost ---------------------------------------------------------------------------------------------

    def _locate(self, connection: BlockingConnection, error: CorruptBatch) -> ApiError:
        """`error` with the offset to continue at, if the batch stored at the position is the cause; else as it is."""
        position = self._window.position
        if isinstance(error, UnreadableBatch):
            return error
        response = connection.wait(connection.request(self._request(Fetch(position, 1))))
        assert isinstance(response.result, FetchResponse)
        fetched = response.result.partitions[0]
        if fetched.error_code:
            return self._fetch_error(connection, fetched)
        first = first_header(fetched, response.payload, position)
        if first is None or not first.base_offset <= position < first.next_offset or is_intact(first, response.payload):
            return error
        return UnreadableBatch(str(error), *self._range.tp, position, first.next_offset)

    def _is_retried(self, error: BrokerUnavailable | ApiError) -> bool:
        """Carry out the verdict on `error`: raise it, skip what is lost, or return true to fetch again."""
        window = self._window
        action, next_offset = decide(
            error, self._policy, position=window.position, end=window.end, log_start_offset=self._log_start_offset
        )
        if action is Action.RETRY:
            return True
        lost = Loss(*self._range.tp, window.position, next_offset, self._reason(error))
        if action is Action.RAISE:
            if isinstance(error, OffsetOutOfRange) and not isinstance(error, LogTruncated):
                reason = OffsetOutOfRange(f"offsets {lost.start} to {lost.end - 1} are {lost.reason}")
                raise self._in_words(reason) from error
            raise self._in_words(error) from error
        self._on_loss(lost)
        window.advance(next_offset)
        self._epoch = NO_LEADER_EPOCH
        return False

    def _reason(self, error: WarmlogError) -> str:
        """Why offsets are lost."""
        start = self._log_start_offset
        if isinstance(error, UnreadableBatch):
            return f"unreadable: {error.reason}"
        if isinstance(error, LogTruncated):
            return f"gone: {error}"
        if isinstance(error, TOPIC_IS_GONE):
            return f"{_RECREATED} ({error})"
        if start > self._window.position:
            return f"gone, the log starts at {start} now: {REMOVED} after these ranges were planned"
        return f"not there any more: {error}"

    # --- retries ---------------------------------------------------------------------------------------------------

    def _back_off(self, error: WarmlogError, failing_since: float, attempts: int) -> None:
        """Sleep before the next attempt, longer each time; raise `error` when the deadline is over."""
        options = self._settings.connection
        delay_s = min(options.retry_backoff_ms << min(attempts, 16), options.retry_backoff_max_ms) / 1000
        waited_s = time.monotonic() - failing_since
        if waited_s + delay_s > self._settings.deadline_s:
            raise self._in_words(error, f"gave up after {waited_s:.0f} s; is the broker running?") from error
        self._is_over.wait(delay_s)

    def _in_words(self, error: WarmlogError, remedy: str = "") -> WarmlogError:
        """`error` with the range, the position, the broker and what to do."""
        remedy = remedy or self._remedy(error)
        broker = self._leader.address(self._range)
        line = f"{self._range}, stopped at {self._window.position}, broker {broker}: {error}"
        line = f"{line}; {remedy}" if remedy else line
        if isinstance(error, (LogTruncated, UnreadableBatch)):
            return error.reworded(line)
        return type(error)(line)

    def _remedy(self, error: WarmlogError) -> str:
        remedies = self._settings.remedies
        if isinstance(error, TOPIC_IS_GONE):
            return f"{_RECREATED}: {remedies.when_recreated}"
        if isinstance(error, LogTruncated):
            return remedies.when_cut
        if isinstance(error, OffsetOutOfRange):
            return remedies.when_lost
        return remedies.when_damaged if isinstance(error, CorruptBatch) else ""


def _whole_batches(payload: memoryview, start: int, fetched: FetchedPartition) -> Iterator[RecordBatch]:
    """The complete batches of a response to a fetch from `start`. Raises as `whole_headers`."""
    position = 0
    for header in whole_headers(payload, fetched.high_watermark, start, is_dense=fetched.has_dense_offsets):
        end = position + header.size_bytes
        yield RecordBatch(header, payload[position:end], column_type=ArrayColumn)
        position = end
