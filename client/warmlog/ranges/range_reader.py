"""What a Spark task does: reads its ranges over one connection each and yields them as Arrow record batches.

Several fetches are in flight (see fetch_window). A lost connection is opened again and reading goes on at the first
offset that was not read; only when nothing has moved for `deadline_s` does the task fail, for Spark to run it again.
Errors are one line, as it reaches the user through Spark: which partition, offsets and broker, and what to do.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from warmlog.address import parse_address
from warmlog.arrow import ArrowMerger
from warmlog.blocking import BlockingConnection
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    CorruptBatch,
    InconsistentTopicId,
    OffsetOutOfRange,
    UnknownTopicId,
    UnknownTopicOrPartition,
    WarmlogError,
    error_from_code,
)
from warmlog.options import ConnectionOptions
from warmlog.ranges.fetch_window import FETCH_BYTES, IN_FLIGHT, Fetch, FetchWindow
from warmlog.ranges.offset_range import OffsetRange
from warmlog_protocol.batch import RecordBatch, check_crc, iter_batches
from warmlog_protocol.connection import Answer
from warmlog_protocol.messages import (
    EARLIEST_TIMESTAMP,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

_TOPIC_IS_GONE = (UnknownTopicId, InconsistentTopicId, UnknownTopicOrPartition)
_REMEDIES: dict[type[WarmlogError], str] = {
    **dict.fromkeys(_TOPIC_IS_GONE, "the topic was deleted, or made anew, after this load() was planned: load() again"),
    CorruptBatch: "other offsets can be read: leave these out with startingOffsets and endingOffsets",
}


@dataclass(frozen=True)
class ReadSettings:
    """How a task reads."""

    fetch_bytes: int = FETCH_BYTES
    in_flight: int = IN_FLIGHT
    max_wait_ms: int = 500
    deadline_s: float = 120.0
    """As the poll timeout of Spark's Kafka connector (spark.network.timeout)."""
    connection: ConnectionOptions = ConnectionOptions(client_name="warmlog-spark")  # noqa: RUF009 - frozen


def read_ranges(
    ranges: Sequence[OffsetRange], columns: Sequence[str], settings: ReadSettings | None = None
) -> Iterator[Any]:
    """The records of `ranges`, in order, as pyarrow record batches with `columns`."""
    for planned in ranges:
        yield from _RangeReader(planned, columns, settings or ReadSettings()).read()


class _RangeReader:
    def __init__(self, planned: OffsetRange, columns: Sequence[str], settings: ReadSettings) -> None:
        self._range = planned
        self._settings = settings
        self._window = FetchWindow(
            planned.start, planned.end, in_flight=settings.in_flight, fetch_bytes=settings.fetch_bytes
        )
        self._merger = ArrowMerger(planned.topic, planned.partition, columns)

    def read(self) -> Iterator[Any]:
        failed_at, failing_since, attempts = -1, 0.0, 0
        while not self._window.is_done:
            try:
                yield from self._read_connected()
            except (BrokerUnavailable, ApiError) as error:
                if not _is_worth_retrying(error):
                    raise self._in_words(error) from error
                if failed_at != self._window.position:
                    failed_at, failing_since, attempts = self._window.position, time.monotonic(), 0
                self._back_off(error, failing_since, attempts)
                attempts += 1
        yield from self._merger.flush()

    def _read_connected(self) -> Iterator[Any]:
        """Reads to the end of the range, or until something fails."""
        window = self._window
        window.restart()
        correlation_ids: dict[int, int] = {}
        with BlockingConnection(*parse_address(self._range.leader), self._settings.connection) as connection:
            while not window.is_done:
                for fetch in window.to_send():
                    correlation_ids[fetch.start] = connection.request(self._request(fetch))
                fetch = window.next_due()
                answer = connection.wait(correlation_ids.pop(fetch.start))
                yield from self._take(connection, fetch, answer)

    def _request(self, fetch: Fetch) -> FetchRequest:
        planned = self._range
        wanted = FetchPartition(
            planned.topic, planned.partition, fetch.start, fetch.max_bytes, topic_id=planned.topic_id or None
        )
        return FetchRequest(self._settings.max_wait_ms, min_bytes=1, max_bytes=fetch.max_bytes, partitions=[wanted])

    def _take(self, connection: BlockingConnection, fetch: Fetch, answer: Answer) -> Iterator[Any]:
        """Arrow batches of what is new in `answer`; moves the window."""
        assert isinstance(answer.result, FetchResponse)
        fetched = answer.result.partitions[0]
        window = self._window
        before = window.position
        if fetched.error_code:
            if fetch.start < before:
                return  # it may concern only what was read meanwhile: the next fetch starts at the position
            raise self._fetch_error(connection, fetched)
        batches: list[RecordBatch] = []
        for batch in iter_batches(answer.payload, verify_crc=False):
            batches.append(batch)
            if batch.next_offset > window.position:
                check_crc(batch.header, batch.buffer)
                yield from self._merger.add(batch, window.position, window.end)
                window.advance(batch.next_offset)
            if window.is_done:
                break  # what follows may be damaged: it was not asked for
        window.learn(batches)
        if window.position == before == fetch.start:
            raise BrokerUnavailable(f"it sent nothing; its high watermark is {fetched.high_watermark}")

    def _fetch_error(self, connection: BlockingConnection, fetched: FetchedPartition) -> ApiError:
        if fetched.error_code == OffsetOutOfRange.code:
            log_start_offset = self._log_start_offset(connection)
            if log_start_offset > self._window.position:
                gone_before = min(log_start_offset, self._window.end)
                return OffsetOutOfRange(
                    f"offsets {self._window.position} to {gone_before - 1} are gone, the log starts at "
                    f"{log_start_offset} now: retention or DeleteRecords removed them after this load() was planned; "
                    "load() again, or start later with startingOffsets"
                )
        return error_from_code(fetched.error_code, fetched.error_message)

    def _log_start_offset(self, connection: BlockingConnection) -> int:
        """Where the log starts now; -1 when the broker does not say."""
        earliest = ListOffsetsPartition(self._range.topic, self._range.partition, EARLIEST_TIMESTAMP)
        return connection.call(ListOffsetsRequest([earliest]), ListOffsetsResponse).partitions[0].offset

    def _back_off(self, error: WarmlogError, failing_since: float, attempts: int) -> None:
        """Sleeps before the next attempt, longer each time; raises `error` in words when time is up."""
        options = self._settings.connection
        delay_s = min(options.retry_backoff_ms << min(attempts, 16), options.retry_backoff_max_ms) / 1000
        waited_s = time.monotonic() - failing_since
        if waited_s + delay_s > self._settings.deadline_s:
            raise self._in_words(error, f"gave up after {waited_s:.0f} s; is the broker running?") from error
        time.sleep(delay_s)

    def _in_words(self, error: WarmlogError, remedy: str = "") -> WarmlogError:
        remedy = remedy or _REMEDIES.get(type(error), "")
        line = f"{self._range}, stopped at {self._window.position}, broker {self._range.leader}: {error}"
        return type(error)(f"{line}; {remedy}" if remedy else line)


def _is_worth_retrying(error: BrokerUnavailable | ApiError) -> bool:
    """A broker that can be reached knows all its topics: one that it does not know is gone for good."""
    return isinstance(error, BrokerUnavailable) or (error.retriable and not isinstance(error, _TOPIC_IS_GONE))
