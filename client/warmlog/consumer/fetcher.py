"""The task that fetches ahead for a consumer.

Whenever a partition has room and nothing under way, it goes into the next Fetch to its leader, so that the broker and
the socket work while the user handles what is here. A broker may have several Fetches at once, of different
partitions: one that waits for new records holds up none that has some. All together never hold more than
`prefetch_bytes`, but for a batch that is larger than asked for. Partitions take turns at the head of a request, as its
limits are used up from there.
"""

import asyncio
import logging
import random
from collections.abc import Sequence

from warmlog.cluster.broker_link import backoff_ms
from warmlog.cluster.cluster import Cluster
from warmlog.cluster.connection import Connection
from warmlog.consumer.options import ConsumerOptions
from warmlog.consumer.partition_reader import PartitionReader
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientError,
    InconsistentTopicId,
    RemoteProtocolError,
    UnknownTopicId,
    UnknownTopicOrPartition,
    WarmlogError,
)
from warmlog.records.damage_search import error_in
from warmlog_protocol.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from warmlog_protocol.wire.connection import Answer

_log = logging.getLogger("warmlog")

Asked = list[tuple[PartitionReader, int]]
"""The partitions of a Fetch, each with its `generation` then."""


class Fetcher:
    """Owned by a consumer, which runs `run` as a task. `changed` makes it look; it sets `arrived`."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        changed: asyncio.Event,
        readers: Sequence[PartitionReader],
    ) -> None:
        self.arrived = asyncio.Event()
        self._options = options
        self._cluster = cluster
        self._changed = changed
        self._readers = list(readers)
        self._in_flight_bytes = 0
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        """Fetch until cancelled. An error here is a bug: the user's next read raises it."""
        try:
            while True:
                self._changed.clear()
                self._fetch_more()
                await self._wait_for_change()
        except Exception as error:
            _log.exception("the consumer's fetcher failed")
            for reader in self._readers:
                reader.error = ClientError(f"the consumer's fetcher failed: {error!r}")
            self.arrived.set()

    async def _wait_for_change(self) -> None:
        now = self._loop.time()
        times = [reader.paused_until for reader in self._readers if reader.paused_until > now]
        if any(reader.failing_since is not None for reader in self._readers):
            times.append(now + self._cluster.options.retry_backoff_max_ms / 1000)
        timer = self._loop.call_at(min(times), self._changed.set) if times else None
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    # --- asking -----------------------------------------------------------------------------------------------------

    def _fetch_more(self) -> None:
        now = self._loop.time()
        by_connection: dict[Connection, list[PartitionReader]] = {}
        for reader in self._readers:
            if reader.paused_until > now or not reader.wants_data(self._options.partition_max_bytes // 2):
                continue
            connection = self._connection_for(reader, now)
            if connection is not None:
                by_connection.setdefault(connection, []).append(reader)
        for connection, readers in by_connection.items():
            self._fetch(connection, readers)

    def _connection_for(self, reader: PartitionReader, now: float) -> Connection | None:
        """The way to the partition's leader; sees to it when there is none, and gives up after a time."""
        link = self._cluster.leader(reader.topic, reader.partition)
        if link is not None and link.connection is not None:
            return link.connection
        error = self._cluster.topic_error(reader.topic)
        if error is None and link is not None:
            link.want()
            self._note_failure(reader, link.last_error or BrokerUnavailable(f"no connection to {link.address}"), now)
            return None
        error = error or self._cluster.no_leader(reader.topic, reader.partition)
        self._cluster.refresh_soon([reader.topic])
        if isinstance(error, UnknownTopicOrPartition) and self._waits_for_topics(reader):
            self._refuse(reader, error)
        elif isinstance(error, ApiError) and error.retriable and not isinstance(error, UnknownTopicOrPartition):
            self._note_failure(reader, error, now)
        else:
            self._give_up(reader, error)
        return None

    def _fetch(self, connection: Connection, readers: list[PartitionReader]) -> None:
        buffered_bytes = sum(reader.buffered_bytes for reader in self._readers) + self._in_flight_bytes
        max_bytes = min(self._options.max_bytes, self._options.prefetch_bytes - buffered_bytes)
        if max_bytes <= 0 and buffered_bytes:
            return
        asked: Asked = [(reader, reader.generation) for reader in readers]
        request = FetchRequest(
            self._options.max_wait_ms,
            self._options.min_bytes,
            max_bytes,
            [
                FetchPartition(
                    reader.topic,
                    reader.partition,
                    reader.fetch_offset,
                    min(self._options.partition_max_bytes, max_bytes),
                    reader.topic_id,
                    last_fetched_epoch=reader.fetch_epoch,
                )
                for reader in readers
            ],
            self._options.isolation,
            skips_gaps=True,
        )
        reserved_bytes = min(max_bytes, self._options.partition_max_bytes * len(readers))
        timeout_ms = self._cluster.options.request_timeout_ms + self._options.max_wait_ms
        try:
            connection.request(
                request, (), lambda result: self._answered(asked, reserved_bytes, result), timeout_ms=timeout_ms
            )
        except WarmlogError as error:
            self._refuse_all(asked, error)
            return
        self._in_flight_bytes += reserved_bytes
        for reader in readers:
            reader.is_fetching = True
        self._take_turns(readers)

    def _take_turns(self, readers: list[PartitionReader]) -> None:
        """The one that was at the head of a request goes to the end of the line."""
        if len(self._readers) > 1:
            self._readers.remove(readers[0])
            self._readers.append(readers[0])

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answered(self, asked: Asked, reserved_bytes: int, result: Answer | WarmlogError) -> None:
        self._in_flight_bytes -= reserved_bytes
        for reader, _ in asked:
            reader.is_fetching = False
        self._changed.set()
        if isinstance(result, WarmlogError):
            self._refuse_all(asked, result)
        elif isinstance(result.result, ApiError):
            self._refuse_all(asked, result.result)
        else:
            assert isinstance(result.result, FetchResponse)
            self._take_in(asked, result.result.partitions, result.payload)
        self.arrived.set()

    def _take_in(self, asked: Asked, parts: list[FetchedPartition], payload: memoryview) -> None:
        if len(parts) != len(asked) or sum(part.size_bytes for part in parts) != len(payload):
            self._refuse_all(asked, RemoteProtocolError("a Fetch answer that does not fit its request"))
            return
        position = 0
        for (reader, generation), part in zip(asked, parts, strict=True):
            data = payload[position : position + part.size_bytes]
            position += part.size_bytes
            if reader.generation != generation:
                continue
            reader.log_start_offset = part.log_start_offset
            if part.error_code:
                self._refuse(reader, error_in(part, reader.fetch_offset))
            else:
                reader.failing_since = None
                self._cluster.worked(reader.topic, reader.partition)
                if part.diverging is not None:
                    reader.diverged(part.diverging)
                    continue
                reader.add(data, part.high_watermark, part.aborted_transactions, is_dense=part.has_dense_offsets)
                reader.skip_to(part.next_offset, part.leader_epoch)

    def _refuse_all(self, asked: Asked, error: WarmlogError) -> None:
        for reader, generation in asked:
            if reader.generation == generation:
                self._refuse(reader, error)

    def _refuse(self, reader: PartitionReader, error: WarmlogError) -> None:
        """A Fetch of this partition failed: try again after a pause, or have the user's next read raise it."""
        now = self._loop.time()
        if not self._may_pass(reader, error):
            self._give_up(reader, error)
            return
        self._note_failure(reader, error, now)
        self._cluster.refresh_soon([reader.topic])
        if not isinstance(error, BrokerUnavailable):
            pause_ms = backoff_ms(3, self._cluster.options, random.random())  # noqa: S311
            reader.paused_until = now + pause_ms / 1000

    def _may_pass(self, reader: PartitionReader, error: WarmlogError) -> bool:
        """Whether to try again."""
        if isinstance(error, UnknownTopicId):
            return self._waits_for_topics(reader)
        if isinstance(error, InconsistentTopicId):
            return False
        return isinstance(error, BrokerUnavailable) or (isinstance(error, ApiError) and error.retriable)

    def _waits_for_topics(self, reader: PartitionReader) -> bool:
        """Whether the reader will go on in a topic that is made anew, when its own is gone."""
        return self._options.goes_on and reader.is_endless

    def _note_failure(self, reader: PartitionReader, error: WarmlogError, now: float) -> None:
        self._cluster.failed(reader.topic, reader.partition, error)
        if reader.failing_since is None:
            reader.failing_since = now
        elif now - reader.failing_since >= self._options.unavailable_timeout_ms / 1000:
            self._give_up(reader, error)

    def _give_up(self, reader: PartitionReader, error: WarmlogError) -> None:
        reader.failing_since = None
        reader.error = error
        self.arrived.set()
