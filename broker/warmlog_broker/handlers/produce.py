"""Produce: batches from the receive buffer into the log, and the answer at the time that `acks` asks for.

Appending happens here and now, in the order in which requests come; the payload is used up on return. With acks=all
the answer waits until every batch is below its partition's high watermark, also for a batch that was appended before
(then until the original is). With acks=1 it is given at once. With acks=0 there is none, and since nobody would hear of
an error, an error closes the connection, as in Kafka.
"""

import asyncio

from warmlog_broker.handlers.failures import own_failure
from warmlog_broker.partition import Partition
from warmlog_broker.services import Asker, Services
from warmlog_protocol.connection import Request
from warmlog_protocol.errors import (
    ApiError,
    ErrorCode,
    InvalidRequest,
    InvalidRequiredAcks,
    RequestTimedOut,
)
from warmlog_protocol.messages import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)


class PendingProduce:
    """A Produce request with acks=all, from its appends to its answer."""

    __slots__ = ("_asker", "_correlation_id", "_results", "_timeout_ms", "_unfinished", "deadline_s")

    def __init__(self, asker: Asker, correlation_id: int, results: list[ProducedPartition], timeout_ms: int) -> None:
        self.deadline_s = 0.0
        self._asker = asker
        self._correlation_id = correlation_id
        self._results = results
        self._timeout_ms = timeout_ms
        self._unfinished: set[int] = set()

    def wait_for(self, index: int, partition: Partition, end_offset: int) -> None:
        """The result at `index` holds once `partition`'s high watermark is at `end_offset`."""
        self._unfinished.add(index)
        partition.wait_for_flush(end_offset, self, index)

    def begin(self, now_s: float) -> None:
        """Answers if nothing is to be waited for; otherwise the time runs."""
        if not self._unfinished:
            self._asker.answer(self._correlation_id, ProduceResponse(self._results))
            return
        self.deadline_s = now_s + self._timeout_ms / 1000
        self._asker.expiring[self._correlation_id] = self

    def complete(self, index: int, error: ApiError | None) -> None:
        """The batch at `index` is durable, or will never be. Comes to nothing after the request has expired."""
        if index not in self._unfinished:
            return
        if error is not None:
            self._results[index] = _failed(self._results[index], error)
        self._unfinished.remove(index)
        if not self._unfinished:
            self._end()

    def expire(self) -> None:
        """The time is over: what is not durable yet may still become so, but this answer cannot say it."""
        for index in self._unfinished:
            error = RequestTimedOut(f"not on disk after {self._timeout_ms} ms; it may still get there")
            self._results[index] = _failed(self._results[index], error)
        self._unfinished.clear()
        self._end()

    def _end(self) -> None:
        self._asker.expiring.pop(self._correlation_id, None)
        self._asker.answer(self._correlation_id, ProduceResponse(self._results))


def produce(services: Services, asker: Asker, request: Request) -> None:
    """Appends every batch of the request, and sees to the answer."""
    message = request.message
    assert isinstance(message, ProduceRequest)
    payload = request.payload
    _check(message, len(payload))
    acks = message.acks
    results: list[ProducedPartition] = []
    pending = PendingProduce(asker, request.correlation_id, results, message.timeout_ms)
    position = 0
    now_ms = services.now_ms()
    for index, wanted in enumerate(message.partitions):
        batch = payload[position : position + wanted.size_bytes]
        position += wanted.size_bytes
        try:
            results.append(_append(services, wanted, batch, acks, now_ms, pending, index))
        except ApiError as error:
            results.append(_failed(wanted, error))
        except Exception:
            results.append(_failed(wanted, own_failure(f"Produce to {wanted.topic}-{wanted.partition}")))
    if acks == ACKS_NONE:
        _end_without_answer(asker, results)
    else:
        pending.begin(asyncio.get_running_loop().time())


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
    services: Services,
    wanted: ProducePartition,
    batch: memoryview,
    acks: int,
    now_ms: int,
    pending: PendingProduce,
    index: int,
) -> ProducedPartition:
    """Appends one batch, and with acks=all lets `pending` wait for its flush."""
    if acks not in (ACKS_ALL, ACKS_LEADER, ACKS_NONE):
        raise InvalidRequiredAcks(f"acks {acks}, it must be -1 (all), 1 or 0")
    partition = services.topics.partition(wanted.topic, wanted.partition)
    info = partition.append(batch, acks=acks, now_ms=now_ms, next_producer_id=services.producer_ids.next_id)
    end_offset = info.last_offset + 1
    must_wait = acks == ACKS_ALL and not partition.is_durable_below(end_offset)
    if must_wait:
        pending.wait_for(index, partition, end_offset)
    services.flusher.appended(partition, is_waited_for=must_wait)
    partition.wake_after_append()
    return ProducedPartition(
        wanted.topic,
        wanted.partition,
        ErrorCode.NONE,
        "",
        info.first_offset,
        info.append_time_ms,
        info.log_start_offset,
    )


def _failed(wanted: ProducePartition | ProducedPartition, error: ApiError) -> ProducedPartition:
    return ProducedPartition(wanted.topic, wanted.partition, error.code, str(error))


def _end_without_answer(asker: Asker, results: list[ProducedPartition]) -> None:
    asker.end_without_answer()
    failed = next((result for result in results if result.error_code != ErrorCode.NONE), None)
    if failed is not None:
        asker.close(f"acks=0 and {failed.topic}-{failed.partition} refused the batch: {failed.error_message}")
