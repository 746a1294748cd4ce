"""Fetches one range, in order and several fetches ahead (see fetch_window). Runs in an event loop.

It reads from the leader, or from a near replica that this has named, until that one cannot answer.

`next` returns what one response brought. The caller reads it, in any thread, and reports what it cannot (`failed`).
`records.verdict` decides about everything that cannot be read: it is an error, or lost and skipped. After a lost
connection, or if the leader has moved, the leader is looked up and fetching continues at the same offset. It gives up
when the position has not moved for `deadline_s`. Errors are one line, as Spark shows it: partition, offsets, broker,
and what to do.
"""

import asyncio
import logging

from warmlog import errors
from warmlog.ranges.fetch_window import Fetch, FetchWindow
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.read_settings import ReadSettings
from warmlog.ranges.resolve import REMOVED, Loss
from warmlog.records.fetched import FetchedBatches, error_in, first_header, is_intact
from warmlog.records.verdict import Action, Policy, decide
from warmlog_protocol import messages as m
from warmlog_protocol.batch import HEADER_BYTES, read_header
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import Connection, response_in
from warmlog_transport.errors import TOPIC_IS_GONE
from warmlog_transport.retries import Retries

_RECREATED = "the topic was deleted or recreated after these ranges were planned"

_log = logging.getLogger("warmlog.ranges")


class RangeFetch:
    """One range, from `start` on. For one caller: a call begins when the last one has returned or was cancelled."""

    def __init__(self, cluster: Cluster, planned: OffsetRange, settings: ReadSettings, start: int) -> None:
        self._cluster = cluster
        self._range = planned
        self._settings = settings
        self._policy = Policy.RANGE_RAISES if settings.fails_on_data_loss else Policy.RANGE_SKIPS
        self._window = FetchWindow(start, planned.end, in_flight=settings.in_flight, fetch_bytes=settings.fetch_bytes)
        self._epoch = planned.start_epoch if start == planned.start else m.NO_LEADER_EPOCH
        """Of the batch before the position, -1 while unknown."""
        self._broker = planned.leader
        """HOST:PORT of the broker that was read from last, at first of the leader."""
        self._connection: Connection | None = None
        self._in_flight: dict[int, asyncio.Future[ReceivedResponse | errors.WarmlogError]] = {}
        self._damage: errors.CorruptBatch | None = None
        """Why the batch at the position, which has arrived, cannot be trusted."""
        self._log_start_offset = -1
        """When the position was last out of range."""
        self._is_leader_known = True
        """False after a failure: brokers are asked again before the next fetch."""
        self._failed_at = -1
        self._retries: Retries | None = None
        """Of the position `_failed_at`."""

    async def next(self) -> FetchedBatches | Loss | None:
        """Return what follows: batches, or offsets that are lost and skipped; None at the end of the range.

        Raises what the verdict makes an error. What the caller cannot read of the batches goes to `failed`.
        """
        while not self._window.is_done:
            try:
                if self._damage is not None:
                    raise self._damage
                found: FetchedBatches | Loss | None = await self._receive()
            except (errors.BrokerUnavailable, errors.ApiError) as error:
                found = await self._judge(error, self._window.position)
            if found is not None:
                return found
        return None

    async def failed(self, error: errors.ApiError, position: int, epoch: int) -> Loss | None:
        """Return what is lost because of `error` in the batch at `position`; None if it is fetched again.

        Raises the error if it is one. `epoch` is of the batch before.
        """
        self._epoch = epoch
        return await self._judge(error, position)

    # --- requests ---------------------------------------------------------------------------------------------------

    async def _receive(self) -> FetchedBatches | None:
        """Return what the next response has that is new, and move the window; None if it is of no use."""
        window = self._window
        connection = self._connection
        if connection is None or not connection.is_open:
            connection = self._connection = await self._connect()
        self._send_ahead(connection)
        fetch = window.next_due()
        fetched, payload = _fetched(await self._in_flight.pop(fetch.start))
        position = window.position
        if fetched.error_code and fetch.start != position:
            window.accepts(fetch, None)  # the error may concern only what is not read now
            return None
        if fetched.error_code:
            raise await self._error_in(connection, fetched)
        if fetched.diverging is not None:
            raise errors.LogTruncated(*self._range.tp, position, fetched.diverging.end_offset)
        if not window.accepts(fetch, read_header(payload).base_offset if len(payload) >= HEADER_BYTES else None):
            return None
        if fetched.near_replica >= 0:
            self._cluster.read_near(*self._range.tp, fetched.near_replica)
            self._connection = None
        batches = FetchedBatches(fetched, payload, fetch.start, self._epoch)
        if batches.next_offset > position:
            window.advance(batches.next_offset)
            self._epoch = batches.next_epoch
        elif fetch.start == position and batches.error is None:
            raise errors.BrokerUnavailable(f"it sent nothing; its high watermark is {fetched.high_watermark}")
        window.learn(batches.headers())
        self._damage = batches.error
        if self._damage is None:
            self._send_ahead(connection)
        return batches

    async def _connect(self) -> Connection:
        """Return a connection to read from. Asks brokers who leads, if need be until the deadline."""
        topic, partition = self._range.tp
        if not self._is_leader_known or self._cluster.leader(topic, partition) is None:
            try:
                await self._cluster.topics([topic], timeout_ms=int(self._current_retries().left_s * 1000))
            except errors.UnknownTopicOrPartition as error:
                raise errors.UnknownTopicId(str(error)) from None  # what has the name later is another topic
            self._is_leader_known = True
        link = self._cluster.source(topic, partition)
        if link is None:
            raise self._cluster.no_leader(topic, partition)
        found = str(link.address)
        if found != self._broker:
            _log.info("%s-%d is now read from broker %s instead of %s", topic, partition, found, self._broker)
            self._broker = found
        return await link.connected()

    def _send_ahead(self, connection: Connection) -> None:
        for fetch in self._window.to_send():
            self._in_flight[fetch.start] = connection.requested(self._request(fetch))

    def _request(self, fetch: Fetch) -> m.FetchRequest:
        wanted = m.FetchPartition(
            *self._range.tp,
            fetch.start,
            fetch.max_bytes,
            topic_id=self._range.topic_id or None,
            current_leader_epoch=self._cluster.leader_epoch(*self._range.tp),
            last_fetched_epoch=self._epoch if fetch.start == self._window.position else m.NO_LEADER_EPOCH,
        )
        settings = self._settings
        return m.FetchRequest(
            settings.max_wait_ms,
            1,
            fetch.max_bytes,
            [wanted],
            isolation=settings.isolation,
            skips_gaps=True,
            rack=self._cluster.options.rack,
        )

    # --- errors -----------------------------------------------------------------------------------------------------

    async def _error_in(self, connection: Connection, fetched: m.FetchedPartition) -> errors.ApiError:
        """Return the partition's error. For OffsetOutOfRange, look up where the log starts; raises if that fails."""
        error = error_in(fetched, self._window.position)
        if isinstance(error, errors.OffsetOutOfRange):
            request = m.ListOffsetsRequest([m.ListOffsetsPartition(*self._range.tp, m.EARLIEST_TIMESTAMP)])
            (listed,) = (await connection.call(request, m.ListOffsetsResponse)).partitions
            if listed.error_code:
                raise errors.error_from_code(listed.error_code, listed.error_message)
            self._log_start_offset = listed.offset
        return error

    async def _locate(self, error: errors.CorruptBatch) -> errors.ApiError:
        """Return `error` with the offset to continue at, if the batch stored at the position is its cause."""
        position = self._window.position
        connection = self._connection = await self._connect()
        fetched, payload = _fetched(await connection.requested(self._request(Fetch(position, 1))))
        if fetched.error_code:
            return await self._error_in(connection, fetched)
        first = first_header(fetched, payload, position)
        if first is None or not first.base_offset <= position < first.next_offset or is_intact(first, payload):
            return error
        return errors.UnreadableBatch(str(error), *self._range.tp, position, first.next_offset)

    async def _judge(self, error: errors.BrokerUnavailable | errors.ApiError, position: int) -> Loss | None:
        """Carry out the verdict on `error`: raise it, return what is skipped, or pause and return None."""
        window = self._window
        window.restart(position)
        self._in_flight.clear()
        self._damage = None
        if self._cluster.leave_near(*self._range.tp):  # the leader is asked at once
            self._connection = None
            return None
        if isinstance(error, errors.CorruptBatch) and not isinstance(error, errors.UnreadableBatch):
            try:
                error = await self._locate(error)
            except (errors.BrokerUnavailable, errors.ApiError) as failure:
                error = failure
        action, next_offset = decide(
            error, self._policy, position=position, end=window.end, log_start_offset=self._log_start_offset
        )
        if action is Action.RETRY:
            retries = self._current_retries()
            if not await retries.pause():
                waited_s = self._settings.deadline_s - retries.left_s
                raise self._in_words(error, f"gave up after {waited_s:.0f} s; is the broker running?") from error
            self._connection, self._is_leader_known = None, False
            return None
        lost = Loss(*self._range.tp, position, next_offset, self._reason(error))
        if action is Action.RAISE:
            if isinstance(error, errors.OffsetOutOfRange) and not isinstance(error, errors.LogTruncated):
                reason = errors.OffsetOutOfRange(f"offsets {lost.start} to {lost.end - 1} are {lost.reason}")
                raise self._in_words(reason) from error
            raise self._in_words(error) from error
        window.restart(next_offset)
        self._epoch = m.NO_LEADER_EPOCH
        return lost

    def _current_retries(self) -> Retries:
        """Return the retries at the position, whose time begins with the first failure there."""
        if self._retries is None or self._failed_at != self._window.position:
            self._failed_at = self._window.position
            self._retries = Retries(self._settings.connection, self._settings.deadline_s)
        return self._retries

    def _reason(self, error: errors.WarmlogError) -> str:
        """Why offsets are lost."""
        start = self._log_start_offset
        if isinstance(error, errors.UnreadableBatch):
            return f"unreadable: {error.reason}"
        if isinstance(error, errors.LogTruncated):
            return f"gone: {error}"
        if isinstance(error, TOPIC_IS_GONE):
            return f"{_RECREATED} ({error})"
        if start > self._window.position:
            return f"gone, the log starts at {start} now: {REMOVED} after these ranges were planned"
        return f"not there any more: {error}"

    def _in_words(self, error: errors.WarmlogError, remedy: str = "") -> errors.WarmlogError:
        """Return `error` with the range, the position, the broker and what to do."""
        remedy = remedy or self._remedy(error)
        line = f"{self._range}, stopped at {self._window.position}, broker {self._broker}: {error}"
        line = f"{line}; {remedy}" if remedy else line
        if isinstance(error, (errors.LogTruncated, errors.UnreadableBatch)):
            return error.reworded(line)
        return type(error)(line)

    def _remedy(self, error: errors.WarmlogError) -> str:
        remedies = self._settings.remedies
        if isinstance(error, TOPIC_IS_GONE):
            return f"{_RECREATED}: {remedies.when_recreated}"
        if isinstance(error, errors.LogTruncated):
            return remedies.when_cut
        if isinstance(error, errors.OffsetOutOfRange):
            return remedies.when_lost
        return remedies.when_damaged if isinstance(error, errors.CorruptBatch) else ""


def _fetched(result: ReceivedResponse | errors.WarmlogError) -> tuple[m.FetchedPartition, memoryview]:
    """Return the partition's part of a Fetch response and its batches, or raise the error in their place."""
    response = response_in(result)
    assert isinstance(response.result, m.FetchResponse)
    return response.result.partitions[0], response.payload
