"""Produce: batches from the receive buffer into the log, and the answer at the time that `acks` asks for.

Appending happens here and now, in the order in which requests come; the payload is used up on return. With acks=all
the answer waits until every batch is below its partition's high watermark, also for a batch that was appended before
(then until the original is). With acks=1 it is given at once. With acks=0 there is none, and since nobody would hear of
an error, an error closes the connection, as in Kafka.
"""

from warmlog_broker.handlers.failures import own_failure
from warmlog_broker.services import Asker, Services
from warmlog_protocol.connection import Request
from warmlog_protocol.errors import ApiError, InvalidRequest, InvalidRequiredAcks, RequestTimedOut
from warmlog_protocol.messages import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)

NO_ERROR = 0


class PendingProduce:
    """A Produce request, from its first append to its answer."""

    __slots__ = ("_asker", "_correlation_id", "_timeout_ms", "_waiting", "deadline_s", "results")

    def __init__(self, asker: Asker, correlation_id: int, timeout_ms: int) -> None:
        self.results: list[ProducedPartition] = []
        self.deadline_s = 0.0
        self._asker = asker
        self._correlation_id = correlation_id
        self._timeout_ms = timeout_ms
        self._waiting: list[int] = []
        """The places of the results that hold only once a flush is over."""

    def wait(self) -> int:
        """The result that is added next must wait for `complete`, which is to be called with the returned place."""
        place = len(self.results)
        self._waiting.append(place)
        return place

    def begin(self, now_s: float) -> None:
        """All is appended: answers if nothing is to be waited for; otherwise the time runs."""
        if self._waiting:
            self.deadline_s = now_s + self._timeout_ms / 1000
            self._asker.expiring[self._correlation_id] = self
        else:
            self._asker.answer(self._correlation_id, ProduceResponse(self.results))

    def complete(self, index: int, error: ApiError | None) -> None:
        """The batch at `index` is durable, or will never be. Comes to nothing after the request has expired."""
        if index not in self._waiting:
            return
        if error is not None:
            self.results[index] = _failed(self.results[index], error)
        self._waiting.remove(index)
        if not self._waiting:
            self._end()

    def expire(self) -> None:
        """The time is over: what is not durable yet may still become so, but this answer cannot say it."""
        for index in self._waiting:
            error = RequestTimedOut(f"not on disk after {self._timeout_ms} ms; it may still get there")
            self.results[index] = _failed(self.results[index], error)
        self._waiting.clear()
        self._end()

    def _end(self) -> None:
        self._asker.expiring.pop(self._correlation_id, None)
        self._asker.answer(self._correlation_id, ProduceResponse(self.results))


def produce(services: Services, asker: Asker, request: Request) -> None:
    """Appends every batch of the request, and sees to the answer."""
    message = request.message
    assert isinstance(message, ProduceRequest)
    payload = request.payload
    _check(message, len(payload))
    pending = PendingProduce(asker, request.correlation_id, message.timeout_ms)
    results = pending.results
    position = 0
    now_ms = services.now_ms()
    for wanted in message.partitions:
        end = position + wanted.size_bytes
        try:
            results.append(_append(services, wanted, payload[position:end], message.acks, now_ms, pending))
        except ApiError as error:
            results.append(_failed(wanted, error))
        except Exception:
            results.append(_failed(wanted, own_failure(f"Produce to {wanted.topic!r} {wanted.partition}")))
        position = end
    if message.acks != ACKS_NONE:
        pending.begin(services.loop.time())
    else:
        _end_without_answer(asker, results)


def _check(message: ProduceRequest, payload_bytes: int) -> None:
    """InvalidRequest when the request does not make sense as a whole: then nothing is appended."""
    partitions = message.partitions
    if message.transactional_id is not None:
        raise InvalidRequest("this broker offers no transactions: transactional_id must not be set")
    if len(partitions) == 1:
        promised_bytes = partitions[0].size_bytes
    else:
        promised_bytes = sum(wanted.size_bytes for wanted in partitions)
        if len({(wanted.topic, wanted.partition) for wanted in partitions}) != len(partitions):
            raise InvalidRequest("a partition is in the request more than once; one batch each is allowed")
        if any(wanted.size_bytes < 0 for wanted in partitions):
            raise InvalidRequest("a batch of a negative size")
    if promised_bytes != payload_bytes:
        raise InvalidRequest(f"the batches have {promised_bytes} bytes by the header, {payload_bytes} came")


def _append(
    services: Services, wanted: ProducePartition, batch: memoryview, acks: int, now_ms: int, pending: PendingProduce
) -> ProducedPartition:
    """Appends one batch, and with acks=all lets `pending` wait for its flush."""
    if not ACKS_ALL <= acks <= ACKS_LEADER:
        raise InvalidRequiredAcks(f"acks {acks}, it must be -1 (all), 1 or 0")
    topic, index = wanted.topic, wanted.partition
    partition = services.topics.partition(topic, index)
    first_offset, last_offset, append_time_ms, log_start_offset, _ = partition.append(
        batch, acks, now_ms, services.producer_ids.next_id
    )
    must_wait = acks == ACKS_ALL and not partition.is_durable_below(last_offset + 1)
    if must_wait:
        partition.wait_for_flush(last_offset + 1, pending, pending.wait())
    services.directories.appended(partition, is_waited_for=must_wait)
    if partition.has_eager_readers:
        partition.wake_after_append()
    return ProducedPartition(topic, index, NO_ERROR, "", first_offset, append_time_ms, log_start_offset)


def _failed(wanted: ProducePartition | ProducedPartition, error: ApiError) -> ProducedPartition:
    return ProducedPartition(wanted.topic, wanted.partition, error.code, str(error))


def _end_without_answer(asker: Asker, results: list[ProducedPartition]) -> None:
    asker.end_without_answer()
    failed = next((result for result in results if result.error_code != NO_ERROR), None)
    if failed is not None:
        asker.close(f"acks=0 and {failed.topic!r} {failed.partition} refused the batch: {failed.error_message!r}")
