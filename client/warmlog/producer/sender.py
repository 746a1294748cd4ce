"""The task that sends a producer's batches and takes the answers.

It looks at what is ready whenever something changed: a batch closed, a linger over, an answer, a connection. Every
Produce request carries at most one batch of each partition, all of the same leader. A broker has at most
`max_in_flight` of them unanswered, so a partition has no more batches than that; meanwhile open batches fill up.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable

from warmlog.cluster.broker_link import backoff_ms
from warmlog.cluster.cluster import Cluster
from warmlog.cluster.connection import Connection
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    DeliveryTimeout,
    OutOfOrderSequence,
    RemoteProtocolError,
    WarmlogError,
    error_from_code,
)
from warmlog.producer.accumulator import Accumulator
from warmlog.producer.options import ProducerOptions
from warmlog.producer.partition_queue import PartitionQueue, Verdict
from warmlog.producer.producer_batch import NO_PRODUCER, ProducerBatch
from warmlog_protocol.messages import (
    ACKS_NONE,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from warmlog_protocol.wire.connection import Answer

_log = logging.getLogger("warmlog")

MAX_REQUEST_BYTES = 1024 * 1024
"""As Kafka's max.request.size; a request of one batch may be larger."""

Sending = tuple[PartitionQueue, ProducerBatch]


class Sender:
    """Owned by a producer, which runs `run` as a task. `changed` makes it look, `on_settled` tells of ends."""

    def __init__(
        self,
        options: ProducerOptions,
        cluster: Cluster,
        changed: asyncio.Event,
        on_settled: Callable[[], None],
        timeout_ms: int,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.accumulator = Accumulator(options, changed.set, loop.time, cluster.home.new_waiter)
        self._options = options
        self._cluster = cluster
        self._on_settled = on_settled
        self._timeout_ms = timeout_ms
        self._loop = loop
        self._in_flight: Counter[Connection] = Counter()
        self._changed = changed
        self._producer = NO_PRODUCER
        self._initialising: asyncio.Task[None] | None = None
        self.has_ended = False

    async def run(self) -> None:
        """Send until cancelled, by `stop` or with the event loop. What is not settled then fails: nobody hangs."""
        error: WarmlogError = ClientClosed("the producer was stopped before this was acknowledged")
        try:
            while True:
                self._changed.clear()
                if self._send_ready():
                    await asyncio.sleep(0)
                else:
                    await self._wait_for_change()
        except Exception as bug:  # of ours
            _log.exception("the producer's sender failed")
            error = ClientError(f"the producer's sender failed: {bug!r}")
        finally:
            self.has_ended = self.accumulator.attention.is_needed = True
            self.fail_all(error)
            if self._initialising is not None:
                self._initialising.cancel()
                await asyncio.wait([self._initialising])

    def fail_all(self, error: WarmlogError) -> None:
        """Give up every batch and every record that waits for its topic."""
        for topic in self.accumulator.topics.values():
            self.accumulator.refuse_waiting(topic, error)
        for batch, queue in list(self.accumulator.unsettled.items()):
            self._give_up(queue, batch, error)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _wait_for_change(self) -> None:
        now = self._loop.time()
        times = [self.accumulator.next_due_at(), self.accumulator.next_expiry_at()]
        times += [queue.paused_until for queue in self.accumulator.ready if queue.paused_until > now]
        wake_at = min((time for time in times if time is not None), default=None)
        timer = None if wake_at is None else self._loop.call_at(wake_at, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _send_ready(self) -> bool:
        """Send one request to each leader that can take one; whether there may be more to send."""
        now = self._loop.time()
        self._expire(now)
        self.accumulator.make_due(now)
        by_connection: dict[Connection, list[Sending]] = {}
        for queue in list(self.accumulator.ready):
            sending = self._next_of(queue, now)
            if sending is not None:
                by_connection.setdefault(sending[0], []).append((queue, sending[1]))
        for connection, sendings in by_connection.items():
            self._produce(connection, sendings)
        return bool(by_connection)

    def _next_of(self, queue: PartitionQueue, now: float) -> tuple[Connection, ProducerBatch] | None:
        """The batch that can go now, and over which connection; sees to what is missing otherwise."""
        if self._options.is_idempotent and not self._has_producer(queue):
            return None
        batch = queue.next_to_send(now, self._options.max_in_flight)
        if batch is None:
            if queue.paused_until <= now:
                del self.accumulator.ready[queue]
            return None
        link = self._cluster.leader(queue.topic, queue.partition)
        if link is None:
            self._find_leader(queue)
            return None
        connection = link.connection
        if connection is None:
            link.want()
            return None
        if not connection.is_writable or self._in_flight[connection] >= self._options.max_in_flight:
            return None
        return connection, batch

    def _find_leader(self, queue: PartitionQueue) -> None:
        error = self._cluster.topic_error(queue.topic)
        if error is None:
            self._cluster.failed(queue.topic, queue.partition, self._cluster.no_leader(queue.topic, queue.partition))
            self._cluster.refresh_soon([queue.topic])
            return
        self.accumulator.topics[queue.topic].is_known = False
        for batch, owner in list(self.accumulator.unsettled.items()):
            if owner.topic == queue.topic:
                self._give_up(owner, batch, error)

    def _produce(self, connection: Connection, sendings: list[Sending]) -> None:
        """Send as many of these batches as one request takes; the others stay ready."""
        taken: list[Sending] = []
        size_bytes = 0
        for queue, batch in sendings:
            if taken and size_bytes + batch.size_bytes > MAX_REQUEST_BYTES:
                break
            self.accumulator.take(queue, batch)
            self.accumulator.ready.pop(queue)
            self.accumulator.ready[queue] = None
            if self._mark_sent(queue, batch):
                taken.append((queue, batch))
                size_bytes += len(batch.data)
        if not taken:
            return
        parts = [ProducePartition(queue.topic, queue.partition, len(batch.data)) for queue, batch in taken]
        request = ProduceRequest(self._options.acks, self._timeout_ms, parts)
        payload = [batch.data for _, batch in taken]
        try:
            if self._options.acks != ACKS_NONE:
                connection.request(request, payload, lambda result: self._answered(connection, taken, result))
                self._in_flight[connection] += 1
                return
            connection.request(request, payload, None)
        except WarmlogError as error:
            self._settle_all(taken, error)
            return
        for queue, batch in taken:
            self._delivered(queue, batch, -1, -1)

    def _mark_sent(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        try:
            queue.mark_sent(batch, self._options.codec)
        except (TypeError, ValueError, WarmlogError) as error:
            batch.fail(error if isinstance(error, WarmlogError) else ClientError(f"cannot encode: {error}"))
            self._settle(batch)
            return False
        return True

    # --- answers ----------------------------------------------------------------------------------------------------

    def _answered(self, connection: Connection, sent: list[Sending], result: Answer | WarmlogError) -> None:
        self._in_flight[connection] -= 1
        if not self._in_flight[connection]:
            del self._in_flight[connection]
        self._settle_all(sent, result)

    def _settle_all(self, sent: list[Sending], result: Answer | WarmlogError) -> None:
        for (queue, batch), outcome in zip(sent, _outcomes(result, len(sent)), strict=True):
            if batch.is_done:
                continue
            self.accumulator.ready[queue] = None
            if isinstance(outcome, WarmlogError):
                self._failed(queue, batch, outcome)
            else:
                self._delivered(queue, batch, outcome.base_offset, outcome.log_append_time_ms)
        self._changed.set()

    def _delivered(self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        queue.mark_delivered(batch)
        self._cluster.worked(queue.topic, queue.partition)
        batch.complete(base_offset, append_time_ms)
        self._settle(batch)

    def _failed(self, queue: PartitionQueue, batch: ProducerBatch, error: WarmlogError) -> None:
        judged = queue.judge(batch, error)
        if judged is Verdict.DELIVERED:
            batch.complete(-1, -1)
            self._settle(batch)
        elif judged is Verdict.FAILED:
            batch.fail(error)
            self._settle(batch)
        elif not isinstance(error, OutOfOrderSequence):
            self._cluster.failed(batch.topic, batch.partition, error)
            self._cluster.refresh_soon([queue.topic])
            if not isinstance(error, BrokerUnavailable):
                pause_ms = backoff_ms(batch.attempts, self._cluster.options, random.random())  # noqa: S311
                queue.paused_until = self._loop.time() + pause_ms / 1000

    def _expire(self, now: float) -> None:
        for batch in self.accumulator.expired(now):
            queue = self.accumulator.unsettled[batch]
            reason = f"; last error: {batch.last_error}" if batch.last_error is not None else ""
            link = self._cluster.leader(queue.topic, queue.partition)
            if not reason and link is None:
                reason = f"; {self._cluster.no_leader(queue.topic, queue.partition)}"
            elif not reason and link is not None and link.connection is None and link.last_error is not None:
                reason = f"; {link.last_error}"
            timeout_ms = self._options.delivery_timeout_ms
            error = DeliveryTimeout(
                f"{batch.count or len(batch.values)} records for {batch.topic}-{batch.partition} were not acknowledged "
                f"within delivery_timeout_ms={timeout_ms}{reason}"
            )
            self._give_up(queue, batch, error)

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: WarmlogError) -> None:
        self.accumulator.take(queue, batch)
        queue.give_up(batch)
        batch.fail(error)
        self._settle(batch)
        self.accumulator.ready[queue] = None

    def _settle(self, batch: ProducerBatch) -> None:
        self.accumulator.settle(batch)
        self._on_settled()

    # --- the producer id --------------------------------------------------------------------------------------------

    def _has_producer(self, queue: PartitionQueue) -> bool:
        """Whether the partition has an id to send under; gets it one if it may take it now."""
        if queue.producer != NO_PRODUCER and not queue.needs_reset:
            return True
        if queue.needs_reset and not queue.awaits_producer:
            return True
        if self._producer != queue.producer:
            queue.adopt(self._producer)
            return True
        if self._initialising is None:
            self._initialising = asyncio.create_task(self._initialise(), name="warmlog producer id")
        return False

    async def _initialise(self) -> None:
        """Get the first producer id, or the next epoch of it."""
        try:
            request = InitProducerIdRequest(None, 60_000, *self._producer)
            try:
                given = await self._cluster.call(request, InitProducerIdResponse)
            except ApiError:
                given = await self._cluster.call(InitProducerIdRequest(), InitProducerIdResponse)
            self._producer = (given.producer_id, given.producer_epoch)
        except WarmlogError as error:
            _log.warning("no producer id: %s; trying again", error)
            await asyncio.sleep(self._cluster.options.retry_backoff_max_ms / 1000)
        finally:
            self._initialising = None
            self._changed.set()


def _outcomes(result: Answer | WarmlogError, count: int) -> list[ProducedPartition | WarmlogError]:
    """What became of each of the `count` batches of a request."""
    if isinstance(result, WarmlogError):
        return [result] * count
    response = result.result
    if isinstance(response, ApiError):
        return [response] * count
    assert isinstance(response, ProduceResponse)
    if len(response.partitions) != count:
        return [RemoteProtocolError(f"{count} batches sent, {len(response.partitions)} answered")] * count
    return [
        error_from_code(produced.error_code, f"{produced.topic}-{produced.partition}: {produced.error_message}")
        if produced.error_code
        else produced
        for produced in response.partitions
    ]
