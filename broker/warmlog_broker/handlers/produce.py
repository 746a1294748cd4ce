"""Produce: batches from the receive buffer into the log, and the response when `acks` allows it.

Batches are appended synchronously, in the order of the requests. With acks=all the response waits until every batch, or
the original of a duplicate, is below its partition's high watermark. With acks=1 it is sent at once. With acks=0 there
is none, and an error closes the connection, as in Kafka.

Two kinds of requests are appended in several turns of the event loop: those for many partitions, and those whose
records the broker decodes (`storage/log/recompression`), in a thread. The next request of the same connection waits
until all batches are appended, which keeps their order.

A transactional batch that may be the first of its transaction in its partition waits until the coordinator has made
the partition part of the transaction, or has confirmed that it is.

InitProducerId returns an id for an idempotent producer, or a higher epoch for its current id; with a transactional id
it is the coordinator's.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from warmlog_broker.coordinator.transaction.decisions.state import Incarnation, check_transactional_id
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_partition, handle
from warmlog_broker.network.request import BatchSource, ConnectionEnds, Deferred, RequestContext, Response
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.log.recompression import prepare_batch
from warmlog_broker.storage.log.validation import CheckedBatch, check_batch
from warmlog_broker.storage.producer.verification import NO_GUARD, VerificationGuard
from warmlog_protocol import errors
from warmlog_protocol import messages as m
from warmlog_protocol.batch import NeedsMemory
from warmlog_protocol.batch.header import (
    HEADER_BYTES,
    LAST_PRODUCER_EPOCH,
    MAGIC_ROWS,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    read_header,
)
from warmlog_protocol.wire.connection import ReceivedBatch

NO_ERROR = 0
PARTITIONS_A_TURN = 16
"""Partitions that are appended to in one turn: 1 ms, and more if files are created."""
FIRST_EPOCH = 0
_MAGIC_AT = 16
_MAX_TIMESTAMP_AT = 35
_failed_partition = failed_partition(m.ProducedPartition)


class RefusedRecords(m.ProducedPartition, frozen=True):
    """The refusal of a batch for single records of it, which Kafka's clients are told by `indexes`."""

    indexes: list[int] = []  # noqa: RUF012 - msgspec copies it


def _failed(item: "Batch | m.ProducedPartition", error: errors.ApiError) -> m.ProducedPartition:
    if isinstance(error, errors.InvalidRecord) and error.indexes:
        indexes = list(error.indexes)
        return RefusedRecords(item.topic, item.partition, error.code, str(error), indexes=indexes)
    return _failed_partition(item, error)


class PendingProduce(Deferred):
    """A Produce request, from its first append to its response."""

    __slots__ = ("_is_appended", "_timeout_ms", "results", "verified", "waiting")

    def __init__(self, timeout_ms: int, verified: "Sequence[Verified]" = ()) -> None:
        """`verified` has one for each batch, if these are transactional."""
        super().__init__()
        self.verified = verified
        self.results: list[m.ProducedPartition] = []
        self._timeout_ms = timeout_ms
        self.waiting: set[int] = set()
        """The indexes of the results that are not durable yet: they wait for `batch_done`."""
        self._is_appended = False

    def appended(self, now_s: float) -> "m.ProduceResponse | PendingProduce":
        """All batches are appended: return the response if none is pending; otherwise start the timeout."""
        self._is_appended = True
        if not self.waiting:
            return m.ProduceResponse(self.results)
        self.deadline_s = now_s + self._timeout_ms / 1000
        return self

    def batch_done(self, index: int, error: errors.ApiError | None) -> None:
        """The batch at `index` is durable, or never will be. No-op after `expire`."""
        if index not in self.waiting:
            return
        if error is not None:
            self.results[index] = _failed(self.results[index], error)
        self.waiting.remove(index)
        if self._is_appended and not self.waiting:
            self.complete(m.ProduceResponse(self.results))

    def expire(self) -> None:
        """Respond with an error for what is not durable yet, and may still become so."""
        for index in self.waiting:
            error = errors.RequestTimedOut(f"not on disk after {self._timeout_ms} ms; it may still get there")
            self.results[index] = _failed(self.results[index], error)
        self.waiting.clear()
        self.complete(m.ProduceResponse(self.results))


class PreparedBatch(NamedTuple):
    """A batch whose records were decoded: as it is appended to the log, or the error."""

    topic: str
    partition: int
    batch: CheckedBatch | errors.ApiError


Batch = ReceivedBatch | PreparedBatch
Verified = VerificationGuard | errors.ApiError
Outcome = m.ProduceResponse | PendingProduce | None


def produce(
    services: Services, _context: RequestContext, request: m.ProduceRequest, source: BatchSource
) -> Outcome | Coroutine[Any, Any, Outcome]:
    """Append one batch for each partition of the request; return a coroutine if that takes several turns."""
    batches = source()
    _check(request)
    asked: list[Verified | Awaitable[Verified]] = []
    if request.transactional_id is not None:
        asked = [_verify(services, request, batch) for batch in batches]
    learning: list[Awaitable[None]] = []
    if (others := services.between_brokers) is not None and _has_unknown_producer(services, batches):
        learning = [others.learn_producer_ids()]
    takes_turns = len(batches) > PARTITIONS_A_TURN or any(isinstance(each, Awaitable) for each in [*asked, *learning])
    if takes_turns or any(_config_to_decode_by(services, batch) for batch in batches):
        return _append_in_turns(services, request, [batch.owned() for batch in batches], asked, learning)
    pending = PendingProduce(request.timeout_ms, cast("list[Verified]", asked))
    _append_some(services, request.acks, batches, pending)
    return _outcome(services, request.acks, pending)


def _has_unknown_producer(services: Services, batches: Sequence[ReceivedBatch]) -> bool:
    """Return whether another broker must have assigned the id of a producer since this one last heard of that."""
    try:
        highest = max((read_header(batch.batch).producer_id for batch in batches), default=NO_PRODUCER_ID)
    except errors.CorruptBatch:
        return False  # it is refused when it is appended
    if highest >= services.producer_ids.known_below:
        services.producer_ids.hear()
    return highest >= services.producer_ids.known_below


def _verify(services: Services, request: m.ProduceRequest, item: ReceivedBatch) -> "Verified | Awaitable[Verified]":
    """Return the guard to append a transactional batch with, or the error; awaitable if the coordinator is asked."""
    try:
        header = read_header(item.batch)
        if not header.is_transactional:
            raise errors.InvalidTxnState("a batch that is not transactional, in a request with a transactional_id")
        partition = services.topics.partition(item.topic, item.partition, to_change=True)
        partition.check_leader_epoch(m.NO_LEADER_EPOCH)
        producer = Incarnation(header.producer_id, header.producer_epoch)
        guard = partition.log.producers.start_verification(
            *producer, now_ms(), first_sequence=header.base_sequence if request.is_enrolled else 0
        )
        if guard is NO_GUARD:
            return guard
        assert request.transactional_id is not None
        others = services.between_brokers
        enrol = services.coordinators.transactions.enrol_partition if others is None else others.enrol
        enrolling = enrol(
            m.EnrolPartitionRequest(
                request.transactional_id, *producer, item.topic, item.partition, request.is_enrolled
            )
        )
        return guard if enrolling is None else _verified(enrolling, guard)
    except errors.ApiError as error:
        return _without_traceback(error)


async def _verified(enrolling: Awaitable[object], guard: VerificationGuard) -> Verified:
    try:
        await enrolling
        return guard
    except errors.ApiError as error:
        return _without_traceback(error)


async def _append_in_turns(
    services: Services,
    request: m.ProduceRequest,
    batches: Sequence[ReceivedBatch],
    asked: "Sequence[Verified | Awaitable[Verified]]",
    learning: Sequence[Awaitable[None]],
) -> Outcome:
    """Append, once it is known which producer ids there are, and the partitions are part of the transaction."""
    done_first = await asyncio.gather(*learning, *(each for each in asked if isinstance(each, Awaitable)))
    waiting = iter(cast("list[Verified]", done_first[len(learning) :]))
    services.producer_ids.hear()
    verified = [next(waiting) if isinstance(each, Awaitable) else each for each in asked]
    pending = PendingProduce(request.timeout_ms, verified)
    done = 0
    while done < len(batches):
        received = batches[done : done + PARTITIONS_A_TURN]
        configs = [_config_to_decode_by(services, batch) for batch in received]
        some: Sequence[Batch] = received
        if any(configs):
            limit_bytes = services.config.batch_max_decompressed_bytes
            prepare = partial(_prepare_some, received, configs, bool(verified), limit_bytes)
            some = await services.bodies.run(prepare)
        async with services.wide_appends:
            _append_some(services, request.acks, some, pending)
            done += len(some)
            if done < len(batches):
                await asyncio.sleep(0)
    return _outcome(services, request.acks, pending)


def _outcome(services: Services, acks: int, pending: PendingProduce) -> Outcome:
    """Return the response after all appends. Raises ConnectionEnds if there is an error and acks=0."""
    if acks != m.ACKS_NONE:
        return pending.appended(services.loop.time())
    failed = next((result for result in pending.results if result.error_code != NO_ERROR), None)
    if failed is not None:
        raise ConnectionEnds(
            f"acks=0 and {failed.topic!r} {failed.partition} refused the batch: {failed.error_message!r}"
        )
    return None


def _check(request: m.ProduceRequest) -> None:
    """Raise InvalidRequest if the request as a whole is invalid; then nothing is appended."""
    partitions = request.partitions
    if request.transactional_id is not None:
        check_transactional_id(request.transactional_id)
        if request.acks != m.ACKS_ALL:
            raise errors.InvalidRequiredAcks(f"a transaction needs acks=all (-1), not {request.acks}")
    if len(partitions) > 1 and len({(wanted.topic, wanted.partition) for wanted in partitions}) != len(partitions):
        raise errors.InvalidRequest("a partition is in the request more than once; one batch each is allowed")


def _config_to_decode_by(services: Services, batch: ReceivedBatch) -> LogConfig | None:
    """Return the topic's settings if they, or rows without a max timestamp, require the batch to be decoded, else None.

    The first byte of a timestamp is 0xFF if it is -1.
    """
    topic = services.topics.find(batch.topic)
    if topic is None:
        return None
    config, view = topic.config, batch.batch
    lacks_max = len(view) >= HEADER_BYTES and view[_MAGIC_AT] == MAGIC_ROWS and view[_MAX_TIMESTAMP_AT] == 0xFF
    return config if config.must_decode or (lacks_max and not config.takes_append_time) else None


def _prepare_some(
    batches: Sequence[ReceivedBatch],
    configs: Sequence[LogConfig | None],
    is_transactional: bool,
    max_decompressed_bytes: int,
    memory_bytes: int,
) -> Sequence[Batch]:
    """In a thread: decode the batches that have a config, and leave the others unchanged.

    Stops once the decoded batches have `memory_bytes`. Raises NeedsMemory if the first batch alone takes more.
    """
    prepared: list[Batch] = []
    made_bytes = 0
    for received, config in zip(batches, configs, strict=True):
        if config is None:
            prepared.append(received)
            continue
        try:
            checked = check_batch(received.batch, config.max_message_bytes, may_be_transactional=is_transactional)
            made = prepare_batch(checked, config, max_decompressed_bytes, memory_bytes=memory_bytes)
        except NeedsMemory:
            if not prepared:
                raise
            break
        except errors.ApiError as error:
            prepared.append(PreparedBatch(received.topic, received.partition, _without_traceback(error)))
            continue
        prepared.append(PreparedBatch(received.topic, received.partition, made))
        made_bytes += made.size_bytes
        if made_bytes >= memory_bytes:
            break
    return prepared


def _without_traceback(error: errors.ApiError) -> errors.ApiError:
    """Return `error` without its traceback, which would keep decompressed bodies until the response is sent."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def _append_some(services: Services, acks: int, batches: Sequence[Batch], pending: PendingProduce) -> None:
    append = partial(_append, services, acks, now_ms(), pending)
    for batch in batches:
        pending.results.append(handle(services, batch, append, _failed))


def _append(services: Services, acks: int, now_ms: int, pending: PendingProduce, item: Batch) -> m.ProducedPartition:
    """Append one batch, and with acks=all let `pending` wait for its flush."""
    if not m.ACKS_ALL <= acks <= m.ACKS_LEADER:
        raise errors.InvalidRequiredAcks(f"acks {acks}, it must be -1 (all), 1 or 0")
    partition = services.topics.partition(item.topic, item.partition, to_change=True)
    if isinstance(item.batch, errors.ApiError):
        raise item.batch
    must_wait = partition.must_wait(acks)
    index = len(pending.results)
    guard = pending.verified[index] if pending.verified else None
    if isinstance(guard, errors.ApiError):
        raise guard
    first_offset, last_offset, append_time_ms, log_start_offset, is_duplicate = partition.append(
        item.batch,
        acks,
        partial(pending.batch_done, index) if must_wait else None,
        now_ms=now_ms,
        next_producer_id=services.producer_ids.known_below,
        guard=guard,
    )
    if must_wait:
        pending.waiting.add(index)
    if not is_duplicate:
        counters, topic = services.counters, partition.key.topic
        counters.appended_batches[topic] += 1
        counters.appended_records[topic] += last_offset + 1 - first_offset
        size_bytes = item.batch.size_bytes if isinstance(item.batch, CheckedBatch) else len(item.batch)
        counters.appended_bytes[topic] += size_bytes
    return m.ProducedPartition(item.topic, item.partition, NO_ERROR, "", first_offset, append_time_ms, log_start_offset)


async def init_producer_id(services: Services, context: RequestContext, request: m.InitProducerIdRequest) -> Response:
    """Return a new id with epoch 0, or, for an id that the broker assigned, the next epoch.

    In a cluster it is always a new id, since no broker has all partitions that the producer may have written to.
    UnknownProducerId for an id that was never assigned, InvalidProducerEpoch if a partition has seen a newer epoch.
    Idempotent for the same epoch, since the first response may have been lost.
    """
    if request.transactional_id is not None:
        expected = Incarnation(request.producer_id, request.producer_epoch)
        return m.InitProducerIdResponse(
            *await services.coordinators.transactions.initialise(
                request.transactional_id, request.transaction_timeout_ms, expected, context.principal
            )
        )
    if request.producer_id != NO_PRODUCER_ID and services.between_brokers is None:
        epoch = next_epoch(services, request.producer_id, request.producer_epoch)
        if epoch <= LAST_PRODUCER_EPOCH:
            return m.InitProducerIdResponse(request.producer_id, epoch)
    return m.InitProducerIdResponse(await services.producer_ids.give_out(), FIRST_EPOCH)


def next_epoch(services: Services, producer_id: int, epoch: int) -> int:
    services.producer_ids.hear()
    if not 0 <= producer_id < services.producer_ids.known_below:
        raise errors.UnknownProducerId(f"producer id {producer_id} was never assigned")
    if not 0 <= epoch <= LAST_PRODUCER_EPOCH:
        raise errors.InvalidRequest(f"producer epoch {epoch}, it must be from 0 to {LAST_PRODUCER_EPOCH}")
    readable = [partition.log for partition in services.topics.partitions if partition.allows.read]
    entries = [entry for log in readable if (entry := log.producers.get(producer_id)) is not None]
    newest = max((entry.epoch for entry in entries), default=NO_PRODUCER_EPOCH)
    if newest > epoch:
        raise errors.InvalidProducerEpoch(f"producer {producer_id}: epoch {epoch} is fenced by {newest}")
    return epoch + 1
