"""Sending batches without an event loop: for worker processes that write one stretch of data and end, as Spark's do.

Idempotent, acks=all: what `flush` has seen acknowledged is on disk, once, in the order of sending within a partition,
however often it had to be sent. The order of each partition's batches is decided by `PartitionQueue`, as for the
asyncio producer; this one only waits differently: `send` returns at once while little is under way, and for the oldest
answer otherwise.

A broker that is away, or refuses for now, is asked again until the delivery timeout, be it for a connection, a leader,
a producer id or a batch.

A batch that the broker refuses for good ends it all: the error is raised by the call that learns of it, and what was
sent after that batch may or may not be in the log. Whoever runs a task again writes its records again. Every further
call fails then.

A DeliveryTimeout gives nothing up: which batches the broker has is not known, and they keep their sequences. `flush`
may be called again, and goes on where it was, with the whole time before it; each batch is then in the log once and in
order. Closed instead, a batch that was on its way is there once or not at all.

The same goes for a call that is interrupted, by Ctrl-C say, at whatever point. What the producer relies on then are the
batches that are not acknowledged, their order and their bytes: all that may have been sent is sent again.
"""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, NoReturn, Self

from warmlog.arrow_write.encoding import encode_arrow
from warmlog.arrow_write.rows import RowSpan
from warmlog.blocking.cluster import BlockingCluster
from warmlog.blocking.connection import BlockingConnection, WholeCall
from warmlog.cluster.options import ConnectionOptions
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientClosed,
    ClientError,
    DeliveryTimeout,
    RemoteProtocolError,
    UnknownTopicOrPartition,
    WarmlogError,
    error_from_code,
    may_pass,
)
from warmlog.producer.options import MAX_IN_FLIGHT_WITH_SEQUENCES
from warmlog.producer.partition_queue import PartitionQueue, Verdict
from warmlog.producer.producer_batch import NO_PRODUCER, BatchIdentity, ProducerBatch, identity_of
from warmlog_protocol.batch import Piece, restamp_producer
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import (
    ACKS_ALL,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from warmlog_protocol.wire.connection import Answer

MAX_REQUEST_BYTES = 1024 * 1024
"""As Kafka's max.request.size; a request of one batch may be larger."""
MAX_UNACKNOWLEDGED_BYTES = 16 * 1024 * 1024
"""So much is under way or waits to be sent before `send` waits."""
MAX_REQUESTS_IN_FLIGHT = 8
DELIVERY_TIMEOUT_MS = 120_000


class ArrowBatch(ProducerBatch):
    """A batch of Arrow columns, made when it is first sent."""

    __slots__ = ("_now_ms", "_spans", "pieces")

    def __init__(self, topic: str, partition: int, spans: Sequence[RowSpan], size_bytes: int, now_ms: int) -> None:
        super().__init__(topic, partition, 0.0, _never_awaited)
        self._spans = spans
        self._now_ms = now_ms
        self.count = sum(span.count for span in spans)
        self.size_bytes = size_bytes
        self.pieces: list[Piece] = []
        """The bytes for the wire, to be sent one after another: most of them lie in the memory of the columns."""

    def encode(self, codec: Codec, producer: tuple[int, int], base_sequence: int) -> None:
        """Make the bytes for the wire, with this sequence."""
        self.base_sequence = base_sequence
        self.pieces = encode_arrow(
            self._spans,
            now_ms=self._now_ms,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=base_sequence,
        )
        self._spans = ()

    def restamp(self, producer: tuple[int, int], base_sequence: int) -> None:
        """The same records under another producer id or sequence."""
        self.base_sequence = base_sequence
        self.is_rejected = False
        self.pieces = [restamp_producer(b"".join(self.pieces), *producer, base_sequence)]

    @property
    def identity(self) -> BatchIdentity | None:
        """Under which producer and sequence its bytes are; None before `encode`."""
        return identity_of(self.pieces[0] if self.pieces else b"")

    @property
    def wire_bytes(self) -> int:
        """How many bytes `pieces` have."""
        return sum(map(len, self.pieces))

    def complete(self, base_offset: int, log_append_time_ms: int) -> None:
        """The broker has them: their memory is let go."""
        super().complete(base_offset, log_append_time_ms)
        self.pieces, self._spans = [], ()


def _never_awaited(batch: ProducerBatch) -> NoReturn:
    raise AssertionError(f"a batch for {batch.topic}-{batch.partition} is awaited: there is no event loop")


Sending = tuple[PartitionQueue, ArrowBatch]


class Unanswered(NamedTuple):
    """One Produce request on its way."""

    connection: BlockingConnection
    correlation_id: int
    batches: list[Sending]


class Acknowledged(NamedTuple):
    """All that is acknowledged, and the last batch of it. One value: it changes as a whole or not at all."""

    records: int = 0
    value_bytes: int = 0
    last: ArrowBatch | None = None

    def with_batch(self, batch: ArrowBatch) -> "Acknowledged":
        """This and `batch`, unless that is the last one already."""
        if batch is self.last:
            return self
        return Acknowledged(self.records + batch.count, self.value_bytes + batch.size_bytes, batch)


class BlockingProducer:
    """Sends batches to any number of partitions, each through its leader. Not for several threads at once."""

    def __init__(
        self,
        cluster: BlockingCluster,
        *,
        codec: Codec = Codec.NONE,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
        options: ConnectionOptions | None = None,
    ) -> None:
        """`delivery_timeout_ms` bounds the time in which everything fails. Nothing is connected before `send`."""
        self.is_cut_short = False
        self.producer = NO_PRODUCER
        """Producer id and epoch; the broker gives them before the first batch is sent."""
        self._cluster = cluster
        self._codec = codec
        self._timeout_s = delivery_timeout_ms / 1000
        self._options = options or ConnectionOptions()
        self._queues: dict[tuple[str, int], PartitionQueue] = {}
        self._busy: dict[PartitionQueue, None] = {}
        self._in_flight: list[Unanswered] = []
        self._unacknowledged: dict[ArrowBatch, PartitionQueue] = {}
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
        """About how many bytes they have."""
        return self._acknowledged.value_bytes

    def send(self, batch: ArrowBatch) -> None:
        """Line up one batch and send what can go. Waits while too much is under way; raises what went wrong.

        The batch is lined up all the same when that is a DeliveryTimeout: `flush` sends it. After an interruption it is
        lined up or not; to send it again is safe, and makes certain of it.
        """
        with WholeCall(self):
            self._refuse_after_end()
            self._line_up(batch)
            self._send_ready()
            while self._waiting_bytes > MAX_UNACKNOWLEDGED_BYTES:
                self._move()

    def flush(self) -> None:
        """Wait until everything is acknowledged; raises what went wrong."""
        with WholeCall(self):
            self._refuse_after_end()
            while self._busy:
                self._move()

    def close(self) -> None:
        """Let go of what is not acknowledged. Nothing can be sent any more."""
        self._is_closed = True
        self._unacknowledged.clear()
        self._busy.clear()
        self._in_flight.clear()

    def recover(self) -> None:
        """As Interruptible: have all that is not acknowledged sent again, over new connections."""
        self._cluster.close()
        self._in_flight.clear()
        for batch in [batch for batch in self._unacknowledged if batch.is_done]:
            self._settle(batch)
        by_queue: dict[PartitionQueue, list[ArrowBatch]] = {queue: [] for queue in self._queues.values()}
        for batch, queue in self._unacknowledged.items():
            by_queue[queue].append(batch)
        for queue, batches in by_queue.items():
            queue.restore(batches)
        self._busy = {queue: None for queue, batches in by_queue.items() if batches}
        self._waiting_bytes = sum(batch.size_bytes for batch in self._unacknowledged)
        self._failing_since, self._attempts = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_after_end(self) -> None:
        if self._is_closed:
            raise ClientClosed("the producer is closed")
        if self._fatal is not None:
            raise ClientError(f"this producer has ended, as a batch was refused for good: {self._fatal}")

    # --- sending ----------------------------------------------------------------------------------------------------

    def _line_up(self, batch: ArrowBatch) -> None:
        """Put `batch` at the end of its partition, unless a `send` of it that was cut short has done so."""
        if batch.is_done or batch in self._unacknowledged:
            return
        place = (batch.topic, batch.partition)
        if place not in self._queues:
            self._queues[place] = PartitionQueue(*place, is_idempotent=True)
        queue = self._queues[place]
        self._unacknowledged[batch] = queue
        queue.closed.append(batch)
        self._busy[queue] = None
        self._waiting_bytes += batch.size_bytes

    def _move(self) -> None:
        """Send what can go, and take the oldest answer."""
        self._send_ready()
        if self._in_flight:
            self._take_answer(self._in_flight.pop(0))

    def _send_ready(self) -> None:
        """Send requests until nothing more may go, at most one batch of a partition in each."""
        while self._busy and len(self._in_flight) < MAX_REQUESTS_IN_FLIGHT:
            try:
                by_connection = self._ready_by_connection()
            except (BrokerUnavailable, ApiError) as error:
                if not may_pass(error):
                    raise
                self._try_again_later(error)
                return
            if not all(self._produce(connection, batches) for connection, batches in by_connection.items()):
                return
            if not by_connection:
                return

    def _ready_by_connection(self) -> dict[BlockingConnection, list[Sending]]:
        found: dict[BlockingConnection, list[Sending]] = {}
        for queue in list(self._busy):
            if queue.producer == NO_PRODUCER or queue.awaits_producer:
                self._give_producer(queue)
            batch = queue.next_to_send(time.monotonic(), MAX_IN_FLIGHT_WITH_SEQUENCES)
            if isinstance(batch, ArrowBatch):
                found.setdefault(self._cluster.leader(queue.topic, queue.partition), []).append((queue, batch))
        return found

    def _give_producer(self, queue: PartitionQueue) -> None:
        """An id to send under: ours, or where that of the queue is used up the next epoch of it."""
        if self.producer == queue.producer:
            request = InitProducerIdRequest(None, 60_000, *self.producer)
            given = self._cluster.call(request, InitProducerIdResponse)
            self.producer = (given.producer_id, given.producer_epoch)
        queue.adopt(self.producer)

    def _produce(self, connection: BlockingConnection, ready: list[Sending]) -> bool:
        """One request of as many of these batches as it takes; the others stay. Whether it could be sent."""
        taken: list[Sending] = []
        size_bytes = 0
        for queue, batch in ready:
            if taken and size_bytes + batch.size_bytes > MAX_REQUEST_BYTES:
                break
            try:
                queue.mark_sent(batch, self._codec)
            except WarmlogError as error:
                self._fatal = _placed(error, batch)
                raise self._fatal from error
            self._busy[queue] = self._busy.pop(queue)  # to the end: the next request is for the others
            taken.append((queue, batch))
            size_bytes += batch.wire_bytes
        parts = [ProducePartition(queue.topic, queue.partition, batch.wire_bytes) for queue, batch in taken]
        request = ProduceRequest(ACKS_ALL, self._options.request_timeout_ms, parts)
        try:
            correlation_id = connection.request(request, [piece for _, batch in taken for piece in batch.pieces])
        except (BrokerUnavailable, ClientClosed) as error:
            self._judge(taken, [BrokerUnavailable(str(error))] * len(taken))
            self._try_again_later(error)
            return False
        self._in_flight.append(Unanswered(connection, correlation_id, taken))
        return True

    # --- answers ----------------------------------------------------------------------------------------------------

    def _take_answer(self, sent: Unanswered) -> None:
        try:
            outcomes = _outcomes(sent.connection.wait(sent.correlation_id), len(sent.batches))
        except (BrokerUnavailable, ApiError) as error:
            outcomes = [error] * len(sent.batches)
        except ClientClosed as error:
            outcomes = [BrokerUnavailable(str(error))] * len(sent.batches)
        self._judge(sent.batches, outcomes)
        errors = [outcome for outcome in outcomes if isinstance(outcome, WarmlogError)]
        if errors and self._busy:
            self._try_again_later(errors[0])

    def _judge(self, batches: list[Sending], outcomes: Sequence[ProducedPartition | WarmlogError]) -> None:
        """Settle the batches that the broker has; raises the error of the first that it never will have."""
        for (queue, batch), outcome in zip(batches, outcomes, strict=True):
            if not isinstance(outcome, WarmlogError):
                queue.mark_delivered(batch)
            else:
                judged = queue.judge(batch, outcome)
                if judged is Verdict.FAILED or isinstance(outcome, UnknownTopicOrPartition):
                    self._fatal = _placed(outcome, batch)
                    raise self._fatal from outcome
                if judged is not Verdict.DELIVERED:
                    continue
            self._settle(batch)
            self._failing_since, self._attempts = None, 0
            self._waiting_bytes -= batch.size_bytes
            if queue.is_empty:
                del self._busy[queue]

    def _settle(self, batch: ArrowBatch) -> None:
        """The broker has `batch`: count it once, also when this was cut short and is done again."""
        batch.complete(-1, -1)
        self._acknowledged = self._acknowledged.with_batch(batch)
        self._unacknowledged.pop(batch, None)

    def _try_again_later(self, error: WarmlogError) -> None:
        """Something is to be sent again: give up lost connections, look for the leaders anew, and wait a while."""
        for sent in list(self._in_flight):
            if not sent.connection.is_open:
                self._in_flight.remove(sent)
                self._judge(sent.batches, [BrokerUnavailable(str(error))] * len(sent.batches))
        self._cluster.forget_leaders()
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        waited_s = now - self._failing_since
        pause_ms = self._options.retry_backoff_ms << min(self._attempts, 16)
        pause_s = min(pause_ms, self._options.retry_backoff_max_ms) / 1000
        self._attempts += 1
        if waited_s + pause_s > self._timeout_s:
            self._failing_since, self._attempts = None, 0
            queue = next(iter(self._busy))
            remedy = "; is the broker running?" if isinstance(error, BrokerUnavailable) else ""
            raise DeliveryTimeout(
                f"{queue.topic}-{queue.partition}: nothing was acknowledged for {waited_s:.0f} s: {error}{remedy}"
            ) from error
        if not self._in_flight:
            time.sleep(pause_s)


def _placed(error: WarmlogError, batch: ProducerBatch) -> WarmlogError:
    """`error` with where the records were to go."""
    line = f"{batch.count} records for {batch.topic}-{batch.partition}: {error}"
    return type(error)(line) if isinstance(error, ApiError | ClientError) else ClientError(line)


def _outcomes(answer: Answer, count: int) -> list[ProducedPartition | WarmlogError]:
    """What became of each of the `count` batches of a request."""
    response = answer.result
    assert isinstance(response, ProduceResponse)
    if len(response.partitions) != count:
        raise RemoteProtocolError(f"{count} batches sent, {len(response.partitions)} answered")
    return [
        error_from_code(produced.error_code, produced.error_message) if produced.error_code else produced
        for produced in response.partitions
    ]
