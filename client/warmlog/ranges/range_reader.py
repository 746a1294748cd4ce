"""Reads ranges and yields them as Arrow record batches: what a Spark task does, and Consumer.to_arrow.

Several fetches are in flight (see fetch_window). After a lost connection, or where a broker does not lead the partition
any more, the leader is looked up, and reading goes on at the first offset that was not read; only when nothing has
moved for `deadline_s` is it given up, for Spark to run the task again.
What is gone, because retention took it or the topic was deleted or made anew, is an error, or skipped and told.
So is what was written in its place after the log had been cut: its leader epoch is later than that of the plan.
Errors are one line, as it reaches the user through Spark: which partition, offsets and broker, and what to do.
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
from warmlog.blocking.connection import BlockingConnection
from warmlog.errors import (
    TOPIC_IS_GONE,
    ApiError,
    BrokerUnavailable,
    ClientClosed,
    CorruptBatch,
    LogTruncated,
    OffsetOutOfRange,
    UnreadableBatch,
    WarmlogError,
    error_from_code,
    may_pass,
)
from warmlog.ranges.fetch_window import Fetch, FetchWindow
from warmlog.ranges.leader_connection import TaskLink
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.ranges.resolve import REMOVED, Loss
from warmlog.records.aborted import AbortedRanges
from warmlog.records.damage_search import error_in, first_header, is_intact
from warmlog.records.fetched_batches import whole_headers
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
from warmlog_protocol.wire.connection import Answer

_MADE_ANEW = "the topic was deleted, or made anew, after these ranges were planned"

_log = logging.getLogger("warmlog.ranges")


def warn_of_loss(lost: Loss) -> None:
    """Log that it is skipped."""
    _log.warning("%s; skipped", lost)


def read_ranges(
    ranges: Sequence[OffsetRange],
    projection: Projection,
    settings: ReadSettings | None = None,
    is_over: Event | None = None,
    *,
    on_loss: Callable[[Loss], None] = warn_of_loss,
) -> Iterator[Any]:
    """The records of `ranges`, in order, as pyarrow record batches with the columns of `projection`.

    Another thread may set `is_over`: then it raises ClientClosed before it asks for more. `on_loss` is called with what
    is gone and skipped, where `settings` allow that; it warns unless given. After an error or an interruption, at
    whatever point, it goes on with the next record, over a new connection.
    """
    settings = settings or ReadSettings()
    read = partial(_read, ranges, projection, settings, is_over or Event(), on_loss)
    return _RangeBatches(read, _Place(0, None, settings.limit))


class _Place(NamedTuple):
    """Where to go on: at `offset` of the range with this number, or at its start, for so many more rows."""

    number: int
    offset: int | None
    rows: int | None


class _Made(NamedTuple):
    """An Arrow batch that is to be handed out, and where to go on after it; None once it was."""

    batch: Any
    place: _Place


class _RangeBatches(Iterator[Any]):
    """Hands out each record once. Of a step that was cut short only `_made` counts, which changes as a whole."""

    def __init__(self, read: Callable[[_Place], Generator[_Made, None, None]], place: _Place) -> None:
        """`read` reads from a place on."""
        self._read = read
        self._made = _Made(None, place)
        self._reading = read(place)
        self._is_cut_short = False

    def __next__(self) -> Any:
        if self._made.batch is None:
            self._read_on()
        batch, place = self._made
        if batch is None:
            raise StopIteration
        self._made = _Made(None, place)
        return batch

    def close(self) -> None:
        """Close the connection; there are no more batches then."""
        self._reading.close()
        self._is_cut_short = False

    def _read_on(self) -> None:
        if self._is_cut_short:
            self._reading = self._read(self._made.place)
        self._is_cut_short = True
        self._made = next(self._reading, self._made)
        self._is_cut_short = False


def _read(
    ranges: Sequence[OffsetRange],
    projection: Projection,
    settings: ReadSettings,
    is_over: Event,
    on_loss: Callable[[Loss], None],
    place: _Place,
) -> Generator[_Made, None, None]:
    """What `ranges` have from `place` on, over a connection of its own."""
    rows = place.rows
    if rows == 0:
        return
    with TaskLink(settings.connection, settings.bootstrap) as link:
        for number, planned in enumerate(ranges[place.number :], place.number):
            start = place.offset if number == place.number else None
            reader = _RangeReader(planned, projection, settings, link, start=start, is_over=is_over, on_loss=on_loss)
            for batch in reader.read():
                wanted = batch if rows is None else batch.slice(0, rows)
                rows = None if rows is None else rows - wanted.num_rows
                yield _Made(wanted, _Place(number, reader.handed_out, rows))
                if rows == 0:
                    return


class _RangeReader:
    def __init__(
        self,
        planned: OffsetRange,
        projection: Projection,
        settings: ReadSettings,
        link: TaskLink,
        *,
        start: int | None,
        is_over: Event,
        on_loss: Callable[[Loss], None],
    ) -> None:
        """`start` is where to begin within `planned`; None: at its own start."""
        self._is_over = is_over
        self._on_loss = on_loss
        self._range = planned
        self._epoch = planned.start_epoch
        """Of the batch before the position."""
        self._settings = settings
        self._link = link
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
                self._link.drop()
                if self._skip_lost(error):
                    continue
                if not may_pass(error):
                    raise self._in_words(error) from error
                if failed_at != self._window.position:
                    failed_at, failing_since, attempts = self._window.position, time.monotonic(), 0
                self._back_off(error, failing_since, attempts)
                self._link.find_leader(self._range)
                attempts += 1
        yield from self._merger.flush()

    def _read_connected(self) -> Iterator[Any]:
        """Reads to the end of the range, or until something fails. Answers that are not needed any more are dropped."""
        window = self._window
        window.restart()
        correlation_ids: dict[int, int] = {}
        connection = self._link.to(self._range)
        while not window.is_done:
            self._check_wanted()
            for fetch in window.to_send():
                correlation_ids[fetch.start] = connection.request(self._request(fetch))
            fetch = window.next_due()
            answer = connection.wait(correlation_ids.pop(fetch.start))
            try:
                yield from self._take(connection, fetch, answer)
            except CorruptBatch as error:
                found = self._with_extent(connection, error)
                if found is error:
                    raise
                raise found from error
        if correlation_ids:
            self._link.drop()

    def _check_wanted(self) -> None:
        if self._is_over.is_set():
            position = self._window.position
            raise ClientClosed(f"{self._range}, stopped at {position}: nobody waits for the rest any more")

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

    def _take(self, connection: BlockingConnection, fetch: Fetch, answer: Answer) -> Iterator[Any]:
        """Arrow batches of what is new in `answer`; moves the window."""
        assert isinstance(answer.result, FetchResponse)
        fetched = answer.result.partitions[0]
        window = self._window
        before = window.position
        if fetched.error_code:
            if fetch.start != before:
                window.accepts(fetch, None)
                return  # it may concern only what is not read now: the next fetch starts at the position
            raise self._fetch_error(connection, fetched)
        if fetched.diverging is not None:
            raise LogTruncated(*self._range.place, before, fetched.diverging.end_offset)
        if not window.accepts(fetch, _first_offset(answer.payload)):
            return
        self._pass_gap(fetched)
        batches: list[RecordBatch] = []
        aborted = self._aborted(fetched)
        for batch in _whole_batches(answer.payload, fetch.start, fetched):
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
                break  # what follows may be damaged: it was not asked for
        window.learn(batches)
        if window.position == before == fetch.start:
            raise BrokerUnavailable(f"it sent nothing; its high watermark is {fetched.high_watermark}")

    def _pass_gap(self, fetched: FetchedPartition) -> None:
        """Moves over offsets that hold no record any more; the epoch that tells of a cut is the leader's by then."""
        if fetched.next_offset > self._window.position:
            self._window.advance(min(fetched.next_offset, self._window.end))
            self._epoch = fetched.leader_epoch

    def _is_new(self, batch: RecordBatch, fetched: FetchedPartition) -> bool:
        """Whether `batch` was written after the plan, although the log went up to the end of the range then.

        No CRC covers a leader epoch: one that the partition has not had yet is damaged, and says nothing.
        """
        planned, epoch = self._range, batch.header.partition_leader_epoch
        return (
            NO_LEADER_EPOCH < planned.leader_epoch < epoch <= fetched.leader_epoch and batch.base_offset < planned.end
        )

    def _truncated(self, diverging_offset: int) -> LogTruncated:
        reason = (
            f"the log was cut at {diverging_offset} after these ranges were planned, and what it holds there is new"
        )
        return LogTruncated(*self._range.place, self._range.end, diverging_offset, reason)

    def _aborted(self, fetched: FetchedPartition) -> AbortedRanges | None:
        """What is to be hidden of one answer; None where everything is read."""
        if self._settings.isolation is not IsolationLevel.READ_COMMITTED:
            return None
        return AbortedRanges(fetched.aborted_transactions)

    def _fetch_error(self, connection: BlockingConnection, fetched: FetchedPartition) -> ApiError:
        error = error_in(fetched, self._window.position)
        if not isinstance(error, OffsetOutOfRange):
            return error
        return _OutOfLog(str(error), self._log_start_offset(connection))

    def _log_start_offset(self, connection: BlockingConnection) -> int:
        """Where the log starts now. ApiError when the broker cannot say."""
        earliest = ListOffsetsPartition(self._range.topic, self._range.partition, EARLIEST_TIMESTAMP)
        listed = connection.call(ListOffsetsRequest([earliest]), ListOffsetsResponse).partitions[0]
        if listed.error_code:
            raise error_from_code(listed.error_code, listed.error_message)
        return listed.offset

    # --- what is gone ---------------------------------------------------------------------------------------------

    def _with_extent(self, connection: BlockingConnection, error: CorruptBatch) -> ApiError:
        """`error`, or one with the offset at which to go on if what is stored at the position is why."""
        position = self._window.position
        if isinstance(error, UnreadableBatch):
            return error
        answer = connection.wait(connection.request(self._request(Fetch(position, 1))))
        assert isinstance(answer.result, FetchResponse)
        fetched = answer.result.partitions[0]
        if fetched.error_code:
            return error_in(fetched, position)
        first = first_header(fetched, answer.payload, position)
        if first is None or not first.base_offset <= position < first.next_offset or is_intact(first, answer.payload):
            return error
        return UnreadableBatch(
            str(error),
            topic=self._range.topic,
            partition=self._range.partition,
            base_offset=position,
            next_offset=first.next_offset,
        )

    def _skip_lost(self, error: WarmlogError) -> bool:
        """Whether `error` says that offsets are gone; then they are skipped and told, where that is allowed.

        Raises the error with the range in words where it is not.
        """
        window, planned = self._window, self._range
        lost: Loss | None = None
        if isinstance(error, TOPIC_IS_GONE):
            lost = Loss(*planned.place, window.position, planned.end, f"{_MADE_ANEW} ({error})")
        elif isinstance(error, _OutOfLog):
            lost = self._lost_in_log(error)
        elif isinstance(error, UnreadableBatch):
            lost = Loss(
                *planned.place, window.position, min(error.next_offset, planned.end), f"unreadable: {error.reason}"
            )
        elif isinstance(error, LogTruncated):
            lost = Loss(*planned.place, window.position, planned.end, f"gone: {error}")
        if lost is None:
            return False
        if self._settings.fails_on_data_loss:
            raise self._loss_error(error, lost) from error
        self._on_loss(lost)
        window.advance(lost.end)
        self._epoch = NO_LEADER_EPOCH
        return True

    def _lost_in_log(self, error: "_OutOfLog") -> Loss:
        window, planned = self._window, self._range
        start = error.log_start_offset
        if start > window.position:
            reason = f"gone, the log starts at {start} now: {REMOVED} after these ranges were planned"
            return Loss(*planned.place, window.position, min(start, planned.end), reason)
        return Loss(*planned.place, window.position, planned.end, f"not there any more: {error}")

    def _loss_error(self, error: WarmlogError, lost: Loss) -> WarmlogError:
        if isinstance(error, (UnreadableBatch, *TOPIC_IS_GONE)):
            return self._in_words(error)
        if isinstance(error, LogTruncated):
            return self._in_words(error, self._settings.remedies.when_cut)
        found = OffsetOutOfRange(f"offsets {lost.start} to {lost.end - 1} are {lost.reason}")
        return self._in_words(found, self._settings.remedies.when_lost)

    # --- trying again ---------------------------------------------------------------------------------------------

    def _back_off(self, error: WarmlogError, failing_since: float, attempts: int) -> None:
        """Sleeps before the next attempt, longer each time; raises `error` in words when time is up."""
        options = self._settings.connection
        delay_s = min(options.retry_backoff_ms << min(attempts, 16), options.retry_backoff_max_ms) / 1000
        waited_s = time.monotonic() - failing_since
        if waited_s + delay_s > self._settings.deadline_s:
            raise self._in_words(error, f"gave up after {waited_s:.0f} s; is the broker running?") from error
        self._is_over.wait(delay_s)

    def _in_words(self, error: WarmlogError, remedy: str = "") -> WarmlogError:
        remedy = remedy or self._remedy(error)
        line = f"{self._range}, stopped at {self._window.position}, broker {self._link.leader(self._range)}: {error}"
        line = f"{line}; {remedy}" if remedy else line
        if isinstance(error, (LogTruncated, UnreadableBatch)):
            return error.reworded(line)
        return type(error)(line)

    def _remedy(self, error: WarmlogError) -> str:
        """What helps wherever such an error came up; empty when nothing is known to."""
        remedies = self._settings.remedies
        if isinstance(error, TOPIC_IS_GONE):
            return f"{_MADE_ANEW}: {remedies.when_made_anew}"
        return remedies.when_damaged if isinstance(error, CorruptBatch) else ""


class _OutOfLog(OffsetOutOfRange):
    """An offset below `log_start_offset`, or above the log's end."""

    def __init__(self, message: str, log_start_offset: int) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset


def _whole_batches(payload: memoryview, start: int, fetched: FetchedPartition) -> Iterator[RecordBatch]:
    """The batches of an answer to a fetch from `start` on. CorruptBatch at one that cannot be where it is."""
    position = 0
    for header in whole_headers(payload, fetched.high_watermark, start, is_dense=fetched.has_dense_offsets):
        end = position + header.size_bytes
        yield RecordBatch(header, payload[position:end], column_type=ArrayColumn)
        position = end


def _first_offset(payload: memoryview) -> int | None:
    """Where the first batch begins; None where none came."""
    return read_header(payload).base_offset if len(payload) >= HEADER_BYTES else None
