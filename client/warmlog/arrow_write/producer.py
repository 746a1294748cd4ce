"""Sends batches without an event loop: for worker processes that write some data and end, as Spark's do.

The producer is idempotent, with acks=all: what `flush` has seen acknowledged is on disk, once, in the order of sending
within a partition, however often it had to be sent. `PartitionQueue` and `produce_request` decide, as for the asyncio
producer. Only the waiting differs: `send` returns at once while little is in flight, and else waits for the oldest
response.

If a broker is unreachable or refuses for now, everything (connection, leader, producer id, batch) is retried until the
delivery timeout.

A batch that the broker refuses for good ends the producer: the call that learns of it raises the error, and batches
that were sent after it may or may not be in the log. Every further call fails. A task that runs again writes its
records again.

A DeliveryTimeout gives nothing up: it is not known which batches the broker has, and they keep their sequences. `flush`
may be called again and continues, with the full timeout; each batch is then in the log once and in order. If the
producer is closed instead, a batch that was in flight is in the log once or not at all.

The same holds for a call that is interrupted, for example by Ctrl-C, at any point. The producer then relies only on the
batches that are not acknowledged, their order and their bytes: all that may have been sent is sent again.

A member of a job (see `job`) writes with the producer id and epoch that it was given, and can take no other: what
would need a new epoch ends it.
"""

import random
import time
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from warmlog.arrow_write.encoding import encode_arrow
from warmlog.arrow_write.rows import RowSpan
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    DeliveryTimeout,
    UnknownTopicOrPartition,
    WarmlogError,
    may_pass,
)
from warmlog.producer.options import MAX_IN_FLIGHT_WITH_SEQUENCES
from warmlog.producer.partition_queue import PartitionQueue, Verdict
from warmlog.producer.produce_request import fitting, outcomes, produce_request
from warmlog.producer.producer_batch import NO_PRODUCER, ProducerBatch
from warmlog.sockets.cluster import BlockingCluster
from warmlog.sockets.connection import BlockingConnection, Closing, WholeCall
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import ACKS_ALL, InitProducerIdRequest, InitProducerIdResponse
from warmlog_protocol.wire.connection import ReceivedResponse
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition
from warmlog_transport.retries import backoff_ms

MAX_UNACKNOWLEDGED_BYTES = 16 * 1024 * 1024
"""`send` waits while more than this is in flight or waits to be sent."""
MAX_REQUESTS_IN_FLIGHT = 8
DELIVERY_TIMEOUT_MS = 120_000


class ArrowBatch(ProducerBatch):
    """A batch of Arrow columns, encoded when it is first sent; most of its pieces are memory of the columns."""

    __slots__ = ("_now_ms", "_spans")

    def __init__(self, topic: str, partition: int, spans: Sequence[RowSpan], size_bytes: int, now_ms: int) -> None:
        super().__init__(topic, partition, 0.0, _never_awaited)
        self._spans = spans
        self._now_ms = now_ms
        self.count = sum(span.count for span in spans)
        self.size_bytes = size_bytes

    def encode(
        self, codec: Codec, producer: tuple[int, int], base_sequence: int, *, is_transactional: bool = False
    ) -> None:
        """Encode the records for the wire, with this sequence."""
        self.base_sequence = base_sequence
        pieces = encode_arrow(
            self._spans,
            now_ms=self._now_ms,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=base_sequence,
            is_transactional=is_transactional,
        )
        self.wire_bytes = sum(map(len, pieces))
        self.pieces = pieces
        self._spans = ()


def _never_awaited(batch: ProducerBatch) -> NoReturn:
    raise AssertionError(f"a batch for {batch.topic}-{batch.partition} is awaited: there is no event loop")


Sending = tuple[PartitionQueue, ProducerBatch]


class PendingResponse(NamedTuple):
    """A Produce request in flight."""

    connection: BlockingConnection
    correlation_id: int
    batches: list[Sending]


class Acknowledged(NamedTuple):
    """All that is acknowledged, and the last batch of it: one value, so that an interruption leaves it whole."""

    records: int = 0
    value_bytes: int = 0
    last: ProducerBatch | None = None

    def with_batch(self, batch: ProducerBatch) -> "Acknowledged":
        """This and `batch`, unless `batch` is the last one already."""
        if batch is self.last:
            return self
        return Acknowledged(self.records + batch.count, self.value_bytes + batch.size_bytes, batch)


class BlockingProducer(Closing):
    """Sends batches to any number of partitions, each through its leader. It is not thread-safe."""

    def __init__(
        self,
        cluster: BlockingCluster,
        *,
        codec: Codec = Codec.NONE,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        options: ConnectionOptions | None = None,
        transactional_id: str | None = None,
        producer: tuple[int, int] = NO_PRODUCER,
    ) -> None:
        """`delivery_timeout_ms` bounds the time without any acknowledgement. `send` connects.

        With `transactional_id` everything is part of its transaction, written as `producer`, which has written nothing.
        """
        self.is_cut_short = False
        self.producer = producer
        """Producer id and epoch, which the broker assigns before the first batch is sent, unless they are given."""
        self._transactional_id = transactional_id
        self._cluster = cluster
        self._codec = codec
        self._timeout_s = delivery_timeout_ms / 1000
        self._options = options or ConnectionOptions()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._busy: dict[PartitionQueue, None] = {}
        self._in_flight: list[PendingResponse] = []
        self._unacknowledged: dict[ProducerBatch, PartitionQueue] = {}
        self._acknowledged = Acknowledged()
        self._waiting_bytes = 0
        self._failing_since: float | None = None
        self._attempts = 0
        self._fatal: WarmlogError | None = None
        self._is_closed = False

    @property
    def records(self) -> int:
        """How many records are acknowledged."""
        return self._acknowledged.records

    @property
    def value_bytes(self) -> int:
        """The approximate size of the acknowledged records."""
        return self._acknowledged.value_bytes

    def send(self, batch: ArrowBatch) -> None:
        """Queue one batch and send what is ready. Waits while too much is in flight; raises the first error.

        After a DeliveryTimeout the batch is queued all the same: `flush` sends it. After an interruption it may be
        queued or not; sending it again is safe and makes sure.
        """
        with WholeCall(self):
            self._refuse_after_end()
            self._line_up(batch)
            self._send_ready()
            while self._waiting_bytes > MAX_UNACKNOWLEDGED_BYTES:
                self._advance()

    def flush(self) -> None:
        """Wait until everything is acknowledged; raises the first error."""
        with WholeCall(self):
            self._refuse_after_end()
            while self._busy:
                self._advance()

    def close(self) -> None:
        """Drop what is not acknowledged. Nothing more can be sent."""
        self._is_closed = True
        self._unacknowledged.clear()
        self._busy.clear()
        self._in_flight.clear()

    def recover(self) -> None:
        """Have all that is not acknowledged sent again, over new connections."""
        self._cluster.close()
        self._in_flight.clear()
        for batch in [batch for batch in self._unacknowledged if batch.is_done]:
            self._count(batch)
        by_queue: dict[PartitionQueue, list[ProducerBatch]] = {queue: [] for queue in self._queues.values()}
        for batch, queue in self._unacknowledged.items():
            by_queue[queue].append(batch)
        for queue, batches in by_queue.items():
            queue.restore(batches)
        self._busy = {queue: None for queue, batches in by_queue.items() if batches}
        self._waiting_bytes = sum(batch.size_bytes for batch in self._unacknowledged)
        self._failing_since, self._attempts = None, 0

    def _refuse_after_end(self) -> None:
        if self._is_closed:
            raise ClientClosed("the producer is closed")
        if self._fatal is not None:
            raise ClientError(f"this producer has ended, as a batch was refused for good: {self._fatal}")

    # --- sending ----------------------------------------------------------------------------------------------------

    def _line_up(self, batch: ProducerBatch) -> None:
        """Put `batch` at the end of its queue, unless an interrupted `send` has done so."""
        if batch.is_done or batch in self._unacknowledged:
            return
        tp = (batch.topic, batch.partition)
        if tp not in self._queues:
            is_transactional = self._transactional_id is not None
            self._queues[tp] = PartitionQueue(*tp, is_idempotent=True, is_transactional=is_transactional)
        queue = self._queues[tp]
        self._unacknowledged[batch] = queue
        queue.closed.append(batch)
        self._busy[queue] = None
        self._waiting_bytes += batch.size_bytes

    def _advance(self) -> None:
        """Send what is ready, and wait for the oldest response."""
        self._send_ready()
        if self._in_flight:
            self._wait_for(self._in_flight.pop(0))

    def _send_ready(self) -> None:
        """Send requests until nothing more is ready, each with at most one batch of a partition."""
        while self._busy and len(self._in_flight) < MAX_REQUESTS_IN_FLIGHT:
            try:
                by_connection = self._ready_by_connection()
            except (BrokerUnavailable, ApiError) as error:
                if not may_pass(error):
                    raise
                self._retry_later(error)
                return
            if not all(self._produce(connection, batches) for connection, batches in by_connection.items()):
                return
            if not by_connection:
                return

    def _ready_by_connection(self) -> dict[BlockingConnection, list[Sending]]:
        found: dict[BlockingConnection, list[Sending]] = {}
        for queue in list(self._busy):
            if queue.awaits_producer:
                self._give_producer(queue)
            batch = queue.next_to_send(time.monotonic(), MAX_IN_FLIGHT_WITH_SEQUENCES)
            if batch is not None:
                found.setdefault(self._cluster.leader(queue.topic, queue.partition), []).append((queue, batch))
        return found

    def _give_producer(self, queue: PartitionQueue) -> None:
        """Give `queue` the producer id, or if it has used that the next epoch."""
        if self.producer == queue.producer:
            if self._transactional_id is not None:
                raise ClientError(
                    f"{queue.topic}-{queue.partition}: a call was interrupted, and a member of a job cannot continue "
                    "under another epoch: join the job again"
                )
            request = InitProducerIdRequest(None, 60_000, *self.producer)
            given = self._cluster.call(request, InitProducerIdResponse)
            self.producer = (given.producer_id, given.producer_epoch)
        queue.adopt(self.producer)

    def _produce(self, connection: BlockingConnection, ready: list[Sending]) -> bool:
        """Send one request with as many of these batches as it takes. Return whether it could be sent."""
        taken: list[Sending] = []
        for queue, batch in fitting(ready):
            try:
                queue.mark_sent(batch, self._codec)
            except WarmlogError as error:
                raise self._end(batch, error) from error
            self._busy[queue] = self._busy.pop(queue)  # last, so that the next request serves the others
            taken.append((queue, batch))
        request, payload = produce_request(taken, ACKS_ALL, self._options.request_timeout_ms, self._transactional_id)
        try:
            correlation_id = connection.request(request, payload)
        except (BrokerUnavailable, ClientClosed) as error:
            self._handle(taken, BrokerUnavailable(str(error)))
            self._retry_later(error)
            return False
        self._in_flight.append(PendingResponse(connection, correlation_id, taken))
        return True

    # --- responses --------------------------------------------------------------------------------------------------

    def _wait_for(self, sent: PendingResponse) -> None:
        result: ReceivedResponse | WarmlogError
        try:
            result = sent.connection.wait(sent.correlation_id)
        except (BrokerUnavailable, ApiError) as error:
            result = error
        except ClientClosed as error:
            result = BrokerUnavailable(str(error))
        failure = self._handle(sent.batches, result)
        if failure is not None:
            self._retry_later(failure)

    def _handle(self, batches: list[Sending], result: ReceivedResponse | WarmlogError) -> WarmlogError | None:
        """Count the batches that the broker has. Return the first error to retry; raise one that ends the producer."""
        failure: WarmlogError | None = None
        for (queue, batch), outcome in zip(batches, outcomes(batches, result), strict=True):
            judged = queue.judge(batch, outcome)
            if isinstance(outcome, WarmlogError):
                if judged is Verdict.FAILED or isinstance(outcome, UnknownTopicOrPartition):
                    raise self._end(batch, outcome) from outcome
                if judged is not Verdict.DELIVERED:
                    failure = failure or outcome
                    continue
            self._count(batch)
            self._failing_since, self._attempts = None, 0
            self._waiting_bytes -= batch.size_bytes
            if queue.is_empty:
                del self._busy[queue]
        return failure

    def _count(self, batch: ProducerBatch) -> None:
        """The broker has `batch`: count it once, also if this was interrupted and is repeated."""
        batch.complete(-1, -1)
        self._acknowledged = self._acknowledged.with_batch(batch)
        self._unacknowledged.pop(batch, None)

    def _end(self, batch: ProducerBatch, error: WarmlogError) -> WarmlogError:
        """End the producer with `error`, which is returned with its partition and number of records."""
        name = f"{batch.topic}-{batch.partition}"
        line = f"{batch.count} records for {name}: {str(error).removeprefix(f'{name}: ')}"
        self._fatal = type(error)(line) if isinstance(error, ApiError | ClientError) else ClientError(line)
        return self._fatal

    def _retry_later(self, error: WarmlogError) -> None:
        """Give up lost connections, forget the leaders, and pause unless a response is pending."""
        for sent in list(self._in_flight):
            if not sent.connection.is_open:
                self._in_flight.remove(sent)
                self._handle(sent.batches, BrokerUnavailable(str(error)))
        self._cluster.forget_leaders()
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        waited_s = now - self._failing_since
        self._attempts += 1
        pause_s = backoff_ms(self._attempts, self._options, random.random()) / 1000  # noqa: S311
        if waited_s + pause_s > self._timeout_s:
            self._failing_since, self._attempts = None, 0
            queue = next(iter(self._busy))
            remedy = "; is the broker running?" if isinstance(error, BrokerUnavailable) else ""
            raise DeliveryTimeout(
                f"{queue.topic}-{queue.partition}: nothing was acknowledged for {waited_s:.0f} s: {error}{remedy}"
            ) from error
        if not self._in_flight:
            time.sleep(pause_s)
