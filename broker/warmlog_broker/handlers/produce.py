"""Produce: batches from the receive buffer into the log, and the answer at the time that `acks` asks for.

Appending happens here and now, in the order in which requests come; the payload is used up on return. With acks=all
the answer waits until every batch is below its partition's high watermark, also for a batch that was appended before
(then until the original is). With acks=1 it is given at once. With acks=0 there is none, and since nobody would hear of
an error, an error closes the connection, as in Kafka.

Two kinds of requests are appended in turns, between which others are served: those for many partitions, and those whose
records the broker looks at (`log/preparation`), which it does in a thread. Their connection's next request waits until
all batches are appended, so that their order stays.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.record.recompression import prepare_batch
from warmlog_broker.storage.record.validation import CheckedBatch, check_batch
from warmlog_protocol.batch import NeedsMemory
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
from warmlog_protocol.wire.connection import Request

NO_ERROR = 0
PARTITIONS_A_TURN = 16
"""So many partitions are appended to before others have their turn: 1 ms, and some more where files are created."""


class PendingProduce:
    """A Produce request, from its first append to its answer."""

    __slots__ = ("_asker", "_correlation_id", "_is_begun", "_timeout_ms", "_waiting", "deadline_s", "results")

    def __init__(self, asker: Asker, correlation_id: int, timeout_ms: int) -> None:
        self.results: list[ProducedPartition] = []
        self.deadline_s = 0.0
        self._asker = asker
        self._correlation_id = correlation_id
        self._timeout_ms = timeout_ms
        self._waiting: set[int] = set()
        """The places of the results that hold only once a flush is over."""
        self._is_begun = False

    def wait(self) -> None:
        """The result that is added next holds only once `complete` is called with its place."""
        self._waiting.add(len(self.results))

    def begin(self, now_s: float) -> None:
        """All is appended: answers if nothing is to be waited for; otherwise the time runs."""
        self._is_begun = True
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
        if self._is_begun and not self._waiting:
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


Batch = memoryview | CheckedBatch | ApiError
"""As it came; or, where the records had to be looked at, as it goes into the log, or why it does not."""


def produce(services: Services, asker: Asker, request: Request) -> Coroutine[Any, Any, None] | None:
    """Appends every batch of the request, and sees to the answer; in a coroutine where that is done in turns."""
    message = request.message
    assert isinstance(message, ProduceRequest)
    payload, wanted = request.payload, message.partitions
    _check(message, len(payload))
    pending = PendingProduce(asker, request.correlation_id, message.timeout_ms)
    if len(wanted) > PARTITIONS_A_TURN or any(_config_to_decode_by(services, each) for each in wanted):
        kept = payload if request.is_payload_owned else memoryview(bytes(payload))
        return _append_in_turns(services, asker, message, kept, pending)
    _append_some(services, message.acks, wanted, _cut(wanted, payload), pending)
    _end_or_wait(services, asker, message.acks, pending)
    return None


async def _append_in_turns(
    services: Services, asker: Asker, message: ProduceRequest, payload: memoryview, pending: PendingProduce
) -> None:
    wanted, done = message.partitions, 0
    while done < len(wanted):
        some = wanted[done : done + PARTITIONS_A_TURN]
        batches = _cut(some, payload)
        configs = [_config_to_decode_by(services, each) for each in some]
        if any(configs):
            batches = await _prepared(services, batches, configs)
            some = some[: len(batches)]
        async with services.wide_appends:
            _append_some(services, message.acks, some, batches, pending)
            done += len(some)
            payload = payload[sum([each.size_bytes for each in some]) :]
            if done < len(wanted):
                await asyncio.sleep(0)
    _end_or_wait(services, asker, message.acks, pending)


def _end_or_wait(services: Services, asker: Asker, acks: int, pending: PendingProduce) -> None:
    """All is appended."""
    if acks != ACKS_NONE:
        pending.begin(services.loop.time())
    else:
        _end_without_answer(asker, pending.results)


def _config_to_decode_by(services: Services, wanted: ProducePartition) -> LogConfig | None:
    """The topic's settings, if they ask for its batches to be decoded."""
    topic = services.topics.find(wanted.topic)
    return topic.config if topic is not None and topic.config.must_decode else None


def _cut(partitions: Sequence[ProducePartition], payload: memoryview) -> list[Batch]:
    """The batches at the beginning of `payload`, one for each partition."""
    batches: list[Batch] = []
    position = 0
    for wanted in partitions:
        batches.append(payload[position : position + wanted.size_bytes])
        position += wanted.size_bytes
    return batches


async def _prepared(services: Services, batches: list[Batch], configs: Sequence[LogConfig | None]) -> list[Batch]:
    """The first of `batches`, one at least, as they go into their logs."""
    return await services.bodies.run(
        partial(_prepare_some, batches, configs, services.config.batch_max_decompressed_bytes)
    )


def _prepare_some(
    batches: Sequence[Batch], configs: Sequence[LogConfig | None], max_decompressed_bytes: int, memory_bytes: int
) -> list[Batch]:
    """In a thread: looks at those for which there is a config; the others stay as they came.

    Ends before one that takes more than `memory_bytes`, and once so much was made; NeedsMemory for the first.
    """
    prepared: list[Batch] = []
    made_bytes = 0
    for batch, config in zip(batches, configs, strict=True):
        if config is None or not isinstance(batch, memoryview):
            prepared.append(batch)
            continue
        try:
            checked = check_batch(batch, config.max_message_bytes)
            made = prepare_batch(checked, config, max_decompressed_bytes, memory_bytes=memory_bytes)
        except NeedsMemory:
            if not prepared:
                raise
            break
        except ApiError as error:
            prepared.append(_without_traceback(error))
            continue
        prepared.append(made)
        made_bytes += made.size_bytes
        if made_bytes >= memory_bytes:
            break
    return prepared


def _without_traceback(error: ApiError) -> ApiError:
    """`error` without the frames that raised it, which would keep decompressed bodies until it is answered."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _append_some(
    services: Services, acks: int, partitions: Sequence[ProducePartition], batches: list[Batch], pending: PendingProduce
) -> None:
    """Appends `batches`, one to each of `partitions`, here and now."""
    results = pending.results
    now_ms = services.now_ms()
    refusal = services.write_refusal()
    for wanted, batch in zip(partitions, batches, strict=True):
        if refusal is not None:
            results.append(_failed(wanted, refusal))
            continue
        try:
            results.append(_append(services, wanted, batch, acks, now_ms, pending))
        except ApiError as error:
            results.append(_failed(wanted, error))
        except Exception:
            results.append(_failed(wanted, own_failure(f"Produce to {wanted.topic!r} {wanted.partition}")))


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
    services: Services, wanted: ProducePartition, batch: Batch, acks: int, now_ms: int, pending: PendingProduce
) -> ProducedPartition:
    """Appends one batch, and with acks=all lets `pending` wait for its flush."""
    if not ACKS_ALL <= acks <= ACKS_LEADER:
        raise InvalidRequiredAcks(f"acks {acks}, it must be -1 (all), 1 or 0")
    topic, index = wanted.topic, wanted.partition
    partition = services.topics.partition(topic, index)
    if isinstance(batch, ApiError):
        raise batch
    must_wait = partition.must_wait(acks)
    first_offset, _, append_time_ms, log_start_offset, _ = partition.append(
        batch,
        acks,
        partial(pending.complete, len(pending.results)) if must_wait else None,
        now_ms=now_ms,
        next_producer_id=services.producer_ids.next_id,
    )
    if must_wait:
        pending.wait()
    return ProducedPartition(topic, index, NO_ERROR, "", first_offset, append_time_ms, log_start_offset)


def _failed(wanted: ProducePartition | ProducedPartition, error: ApiError) -> ProducedPartition:
    return ProducedPartition(wanted.topic, wanted.partition, error.code, str(error))


def _end_without_answer(asker: Asker, results: list[ProducedPartition]) -> None:
    asker.end_without_answer()
    failed = next((result for result in results if result.error_code != NO_ERROR), None)
    if failed is not None:
        asker.close(f"acks=0 and {failed.topic!r} {failed.partition} refused the batch: {failed.error_message!r}")
