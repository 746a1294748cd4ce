"""Produce: when a response is given, and what of it is the deadline's."""

import pytest

from unit.broker.conftest import flush
from unit.broker.handlers.conftest import MakeServices
from warmlog_broker.handlers.produce import PendingProduce, produce
from warmlog_broker.network.request import BatchSource, ConnectionEnds, Deferred, RequestContext, Response
from warmlog_protocol.errors import ErrorCode, StorageError
from warmlog_protocol.messages import (
    ACKS_ALL,
    ACKS_LEADER,
    ACKS_NONE,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from warmlog_protocol.wire.connection import ReceivedBatch
from wire_client import batch_of

BATCH = memoryview(bytes(batch_of([b"x"])))


class Owner:
    """Notes the responses that deferred ones give."""

    def __init__(self) -> None:
        self.responses: list[Response] = []

    def end(self, deferred: Deferred, work: object) -> None:
        assert callable(work)
        self.responses.append(work())


def codes(response: object) -> list[int]:
    assert isinstance(response, ProduceResponse)
    return [result.error_code for result in response.partitions]


def request(acks: int, *partitions: int, timeout_ms: int = 1000) -> tuple[ProduceRequest, BatchSource]:
    """One batch for each of `partitions`."""
    wanted = [ProducePartition("t", number, len(BATCH)) for number in partitions]
    batches = [ReceivedBatch("t", number, BATCH, True) for number in partitions]
    return ProduceRequest(acks, timeout_ms, wanted), lambda: batches


def begun(produced: object) -> tuple[PendingProduce, Owner]:
    assert isinstance(produced, PendingProduce)
    owner = Owner()
    produced.begin(owner)
    return produced, owner


async def test_acks_of_the_leader_are_given_at_once(make_services: MakeServices, context: RequestContext) -> None:
    produced = produce(make_services(2), context, *request(ACKS_LEADER, 0, 5, 1))
    assert codes(produced) == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]


async def test_acks_of_all_wait_until_the_last_batch_is_durable(
    make_services: MakeServices, context: RequestContext
) -> None:
    services = make_services(2)
    _, owner = begun(produce(services, context, *request(ACKS_ALL, 1, 0)))
    for number in (0, 1):
        assert owner.responses == []
        flush(services.topics.partition("t", number))
    (response,) = owner.responses
    assert codes(response) == [ErrorCode.NONE, ErrorCode.NONE]


async def test_no_response_is_given_before_all_is_appended() -> None:
    pending = PendingProduce(1000)
    owner = Owner()
    for index in range(2):
        pending.waiting.add(index)
        pending.results.append(ProducedPartition("t", index, ErrorCode.NONE))
        pending.batch_done(index, StorageError("gone") if index == 0 else None)
    assert owner.responses == []
    assert codes(pending.appended(0.0)) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]


async def test_after_the_deadline_the_response_says_what_is_not_durable(
    make_services: MakeServices, context: RequestContext
) -> None:
    services = make_services(2)
    pending, owner = begun(produce(services, context, *request(ACKS_ALL, 0, 1, timeout_ms=2000)))
    assert pending.deadline_s == pytest.approx(services.loop.time() + 2, abs=1)
    pending.batch_done(1, None)
    pending.expire()
    pending.batch_done(0, None)
    (response,) = owner.responses
    assert codes(response) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]


async def test_without_acks_an_error_ends_the_connection(make_services: MakeServices, context: RequestContext) -> None:
    services = make_services(1)
    assert produce(services, context, *request(ACKS_NONE, 0)) is None
    with pytest.raises(ConnectionEnds, match="'t' 7 refused the batch"):
        produce(services, context, *request(ACKS_NONE, 0, 7))
    assert services.topics.partition("t", 0).log.log_end_offset == 2
