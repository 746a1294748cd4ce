"""The task that fetches ahead for a consumer.

A partition with room and no fetch in flight goes into the next Fetch to its leader, so that the broker and the socket
work while the user handles what is here. A broker may have several Fetches in flight, of different partitions: one that
waits for new records does not delay one that has some. Together they never hold more than `prefetch_bytes`, except for
a batch larger than that. Partitions take turns at the head of a request, whose limits are used up from there.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from itertools import count

from warmlog import errors
from warmlog.consumer.options import ConsumerOptions
from warmlog.consumer.partition_reader import NO_LIMIT, PartitionReader
from warmlog.records.fetched import error_in
from warmlog.records.verdict import Action, decide
from warmlog_protocol.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import Connection
from warmlog_transport.errors import TOPIC_IS_GONE
from warmlog_transport.retries import pause_after_s

_log = logging.getLogger("warmlog")

Requested = list[tuple[PartitionReader, int]]
"""The partitions of a Fetch, each with its `generation` at that time."""


Line = OrderedDict[PartitionReader, None]
"""A queue in which each partition is once: one that is there already keeps its place."""


class Turns:
    """Which partitions a consumer reads, and which of them have something to deliver: these take turns.

    A queue of partitions that may have something; no call costs more for partitions that have nothing.

    Whatever may give a partition something to deliver, such as a response, offers it: data, an error or a gap to pass.
    """

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        """Set when a partition was offered, or something else is to be looked at before the user waits on."""
        self._readers: dict[PartitionReader, None] = {}
        self._queue: Line = OrderedDict()
        self._unread: dict[PartitionReader, None] = {}
        """Those that have not reached their end, and some that have since."""

    def __contains__(self, reader: PartitionReader) -> bool:
        return reader in self._readers

    def add(self, reader: PartitionReader) -> None:
        """Deliver this partition as well."""
        self._readers[reader] = None
        self.offer(reader)

    def remove(self, reader: PartitionReader) -> None:
        """Deliver it no longer."""
        self._readers.pop(reader, None)

    def offer(self, reader: PartitionReader) -> None:
        """Look at this partition when it is its turn: it may have something, or another end, by now."""
        self._unread[reader] = None
        self._queue[reader] = None
        self.arrived.set()

    def next(self) -> PartitionReader | None:
        """Return the partition whose turn it is, out of those that have something. The caller offers it again."""
        while self._queue:
            reader, _ = self._queue.popitem(last=False)
            if reader in self._readers and reader.has_something and not reader.is_held:
                return reader
        return None

    @property
    def is_at_end(self) -> bool:
        """Whether every partition has reached its end."""
        while self._unread:
            reader = next(reversed(self._unread))
            if reader in self._readers and not reader.is_at_end:
                return False
            del self._unread[reader]
        return True


class Changes(asyncio.Event):
    """Wakes the fetcher. The cluster calls `leaders`; it does not refer to the fetcher, and so to what that has."""

    def __init__(self) -> None:
        super().__init__()
        self.has_leaders = False

    def leaders(self) -> None:
        """Metadata or connections have changed."""
        self.has_leaders = True
        self.set()


class Fetcher:
    """Run by a consumer as a task. It offers to `turns` what has arrived.

    No wake-up looks at partitions of which nothing has changed. What changes what one wants (a take, a seek, another
    end …) calls `look_at`. Those that want data wait in a queue for room and for their turn; those whose Fetch
    has failed, or that have no connection, wait in a heap for their time, or until metadata or connections change.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        changes: Changes,
        turns: Turns,
        on_old_metadata: Callable[[], None],
    ) -> None:
        """`on_old_metadata` is called with a response, at most once in each `metadata_max_age_ms`."""
        self._options = options
        self._cluster = cluster
        self._changes = changes
        self._turns = turns
        self._counted: dict[PartitionReader, int] = {}
        """The partitions that are fetched, each with how much of `_buffered_bytes` is its."""
        self._buffered_bytes = 0
        self._in_flight_bytes = 0
        self._queue: Line = OrderedDict()
        self._waiting: list[tuple[float, int, PartitionReader]] = []
        self._wait_number = count()
        self._loop = asyncio.get_running_loop()
        self._on_old_metadata = on_old_metadata

    def add(self, reader: PartitionReader) -> None:
        """Fetch a further partition."""
        self._counted[reader] = 0
        self.look_at(reader)

    def remove(self, reader: PartitionReader) -> None:
        """Fetch this partition no longer; what is in flight is dropped."""
        reader.drop_ahead()
        self._buffered_bytes -= self._counted.pop(reader, 0)

    def look_at(self, reader: PartitionReader) -> None:
        """Fetch this partition when it is its turn, if it wants data by now."""
        counted = self._counted.get(reader)
        if counted is None:
            return
        self._counted[reader] = reader.buffered_bytes
        self._buffered_bytes += reader.buffered_bytes - counted
        if self._wants_data(reader):
            self._queue[reader] = None
        if self._queue:
            self._changes.set()

    async def run(self) -> None:
        """Fetch until cancelled. An error here is a bug: the user's next read raises it."""
        try:
            while True:
                self._changes.clear()
                self._fetch_more(self._loop.time())
                timer = self._loop.call_at(self._waiting[0][0], self._changes.set) if self._waiting else None
                try:
                    await self._changes.wait()
                finally:
                    if timer is not None:
                        timer.cancel()
        except Exception as error:
            _log.exception("the consumer's fetcher failed")
            for reader in self._counted:
                self._give_up(reader, errors.ClientError(f"the consumer's fetcher failed: {error!r}"))
        finally:
            self._on_old_metadata = _no_owner

    # --- requests ---------------------------------------------------------------------------------------------------

    def _fetch_more(self, now: float) -> None:
        """Fetch what partitions have room for."""
        if self._changes.has_leaders:
            self._changes.has_leaders = False
            waiting, self._waiting = self._waiting, []
            for _, _, reader in waiting:
                if reader.paused_until > now:
                    self._wait(reader, reader.paused_until)
                else:
                    self.look_at(reader)
        while self._waiting and self._waiting[0][0] <= now:
            self.look_at(heappop(self._waiting)[2])
        by_connection: dict[Connection, list[PartitionReader]] = {}
        has_room = self._has_room
        while self._queue and has_room:
            reader, _ = self._queue.popitem(last=False)
            if reader in self._counted and reader.paused_until <= now and self._wants_data(reader):
                connection = self._connection_for(reader, now)
                if connection is not None:
                    by_connection.setdefault(connection, []).append(reader)
        for connection, readers in by_connection.items():
            if self._has_room:
                self._fetch(connection, readers)
            else:
                self._queue.update(dict.fromkeys(readers))

    def _wants_data(self, reader: PartitionReader) -> bool:
        return reader.wants_data(self._options.partition_max_bytes // 2)

    def _wait(self, reader: PartitionReader, until: float) -> None:
        heappush(self._waiting, (until, next(self._wait_number), reader))

    @property
    def _left_bytes(self) -> int:
        return self._options.prefetch_bytes - self._buffered_bytes - self._in_flight_bytes

    @property
    def _has_room(self) -> bool:
        """Whether there is room for so much that a request of all partitions that wait pays."""
        options = self._options
        enough_bytes = min(options.partition_max_bytes, options.prefetch_bytes // 4 + 1)
        return self._left_bytes >= enough_bytes or not (self._buffered_bytes or self._in_flight_bytes)

    def _connection_for(self, reader: PartitionReader, now: float) -> Connection | None:
        """The connection to read the partition from. Has one opened if there is none, and gives up after a time."""
        link = self._cluster.source(*reader.tp)
        if link is not None and (connection := link.connection) is not None:
            return connection
        error = self._cluster.topic_error(reader.topic)
        if error is None and link is not None:
            self._cluster.want_leader(link, reader.topic)
            self._note_failure(
                reader, link.last_error or errors.BrokerUnavailable(f"no connection to {link.address}"), now
            )
            return None
        error = error or self._cluster.no_leader(reader.topic, reader.partition)
        self._cluster.refresh_soon([reader.topic])
        is_unknown = isinstance(error, errors.UnknownTopicOrPartition)  # by the metadata: it was deleted
        if not self._is_retried(reader, errors.UnknownTopicId(str(error)) if is_unknown else error):
            self._give_up(reader, error)
        elif is_unknown:
            self._retry(reader, error)
        else:
            self._note_failure(reader, error, now)
        return None

    def _fetch(self, connection: Connection, readers: list[PartitionReader]) -> None:
        max_bytes = min(self._options.max_bytes, self._left_bytes)
        requested: Requested = [(reader, reader.generation) for reader in readers]
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
                    self._cluster.leader_epoch(reader.topic, reader.partition),
                    reader.fetch_epoch,
                )
                for reader in readers
            ],
            self._options.isolation,
            skips_gaps=True,
            rack=self._cluster.options.rack,
        )
        reserved_bytes = min(max_bytes, self._options.partition_max_bytes * len(readers))
        timeout_ms = self._cluster.options.request_timeout_ms + self._options.max_wait_ms
        try:
            connection.request(
                request, (), partial(self._on_response, requested, reserved_bytes), timeout_ms=timeout_ms
            )
        except errors.WarmlogError as error:
            self._all_failed(requested, error)
            return
        self._in_flight_bytes += reserved_bytes
        for reader in readers:
            reader.is_fetching = True

    # --- responses --------------------------------------------------------------------------------------------------

    def _on_response(
        self, requested: Requested, reserved_bytes: int, response: ReceivedResponse | errors.WarmlogError
    ) -> None:
        self._in_flight_bytes -= reserved_bytes
        if isinstance(response, errors.WarmlogError):
            self._all_failed(requested, response)
        elif isinstance(response.result, errors.ApiError):
            self._all_failed(requested, response.result)
        else:
            assert isinstance(response.result, FetchResponse)
            self._take_in(requested, response.result.partitions, response.payload)
        if self._cluster.is_refresh_due():
            self._on_old_metadata()
        served: list[PartitionReader] = []
        for reader, _ in requested:
            reader.is_fetching = False
            if reader.has_something:
                served.append(reader)
            else:
                self.look_at(reader)
        for reader in served:  # after those that were left out of the response, which come first in the next request
            self._turns.offer(reader)
            self.look_at(reader)

    def _take_in(self, requested: Requested, parts: list[FetchedPartition], payload: memoryview) -> None:
        if len(parts) != len(requested) or sum(part.size_bytes for part in parts) != len(payload):
            self._all_failed(requested, errors.RemoteProtocolError("a Fetch response that does not fit its request"))
            return
        position = 0
        for (reader, generation), part in zip(requested, parts, strict=True):
            data = payload[position : position + part.size_bytes]
            position += part.size_bytes
            if reader.generation != generation:
                continue
            if part.error_code:
                self._failed(reader, error_in(part, reader.fetch_offset))
                continue
            if reader.failing_since is not None:
                reader.failing_since = None
                self._cluster.worked(reader.topic, reader.partition)
            if part.diverging is not None:
                reader.diverged(part.diverging)
                continue
            if part.near_replica >= 0:
                self._cluster.read_near(*reader.tp, part.near_replica)
            reader.add(part, data)

    def _all_failed(self, requested: Requested, error: errors.WarmlogError) -> None:
        for reader, generation in requested:
            if reader.generation == generation:
                self._failed(reader, error)

    def _failed(self, reader: PartitionReader, error: errors.WarmlogError) -> None:
        """A Fetch of this partition failed: retry after a pause, or have the user's next read handle it.

        What a near replica could not answer is asked of the leader at once.
        """
        if self._cluster.leave_near(*reader.tp):
            self.look_at(reader)
        elif self._is_retried(reader, error):
            self._retry(reader, error)
            self._cluster.refresh_soon([reader.topic])
        else:
            self._give_up(reader, error)

    def _is_retried(self, reader: PartitionReader, error: errors.WarmlogError) -> bool:
        if self._options.is_member and isinstance(error, TOPIC_IS_GONE):
            return True
        return decide(error, self._options.loss_policy(is_endless=reader.until == NO_LIMIT)).action is Action.RETRY

    def _retry(self, reader: PartitionReader, error: errors.WarmlogError) -> None:
        now = self._loop.time()
        if not isinstance(error, errors.BrokerUnavailable):
            reader.paused_until = now + pause_after_s(error, 3, self._cluster.options)
        self._note_failure(reader, error, now)

    def _note_failure(self, reader: PartitionReader, error: errors.WarmlogError, now: float) -> None:
        """Look at it again after its pause, or when something changes; give up after a time."""
        self._cluster.failed(reader.topic, reader.partition, error)
        at_last = now + self._cluster.options.retry_backoff_max_ms / 1000
        self._wait(reader, reader.paused_until if reader.paused_until > now else at_last)
        if reader.failing_since is None:
            reader.failing_since = now
        elif now - reader.failing_since >= self._options.unavailable_timeout_ms / 1000:
            self._give_up(reader, error)

    def _give_up(self, reader: PartitionReader, error: errors.WarmlogError) -> None:
        """Have the user's next read handle `error`."""
        reader.failing_since = None
        self._cluster.worked(reader.topic, reader.partition)  # the error was raised: a later failure is a new one
        reader.error = error
        self._turns.offer(reader)


def _no_owner() -> None:
    """In place of a reference to the owner once a fetcher has ended: no cycle keeps what it has fetched."""
