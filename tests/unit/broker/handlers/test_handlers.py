"""Handlers: each item of a request has a result of its own, and others have their turn in between."""

import asyncio
import errno
import logging
from inspect import signature
from typing import get_type_hints

import pytest

from unit.broker.conftest import NOW_MS, flush
from unit.broker.coordinator.group.machine import GROUP, Machine
from unit.broker.coordinator.group.topics import Topics
from unit.broker.handlers.conftest import MakeServices
from warmlog_broker.coordinator.group.decisions.offsets import existing_group
from warmlog_broker.handlers import FAMILIES, TRAITS, handler_of
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.fetch import read_partitions
from warmlog_broker.handlers.groups import described
from warmlog_broker.handlers.items import ITEMS_A_TURN, handle, handle_all
from warmlog_broker.handlers.produce import PendingProduce, produce
from warmlog_broker.network.request import BatchSource, ConnectionEnds, Deferred, RequestContext, Response
from warmlog_broker.storage.log.local_log import LogBounds
from warmlog_protocol import errors
from warmlog_protocol import messages as m
from warmlog_protocol.wire.connection import ReceivedBatch
from wire_client import batch_of


@pytest.fixture
async def services(make_services: MakeServices, context: RequestContext) -> Services:
    return make_services()


def failed(item: str, error: errors.ApiError) -> errors.ApiError:
    return error


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (errors.InvalidRequest("no"), errors.InvalidRequest),
        (OSError(errno.EIO, "broken"), errors.StorageError),
        (OSError(errno.ENOSPC, "full"), errors.DiskFull),
        (OSError(errno.EMFILE, "too many"), errors.OutOfResources),
        (MemoryError(), errors.OutOfResources),
    ],
)
async def test_an_error_is_that_of_its_item(
    services: Services, raised: Exception, expected: type[errors.ApiError]
) -> None:
    async def act(name: str) -> str | errors.ApiError:
        if name == "b":
            raise raised
        return name.upper()

    first, error, last = await handle_all(services, ["a", "b", "c"], act, failed)
    assert (first, type(error), last) == ("A", expected, "C")


async def test_a_disk_that_fails_is_a_line_of_the_log(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    def act(item: m.ProducePartition) -> errors.ApiError:
        raise OSError(errno.EIO, "broken")

    error = handle(services, m.ProducePartition("t", 3, 0), act, lambda item, error: error)
    assert "Fetch of 't' 3: the disk cannot be read or written: [Errno 5] broken" in str(error)
    (record,) = caplog.records
    assert (record.levelno, record.getMessage(), record.exc_info) == (logging.ERROR, str(error), None)


async def test_a_bug_is_logged_with_its_traceback(services: Services, caplog: pytest.LogCaptureFixture) -> None:
    def act(name: str) -> errors.ApiError:
        raise KeyError("x")

    error = handle(services, "a", act, failed)
    assert error.code is errors.ErrorCode.UNKNOWN_SERVER_ERROR
    assert "Fetch of 'a' for 127.0.0.1:4711 failed: a bug" in caplog.text
    assert "KeyError" in caplog.text


async def test_others_have_their_turn_between_slices_of_many_items(services: Services) -> None:
    done: list[int] = []
    seen: list[int] = []

    async def act(name: str) -> None:
        done.append(len(name))

    async def watch() -> None:
        while len(done) < 3 * ITEMS_A_TURN:
            seen.append(len(done))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await handle_all(services, ["x"] * 3 * ITEMS_A_TURN, act, lambda name, error: None)
    await watching
    assert seen == [ITEMS_A_TURN, 2 * ITEMS_A_TURN]


# Fetch


async def test_a_partition_that_fails_late_takes_nothing_of_the_next(
    make_services: MakeServices, context: RequestContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = make_services(2, write_caching="true")
    first, second = (services.topics.partition("t", number) for number in range(2))
    for partition, value in ((first, b"x" * 500), (second, b"y")):
        partition.append(batch_of([value]), m.ACKS_LEADER, None, now_ms=NOW_MS)
    real = vars(LogBounds)["last_stable_offset"].fget

    def fail(bounds: LogBounds) -> int:
        if bounds is first.log.bounds:
            raise OSError(errno.EIO, "broken")
        return real(bounds)

    monkeypatch.setattr(LogBounds, "last_stable_offset", property(fail))
    request = m.FetchRequest(0, 1, 1 << 20, [m.FetchPartition("t", number, 0, 1 << 20) for number in range(2)])
    result = read_partitions(services, request)
    response = result.response()
    message = response.message
    assert isinstance(message, m.FetchResponse)
    assert [each.error_code for each in message.partitions] == [
        errors.ErrorCode.KAFKA_STORAGE_ERROR,
        errors.ErrorCode.NONE,
    ]
    size_bytes = second.log.local.segments.size_bytes
    assert [each.size_bytes for each in message.partitions] == [0, size_bytes]
    assert [[piece.size_bytes for piece in pieces] for pieces in response.slices] == [[], [size_bytes]]
    assert (result.size_bytes, result.has_error, list(result.wanted)) == (size_bytes, True, [second])


# Produce: when a response is given, and what of it is the deadline's


BATCH = memoryview(bytes(batch_of([b"x"])))


class Owner:
    """Notes the responses that deferred ones give."""

    def __init__(self) -> None:
        self.responses: list[Response] = []

    def end(self, deferred: Deferred, work: object) -> None:
        assert callable(work)
        self.responses.append(work())


def codes(response: object) -> list[int]:
    assert isinstance(response, m.ProduceResponse)
    return [result.error_code for result in response.partitions]


def request(acks: int, *partitions: int, timeout_ms: int = 1000) -> tuple[m.ProduceRequest, BatchSource]:
    """One batch for each of `partitions`."""
    wanted = [m.ProducePartition("t", number, len(BATCH)) for number in partitions]
    batches = [ReceivedBatch("t", number, BATCH, True) for number in partitions]
    return m.ProduceRequest(acks, timeout_ms, wanted), lambda: batches


def begun(produced: object) -> tuple[PendingProduce, Owner]:
    assert isinstance(produced, PendingProduce)
    owner = Owner()
    produced.begin(owner)
    return produced, owner


async def test_acks_of_the_leader_are_given_at_once(make_services: MakeServices, context: RequestContext) -> None:
    produced = produce(make_services(2), context, *request(m.ACKS_LEADER, 0, 5, 1))
    assert codes(produced) == [
        errors.ErrorCode.NONE,
        errors.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        errors.ErrorCode.NONE,
    ]


async def test_acks_of_all_wait_until_the_last_batch_is_durable(
    make_services: MakeServices, context: RequestContext
) -> None:
    services = make_services(2)
    _, owner = begun(produce(services, context, *request(m.ACKS_ALL, 1, 0)))
    for number in (0, 1):
        assert owner.responses == []
        flush(services.topics.partition("t", number))
    (response,) = owner.responses
    assert codes(response) == [errors.ErrorCode.NONE, errors.ErrorCode.NONE]


async def test_no_response_is_given_before_all_is_appended() -> None:
    pending = PendingProduce(1000)
    owner = Owner()
    for index in range(2):
        pending.waiting.add(index)
        pending.results.append(m.ProducedPartition("t", index, errors.ErrorCode.NONE))
        pending.batch_done(index, errors.StorageError("gone") if index == 0 else None)
    assert owner.responses == []
    assert codes(pending.appended(0.0)) == [errors.ErrorCode.KAFKA_STORAGE_ERROR, errors.ErrorCode.NONE]


async def test_after_the_deadline_the_response_says_what_is_not_durable(
    make_services: MakeServices, context: RequestContext
) -> None:
    services = make_services(2)
    pending, owner = begun(produce(services, context, *request(m.ACKS_ALL, 0, 1, timeout_ms=2000)))
    assert pending.deadline_s == pytest.approx(services.loop.time() + 2, abs=1)
    pending.batch_done(1, None)
    pending.expire()
    pending.batch_done(0, None)
    (response,) = owner.responses
    assert codes(response) == [errors.ErrorCode.REQUEST_TIMED_OUT, errors.ErrorCode.NONE]


async def test_without_acks_an_error_ends_the_connection(make_services: MakeServices, context: RequestContext) -> None:
    services = make_services(1)
    assert produce(services, context, *request(m.ACKS_NONE, 0)) is None
    with pytest.raises(ConnectionEnds, match="'t' 7 refused the batch"):
        produce(services, context, *request(m.ACKS_NONE, 0, 7))
    assert services.topics.partition("t", 0).log.log_end_offset == 2


# Groups as tools see them


def test_the_states_of_a_group_follow_each_other() -> None:
    machine = Machine(Topics(orders=2))
    states = []

    def look() -> None:
        states.append(described(existing_group(machine.groups, GROUP)).state)

    machine.join("a", "orders")
    look()
    machine.assign()
    look()
    machine.heartbeat("a", 1, [])
    look()
    machine.heartbeat("a", -1)
    look()
    assert states == ["assigning", "reconciling", "stable", "empty"]


def test_a_member_is_described_with_what_it_has_gives_up_and_will_have() -> None:
    machine = Machine(Topics(orders=2))
    machine.join("a", "orders", client_id="app", pattern="x.*", rebalance_timeout_ms=9, session_timeout_ms=3000)
    machine.settle("a")
    machine.join("b", "orders", assignor="range")
    machine.assign()
    machine.now_ms = 1234
    machine.heartbeat("a", 1, machine.member("a").assigned)
    group = described(existing_group(machine.groups, GROUP))
    first = group.members[0]
    assert (group.group, group.group_epoch, group.target_epoch, group.assignor) == (GROUP, 2, 2, "range")
    assert (first.member_id, first.client_id, first.host, first.topics, first.pattern) == (
        "a", "app", "host", ["orders"], "x.*",
    )  # fmt: skip
    assert [(t.topic, t.partitions) for t in first.assigned] == [("orders", [0])]
    assert [(t.topic, t.partitions) for t in first.revoking] == [("orders", [1])]
    assert [(t.topic, t.partitions) for t in group.members[1].target] == [("orders", [1])]
    assert (first.rebalance_timeout_ms, first.session_timeout_ms, first.last_heartbeat_ms) == (9, 3000, 1234)


def test_a_group_that_does_not_exist_cannot_be_described() -> None:
    machine = Machine(Topics(orders=2))
    with pytest.raises(errors.GroupIdNotFound):
        existing_group(machine.groups, "other")
    with pytest.raises(errors.InvalidGroupId):
        existing_group(machine.groups, "")


ROWS = [(request, family) for family, requests in FAMILIES.items() for request in requests]


def test_each_request_has_a_handler() -> None:
    assert sorted(m.API_OF_REQUEST, key=repr) == sorted([request for request, _ in ROWS], key=repr)
    assert TRAITS.keys() <= m.API_OF_REQUEST.keys()


@pytest.mark.parametrize(("request_type", "family"), ROWS)
def test_a_handler_takes_services_the_context_and_the_request_of_its_api(
    request_type: type[m.Message], family: str
) -> None:
    handler = handler_of(request_type, family)
    types = get_type_hints(handler)
    parameters = [types[name] for name in signature(handler).parameters]
    assert parameters[:3] == [Services, RequestContext, request_type]
