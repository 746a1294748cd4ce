"""The task that sends a producer's batches and handles the responses.

It checks what is ready after every change: a batch closed, a linger over, a response, a connection. Every Produce
request carries at most one batch of each partition, all of the same leader. A broker has at most `max_in_flight`
requests without a response, so a partition has no more batches in flight than that; meanwhile open batches fill up.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from warmlog import errors
from warmlog.producer.accumulator import Accumulator
from warmlog.producer.options import ProducerOptions
from warmlog.producer.partition_queue import PartitionQueue, Verdict
from warmlog.producer.producer_batch import NO_PRODUCER, ProducerBatch
from warmlog_protocol import messages as m
from warmlog_protocol.batch import Piece
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import Connection, cancel
from warmlog_transport.retries import pause_after_s

_log = logging.getLogger("warmlog")

LAST_SEND_S = 3.0
"""How long a producer that was not closed may delay the end of its event loop."""

MAX_REQUEST_BYTES = 1024 * 1024
"""As Kafka's max.request.size; a request of one batch may be larger."""

Sending = tuple[PartitionQueue, ProducerBatch]


class Sender:
    """Run by a producer as a task. Setting `changed` makes it look at what is ready."""

    def __init__(
        self,
        options: ProducerOptions,
        cluster: Cluster,
        accumulator: Accumulator,
        changed: asyncio.Event,
        on_old_metadata: Callable[[], None],
    ) -> None:
        """`on_old_metadata` is called once in each `metadata_max_age_ms`, and if the broker finds a batch too large."""
        self._accumulator = accumulator
        self._options = options
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._in_flight: Counter[Connection] = Counter()
        self._changed = changed
        self.producer = NO_PRODUCER
        self.has_sent = False
        """Whether anything was sent; a transaction resets it."""
        self._initialising: asyncio.Task[None] | None = None
        self._on_old_metadata = on_old_metadata
        self.has_ended = False
        self.is_stopping = False

    async def run(self) -> None:
        """Send until cancelled. Batches that are left then fail: no caller hangs.

        Without `is_stopping` it is the end of the event loop that cancels: asyncio.run cancels all tasks and waits for
        them. Then what is buffered is sent first, for at most LAST_SEND_S.
        """
        error: errors.WarmlogError = errors.ClientClosed("the producer was stopped before this was acknowledged")
        try:
            while True:
                await self._turn()
        except asyncio.CancelledError:
            if not self.is_stopping:
                await self._send_rest()
            raise
        except Exception as bug:  # of ours
            _log.exception("the producer's sender failed")
            error = errors.ClientError(f"the producer's sender failed: {bug!r}")
        finally:
            self.has_ended = self._accumulator.drain_flag.is_set = True
            self.fail_all(error)
            await cancel(self._initialising)

    async def _turn(self) -> None:
        self._changed.clear()
        error = self._accumulator.first_error
        if self._options.transactional_id is not None and error is not None and self._accumulator.pending:
            self.fail_all(error)  # the transaction will be aborted
        if self._send_ready():
            await asyncio.sleep(0)
        else:
            await self._wait_for_change()

    async def _send_rest(self) -> None:
        """Send what is buffered, and log what is not acknowledged when the time is over."""
        deadline = self._loop.time() + LAST_SEND_S
        timer = self._loop.call_at(deadline, self._changed.set)
        try:
            while self._accumulator.pending and self._loop.time() < deadline:
                self._accumulator.learn_unknown()
                self._accumulator.mark_all_due()
                await self._turn()
        finally:
            timer.cancel()
            if lost := self._accumulator.describe_pending():
                _log.warning("the event loop ended before the producer was closed: %s", lost)

    def fail_all(self, error: errors.WarmlogError) -> None:
        """Give up every batch, and every record that waits for its topic."""
        for topic in self._accumulator.topics.values():
            self._accumulator.refuse_waiting(topic, error)
        for batch, queue in list(self._accumulator.incomplete.items()):
            self._give_up(queue, batch, error)

    # --- sending ----------------------------------------------------------------------------------------------------

    async def _wait_for_change(self) -> None:
        now = self._loop.time()
        pauses = [queue.paused_until for queue in self._accumulator.ready if queue.paused_until > now]
        wake_at = min([self._accumulator.next_look_at, *pauses])
        timer = None if wake_at == math.inf else self._loop.call_at(wake_at, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    def _send_ready(self) -> bool:
        """Send one request to each leader that can take one. Return whether there may be more to send."""
        now = self._loop.time()
        for batch in self._accumulator.look(now):
            self._expire(batch)
        by_connection: dict[Connection, list[Sending]] = {}
        for queue in list(self._accumulator.ready):
            sending = self._next_of(queue, now)
            if sending is not None:
                by_connection.setdefault(sending[0], []).append((queue, sending[1]))
        for connection, ready in by_connection.items():
            self._produce(connection, ready)
        return bool(by_connection)

    def _next_of(self, queue: PartitionQueue, now: float) -> tuple[Connection, ProducerBatch] | None:
        """The batch to send now and its connection; None if something is missing, which is then requested."""
        if queue.awaits_producer and not self._give_producer(queue):
            return None
        batch = queue.next_to_send(now, self._options.max_in_flight)
        if batch is None:
            if queue.paused_until <= now:
                del self._accumulator.ready[queue]
            return None
        link = self._cluster.leader(queue.topic, queue.partition)
        if link is None:
            self._find_leader(queue)
            return None
        connection = link.connection
        if connection is None:
            self._cluster.want_leader(link, queue.topic)
            return None
        if not connection.is_writable or self._in_flight[connection] >= self._options.max_in_flight:
            return None
        return connection, batch

    def _find_leader(self, queue: PartitionQueue) -> None:
        """Look for the leader again, or give up if the topic was deleted, or recreated without this partition."""
        topic_error = self._cluster.topic_error(queue.topic)
        error = topic_error or self._cluster.no_leader(queue.topic, queue.partition)
        if topic_error is None and not isinstance(error, errors.UnknownTopicOrPartition):
            self._cluster.failed(queue.topic, queue.partition, error)
            self._cluster.refresh_soon([queue.topic])
            return
        self._accumulator.topics[queue.topic].is_known = False
        for batch, owner in list(self._accumulator.incomplete.items()):
            if owner is queue or (topic_error is not None and owner.topic == queue.topic):
                self._give_up(owner, batch, error)

    def _produce(self, connection: Connection, ready: list[Sending]) -> None:
        """Send as many of these batches as one request takes; the others stay ready."""
        taken: list[Sending] = []
        for queue, batch in fitting(ready):
            if batch is queue.open:
                self._accumulator.close_batch(queue, batch)
            self._accumulator.ready.pop(queue)
            self._accumulator.ready[queue] = None  # last, so that the next request serves the others
            try:
                queue.mark_sent(batch, self._options.codec)
            except (TypeError, ValueError, errors.WarmlogError) as error:
                batch.fail(
                    error if isinstance(error, errors.WarmlogError) else errors.ClientError(f"cannot encode: {error}")
                )
                self._accumulator.release(batch)
            else:
                taken.append((queue, batch))
        if not taken:
            return
        acks = self._options.acks
        timeout_ms, transactional_id = self._cluster.options.request_timeout_ms, self._options.transactional_id
        request, payload = produce_request(taken, acks, timeout_ms, transactional_id)
        self.has_sent = True
        on_response = partial(self._on_response, connection, taken)
        self._in_flight[connection] += 1
        try:
            connection.request(request, payload, None if acks == m.ACKS_NONE else on_response)
        except errors.WarmlogError as error:
            on_response(error)
            return
        if acks == m.ACKS_NONE:
            on_response(None)

    # --- responses --------------------------------------------------------------------------------------------------

    def _on_response(
        self, connection: Connection, sent: list[Sending], result: ReceivedResponse | errors.WarmlogError | None
    ) -> None:
        self._in_flight[connection] -= 1
        if not self._in_flight[connection]:
            del self._in_flight[connection]
        for (queue, batch), outcome in zip(sent, outcomes(sent, result), strict=True):
            if batch.is_done:
                continue
            self._accumulator.ready[queue] = None
            judged = queue.judge(batch, outcome)
            if not isinstance(outcome, errors.WarmlogError):
                self._cluster.worked(queue.topic, queue.partition)
                batch.complete(outcome.base_offset, outcome.log_append_time_ms)
            elif judged is Verdict.DELIVERED:
                batch.complete(-1, -1)
            elif judged is Verdict.FAILED:
                batch.fail(outcome)
                if isinstance(outcome, errors.MessageTooLarge):
                    self._on_old_metadata()  # the limit is smaller now
            else:
                if not isinstance(outcome, errors.OutOfOrderSequence):  # that only waits for the batches before it
                    self._cluster.failed(batch.topic, batch.partition, outcome)
                    self._cluster.refresh_soon([queue.topic])
                    if not isinstance(outcome, errors.BrokerUnavailable):
                        wait_s = pause_after_s(outcome, batch.attempts, self._cluster.options)
                        queue.paused_until = self._loop.time() + wait_s
                continue
            self._accumulator.release(batch)
        if self._cluster.is_refresh_due():
            self._on_old_metadata()
        self._changed.set()

    def _expire(self, batch: ProducerBatch) -> None:
        """Give up a batch whose delivery timeout is over, with the last known reason."""
        queue = self._accumulator.incomplete[batch]
        reason: errors.WarmlogError | str | None = None
        link = self._cluster.leader(queue.topic, queue.partition)
        if batch.last_error is not None:
            reason = f"last error: {batch.last_error}"
        elif link is None:
            reason = self._cluster.no_leader(queue.topic, queue.partition)
        elif link.connection is None:
            reason = link.last_error
        error = errors.DeliveryTimeout(
            f"{batch.count or len(batch.values)} records for {batch.topic}-{batch.partition} were not acknowledged "
            f"within delivery_timeout_ms={self._options.delivery_timeout_ms}"
            + (f"; {reason}" if reason is not None else "")
        )
        self._give_up(queue, batch, error)

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: errors.WarmlogError) -> None:
        if batch is queue.open:
            self._accumulator.close_batch(queue, batch)
        queue.give_up(batch)
        batch.fail(error)
        self._accumulator.release(batch)
        self._accumulator.ready[queue] = None

    # --- the producer id --------------------------------------------------------------------------------------------

    def _give_producer(self, queue: PartitionQueue) -> bool:
        """Give `queue` a producer id or epoch that it has not used; False if one must be requested first."""
        if self.producer != queue.producer:
            queue.adopt(self.producer)
            return True
        if self._options.transactional_id is not None:
            return False
        if self._initialising is None or self._initialising.done():  # cancelled before it began
            self._initialising = asyncio.create_task(self._initialise(), name="warmlog producer id")
        return False

    async def _initialise(self) -> None:
        """Request the first producer id, or its next epoch."""
        try:
            request = m.InitProducerIdRequest(None, 60_000, *self.producer)
            try:
                given = await self._cluster.call(request, m.InitProducerIdResponse)
            except errors.AuthorizationFailed:
                raise
            except errors.ApiError:
                given = await self._cluster.call(m.InitProducerIdRequest(), m.InitProducerIdResponse)
            self.producer = (given.producer_id, given.producer_epoch)
        except errors.AuthorizationFailed as error:
            for batch, queue in list(self._accumulator.incomplete.items()):
                if queue.awaits_producer:
                    self._give_up(queue, batch, error)
                    self._accumulator.ready.pop(queue, None)
        except errors.WarmlogError as error:
            _log.warning("no producer id: %s; trying again", error)
            await asyncio.sleep(self._cluster.options.retry_backoff_max_ms / 1000)
        finally:
            self._initialising = None
            self._changed.set()


def fitting(ready: Iterable[Sending]) -> Iterator[Sending]:
    """Yield the first batches of `ready` that fit into one request. The caller encodes each before it takes the next.

    A batch that could not be encoded takes no space.
    """
    size_bytes = 0
    for queue, batch in ready:
        if size_bytes and size_bytes + batch.size_bytes > MAX_REQUEST_BYTES:
            return
        yield queue, batch
        size_bytes += batch.wire_bytes


def produce_request(
    batches: Sequence[Sending], acks: int, timeout_ms: int, transactional_id: str | None = None
) -> tuple[m.ProduceRequest, list[Piece]]:
    """A request of these encoded batches, and its payload."""
    parts: list[m.ProducePartition] = []
    payload: list[Piece] = []
    for queue, batch in batches:
        parts.append(m.ProducePartition(queue.topic, queue.partition, batch.wire_bytes))
        payload += batch.pieces
    return m.ProduceRequest(acks, timeout_ms, parts, transactional_id), payload


def outcomes(
    batches: Sequence[Sending], result: ReceivedResponse | errors.WarmlogError | None
) -> list[m.ProducedPartition | errors.WarmlogError]:
    """The outcome of each batch of a request. `result` is None for acks=0: sent, and nothing more is known."""
    if result is None:
        return [m.ProducedPartition(queue.topic, queue.partition, 0) for queue, _ in batches]
    response = result if isinstance(result, errors.WarmlogError) else result.result
    if isinstance(response, errors.ApiError | errors.WarmlogError):
        return [response] * len(batches)
    assert isinstance(response, m.ProduceResponse)
    if len(response.partitions) != len(batches):
        found = len(response.partitions)
        return [errors.RemoteProtocolError(f"{len(batches)} batches sent, the response has {found}")] * len(batches)
    return [
        errors.error_from_code(produced.error_code, f"{produced.topic}-{produced.partition}: {produced.error_message}")
        if produced.error_code
        else produced
        for produced in response.partitions
    ]
