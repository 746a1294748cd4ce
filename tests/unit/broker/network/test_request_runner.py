"""From requests to responses: each request is ended once, by what its handler returns, raises or gives later."""

import asyncio
import logging
from typing import Any, cast

import pytest

from memory_quotas import memory_quotas, quota
from warmlog_broker.config.listeners import DEFAULT_LISTENER
from warmlog_broker.handlers import TRAITS
from warmlog_broker.network.codec import ProtocolCodec
from warmlog_broker.network.request import (
    ANONYMOUS_PRINCIPAL,
    NO_DEADLINE_S,
    BatchSource,
    ConnectionEnds,
    Deferred,
    Endpoint,
    MessageWithSlices,
    RequestContext,
    Response,
    Slices,
    StartedRequest,
    current_request,
)
from warmlog_broker.network.request_runner import RequestRunner
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.runtime.timer_wheel import TimerWheel
from warmlog_broker.security.quota_rules import MAX_CLIENT_ID_CHARACTERS
from warmlog_broker.security.quotas import Quotas
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest
from warmlog_protocol.wire.connection import RefusedRequest, Request

RESPONSE = m.MetadataRequest(["the response"])
REQUESTS: dict[m.ApiKey, m.Message] = {
    m.ApiKey.HANDSHAKE: m.HandshakeRequest("reader", "1"),
    m.ApiKey.METADATA: m.MetadataRequest(None),
    m.ApiKey.PRODUCE: m.ProduceRequest(-1, 1000, []),
    m.ApiKey.FETCH: m.FetchRequest(0, 0, 0, []),
}


class Room:
    """A runner whose handlers do what the test says; it is also the channel and the codec, and notes what they see."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []
        self.tasks = Tasks()
        self.timers = TimerWheel(0.25)
        self.contexts: list[RequestContext] = []
        self.outcome: Response | Exception = None
        self.conversion: Exception | None = None
        self.error_conversion: Exception | None = None
        self.is_converted_in_thread = False
        context = RequestContext(DEFAULT_LISTENER, "", ANONYMOUS_PRINCIPAL, "127.0.0.1:4711")
        self.counters = Counters()
        self.quotas = memory_quotas()
        self.refusal = ""
        self.throttled_ms = 0
        self.runner = RequestRunner(
            self,
            cast("ProtocolCodec", self),
            tasks=self.tasks,
            timers=self.timers,
            counters=self.counters,
            quotas=self.quotas,
            context=context,
        )

    def _handle(self, context: RequestContext, message: m.Message, *_: BatchSource) -> Response:
        self.contexts.append(context)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def start(
        self,
        outcome: Response | Exception,
        key: m.ApiKey = m.ApiKey.METADATA,
        correlation_id: int = 1,
        payload: bytes = b"",
    ) -> None:
        self.outcome = outcome
        self.start_request(Request(m.APIS[key], 0, correlation_id, REQUESTS[key], memoryview(payload), True))

    def shake_hands(self) -> None:
        self.start(RESPONSE, m.ApiKey.HANDSHAKE)
        self.events.clear()

    def start_request(self, request: Request) -> None:
        self.runner.start(request, self.begin(request))

    def begin(self, request: Request | RefusedRequest) -> StartedRequest:
        endpoint = Endpoint(request.api.name, self._handle, **TRAITS.get(request.api.request, {}))
        started = StartedRequest(endpoint, request.correlation_id)
        if isinstance(request, Request) and isinstance(request.message, m.HandshakeRequest):
            started.client_name = request.message.client_name
        return started

    async def finish(self) -> None:
        await self.tasks.finish(10)

    # --- the codec: pieces are what it was called with

    def encode(self, started: StartedRequest, message: m.Message, slices: Slices) -> Any:
        async def convert() -> Any:
            if self.conversion is not None:
                raise self.conversion
            return "answer", started.correlation_id, message, slices

        if self.is_converted_in_thread:
            return convert()
        if self.conversion is not None:
            raise self.conversion
        return "answer", started.correlation_id, message, slices

    def encode_error(self, started: StartedRequest, error: ApiError) -> Any:
        if self.error_conversion is not None:
            raise self.error_conversion
        return "refuse", started.correlation_id, error.code

    # --- the channel

    def end(self, started: StartedRequest, pieces: Any) -> None:
        self.events.append(("end",) if pieces is None else pieces)

    def close(self, reason: str) -> None:
        self.events.append(("close", reason))

    def hold(self, started: StartedRequest, payload_bytes: int) -> None:
        self.events.append(("hold", payload_bytes))

    def release(self, started: StartedRequest) -> None:
        self.events.append(("release", started.correlation_id))

    def end_last(self, started: StartedRequest, pieces: Any) -> None:
        self.events.append(("end_last", *pieces))

    def identify(self, principal: str) -> str:
        self.events.append(("identify", principal))
        return self.refusal

    def throttle(self, delay_s: float, *, holds_requests: bool = False) -> None:
        self.throttled_ms = max(self.throttled_ms, round(delay_s * 1000))


@pytest.fixture
async def room() -> Room:
    return Room()


async def test_an_error_that_cannot_be_encoded_ends_the_connection(room: Room) -> None:
    room.error_conversion = TypeError("no name")
    room.start(InvalidRequest("no"))
    assert room.events == [("end",), ("close", "the response InvalidRequest cannot be encoded: no name")]


class Late(Deferred):
    """Responds with what there is when it expires; says that it has only waited if the test says so."""

    def __init__(self, deadline_s: float, *, has_only_waited: bool = False) -> None:
        super().__init__(deadline_s)
        self._has_only_waited = has_only_waited

    def expire(self) -> None:
        self.complete(RESPONSE)

    def drop(self) -> bool:
        return self._has_only_waited


def piece(position: int) -> FileSlice:
    return FileSlice(None, position, 1)  # type: ignore[arg-type]


async def test_a_message_is_the_response(room: Room) -> None:
    room.start(RESPONSE)
    assert room.events == [("answer", 1, RESPONSE, ())]


async def test_the_codec_gets_the_slices_of_each_partition(room: Room) -> None:
    first, second, third = piece(1), piece(2), piece(3)
    room.start(MessageWithSlices(RESPONSE, [[first], [], [second, third]]))
    assert room.events == [("answer", 1, RESPONSE, [[first], [], [second, third]])]


async def test_none_is_no_response(room: Room) -> None:
    room.start(None)
    assert room.events == [("end",)]


@pytest.mark.parametrize("is_coroutine", [False, True])
@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InvalidRequest("no"), [("refuse", 1, ErrorCode.INVALID_REQUEST)]),
        (MemoryError(), [("refuse", 1, ErrorCode.OUT_OF_RESOURCES)]),
        (KeyError("x"), [("refuse", 1, ErrorCode.UNKNOWN_SERVER_ERROR)]),
        (ConnectionEnds("acks=0"), [("end",), ("close", "acks=0")]),
    ],
)
async def test_what_a_handler_raises_is_an_error_code(
    room: Room, error: Exception, expected: list[tuple[object, ...]], is_coroutine: bool
) -> None:
    async def fail() -> Response:
        raise error

    room.start(fail() if is_coroutine else error, m.ApiKey.FETCH)
    await room.finish()
    assert room.events[: len(expected)] == expected
    assert room.events[len(expected) :] == ([("release", 1)] if is_coroutine else [])


async def test_each_request_is_timed_and_errors_are_counted(room: Room) -> None:
    room.start(RESPONSE)
    room.start(InvalidRequest("no"))
    room.start(KeyError("x"), m.ApiKey.FETCH)
    assert {key: sum(each.counts) for key, each in room.counters.request_seconds.items()} == {
        ("warmlog", "Metadata"): 2,
        ("warmlog", "Fetch"): 1,
    }
    assert room.counters.errors == {
        ("warmlog", "Metadata", "InvalidRequest"): 1,
        ("warmlog", "Fetch", "UnknownServerError"): 1,
    }


async def test_a_bug_is_logged_with_the_api_and_the_peer(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        room.start(KeyError("x"))
    assert "Metadata from 127.0.0.1:4711 failed: a bug" in caplog.text
    assert "KeyError" in caplog.text


async def test_nothing_overtakes_a_coroutine_of_an_api_that_is_not_pipelined(room: Room) -> None:
    async def work() -> Response:
        return RESPONSE

    room.start(work())
    assert room.events == [("hold", 0)]
    await room.finish()
    assert room.events[1:] == [("answer", 1, RESPONSE, ())]


async def test_nothing_overtakes_a_deferred_response_of_an_api_that_is_not_pipelined(room: Room) -> None:
    async def work() -> Response:
        return second

    first, second = Deferred(), Deferred()
    room.start(first)
    assert room.events == [("hold", 0)]
    first.complete(RESPONSE)
    assert room.events[1:] == [("answer", 1, RESPONSE, ())]
    room.start(work(), correlation_id=2)
    await room.finish()
    assert room.events[2:] == [("hold", 0)] * 2
    second.complete(RESPONSE)
    assert room.events[4:] == [("answer", 2, RESPONSE, ())]


async def test_batches_that_are_appended_in_turns_hold_until_the_last_is_and_not_until_the_flush(room: Room) -> None:
    pending = Deferred()

    async def append() -> Response:
        return pending

    room.start(append(), m.ApiKey.PRODUCE, payload=b"1234567")
    assert room.events == [("hold", 7)]
    await room.finish()
    assert room.events[1:] == [("release", 1)]
    pending.complete(RESPONSE)
    assert room.events[2:] == [("answer", 1, RESPONSE, ())]


async def test_a_coroutine_of_fetch_and_deferred_pipelined_responses_hold_nothing(room: Room) -> None:
    async def work() -> Response:
        return RESPONSE

    room.start(work(), m.ApiKey.FETCH)
    await room.finish()
    room.start(Deferred(), m.ApiKey.PRODUCE)
    room.start(Deferred(), m.ApiKey.FETCH)
    assert "hold" not in [event[0] for event in room.events]


@pytest.mark.parametrize("is_converted_in_thread", [False, True])
async def test_a_response_may_be_converted_first_and_may_fail_then(room: Room, is_converted_in_thread: bool) -> None:
    room.is_converted_in_thread = is_converted_in_thread
    room.start(RESPONSE, m.ApiKey.FETCH, correlation_id=1)
    await room.finish()
    room.conversion = InvalidRequest("the response is too large")
    room.start(RESPONSE, m.ApiKey.FETCH, correlation_id=2)
    await room.finish()
    ends = [event for event in room.events if event[0] != "release"]
    assert ends == [("answer", 1, RESPONSE, ()), ("refuse", 2, ErrorCode.INVALID_REQUEST)]


async def test_deferred_responses_end_their_own_requests_in_any_order(room: Room) -> None:
    first, second = Deferred(), Deferred()
    room.start(first, m.ApiKey.FETCH, correlation_id=1)
    room.start(second, m.ApiKey.FETCH, correlation_id=1)
    room.start(RESPONSE, m.ApiKey.FETCH, correlation_id=2)
    assert [event[1] for event in room.events] == [2]
    second.complete(RESPONSE)
    bytes_of_first = piece(1)
    first.run(lambda: MessageWithSlices(RESPONSE, [[bytes_of_first]]))
    assert [(event[1], event[3]) for event in room.events[1:]] == [(1, ()), (1, [[bytes_of_first]])]


async def test_a_deferred_response_may_be_complete_before_the_handler_returns_it(room: Room) -> None:
    deferred = Deferred()
    deferred.complete(RESPONSE)
    room.start(deferred, m.ApiKey.FETCH)
    assert room.events == [("answer", 1, RESPONSE, ())]


async def test_a_deferred_response_ends_once(room: Room) -> None:
    deferred = Deferred()
    room.start(deferred, m.ApiKey.FETCH)
    deferred.complete(RESPONSE)
    deferred.complete(RESPONSE)
    assert len(room.events) == 1


async def test_what_a_deferred_response_runs_may_fail_or_take_longer(room: Room) -> None:
    async def work() -> Response:
        await asyncio.sleep(0)
        return RESPONSE

    def fail() -> Response:
        raise InvalidRequest("no")

    failing, slow = Deferred(), Deferred()
    room.start(failing, m.ApiKey.FETCH, correlation_id=1)
    room.start(slow, m.ApiKey.FETCH, correlation_id=2)
    failing.run(fail)
    slow.complete(work())
    assert room.events == [("refuse", 1, ErrorCode.INVALID_REQUEST)]
    await room.finish()
    assert room.events[1:] == [("answer", 2, RESPONSE, ()), ("release", 2)]


async def test_deferred_responses_expire_at_their_deadlines(room: Room) -> None:
    for correlation_id, deadline_s in enumerate([5.0, 7.0, 5.0]):
        room.start(Late(deadline_s), m.ApiKey.PRODUCE, correlation_id=correlation_id)
    room.start(Deferred(), m.ApiKey.FETCH, correlation_id=3)
    room.timers.advance(4.9)
    assert room.events == []
    room.timers.advance(5.0)
    assert [event[1] for event in room.events] == [0, 2]
    room.timers.advance(1e9)
    assert [event[1] for event in room.events] == [0, 2, 1]


async def test_requests_that_only_wait_are_dropped_when_the_peer_sends_no_more(room: Room) -> None:
    waiting, working = Late(5, has_only_waited=True), Late(5)
    room.start(waiting, m.ApiKey.FETCH, correlation_id=1)
    room.start(working, m.ApiKey.FETCH, correlation_id=2)
    assert [started.correlation_id for started in room.runner.drop_waiting()] == [1]
    assert len(room.timers) == 1
    waiting.complete(RESPONSE)
    working.complete(RESPONSE)
    assert [event[1] for event in room.events] == [2]


async def test_a_request_that_is_dropped_may_end_another_of_its_connection(room: Room) -> None:
    beside = Late(5, has_only_waited=True)

    class Ending(Late):
        def drop(self) -> bool:
            beside.complete(RESPONSE)
            return True

    room.start(Ending(5), m.ApiKey.FETCH, correlation_id=1)
    room.start(beside, m.ApiKey.FETCH, correlation_id=2)
    assert [started.correlation_id for started in room.runner.drop_waiting()] == [1]
    assert room.events == [("answer", 2, RESPONSE, ())]
    assert len(room.timers) == 0


async def test_a_request_that_begins_to_wait_after_the_peer_sends_no_more_is_dropped(room: Room) -> None:
    async def decided() -> Response:
        return Late(5, has_only_waited=True)

    room.start(decided(), m.ApiKey.FETCH, correlation_id=1)
    assert room.runner.drop_waiting() == []
    await room.finish()
    assert room.events == [("end",), ("release", 1)]
    assert len(room.timers) == 0


async def test_responses_of_a_lost_connection_go_nowhere(room: Room) -> None:
    deferred = Late(5)
    room.start(deferred, m.ApiKey.FETCH)
    room.runner.forget_all()
    assert len(room.timers) == 0
    deferred.complete(RESPONSE)
    room.timers.advance(6)
    assert room.events == []


async def test_the_handshake_says_who_the_client_is(room: Room) -> None:
    room.start(RESPONSE)
    room.start(RESPONSE, m.ApiKey.HANDSHAKE)
    room.start(RESPONSE)
    assert [context.client_id for context in room.contexts] == ["", "reader", "reader"]
    assert {context.peer for context in room.contexts} == {"127.0.0.1:4711"}
    assert room.contexts[1] is room.contexts[2]


async def test_a_client_id_is_cut(room: Room) -> None:
    long = m.HandshakeRequest("x" * 10_000, "1")
    room.outcome = RESPONSE
    room.start_request(Request(m.APIS[m.ApiKey.HANDSHAKE], 0, 1, long, memoryview(b""), True))
    assert room.runner.context.client_id == "x" * MAX_CLIENT_ID_CHARACTERS


# --- quotas --------------------------------------------------------------------------------------------------------


async def test_without_a_quota_nothing_is_counted(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> float:
        raise AssertionError("no quota is set")

    monkeypatch.setattr(Quotas, "charge_request", never)
    monkeypatch.setattr(Quotas, "charge_fetch", never)
    room.start(MessageWithSlices(m.FetchResponse([]), [[piece(1)]]), m.ApiKey.FETCH)
    room.start(m.ProduceResponse([]), m.ApiKey.PRODUCE, payload=b"batch")
    assert len(room.events) == 2


async def test_a_produce_is_charged_its_payload_and_told_the_delay(room: Room) -> None:
    room.shake_hands()
    await room.quotas.alter(quota("ANONYMOUS", producer_byte_rate=1000), "test")
    room.start(m.ProduceResponse([]), m.ApiKey.PRODUCE, payload=bytes(1000))
    assert room.events.pop() == ("answer", 1, m.ProduceResponse([]), ())
    room.start(m.ProduceResponse([]), m.ApiKey.PRODUCE, payload=bytes(2000))
    assert room.events.pop() == ("answer", 1, m.ProduceResponse([], throttle_ms=2000), ())


@pytest.mark.parametrize("outcome", [None, InvalidRequest("no")])
async def test_a_produce_without_acks_or_with_an_error_is_charged_too(
    room: Room, outcome: Response | Exception
) -> None:
    room.shake_hands()
    await room.quotas.alter(quota("ANONYMOUS", producer_byte_rate=1000), "test")
    room.start(outcome, m.ApiKey.PRODUCE, payload=bytes(3000))
    assert room.throttled_ms == 2000


async def test_a_fetch_is_charged_for_what_it_returns_and_told_the_delay(room: Room) -> None:
    room.shake_hands()
    await room.quotas.alter(quota("ANONYMOUS", consumer_byte_rate=1), "test")
    slices = [[piece(1), piece(2)], [piece(3)]]
    room.start(MessageWithSlices(m.FetchResponse([]), slices), m.ApiKey.FETCH)
    assert room.events == [("answer", 1, m.FetchResponse([], throttle_ms=2000), slices)]


async def test_a_request_that_cannot_be_read_is_charged_as_a_request(room: Room) -> None:
    room.shake_hands()
    await room.quotas.alter(quota("ANONYMOUS", request_rate=1), "test")
    for _ in range(3):
        refused = RefusedRequest(m.APIS[m.ApiKey.METADATA], 0, 1, InvalidRequest("no"))
        room.runner.start(refused, room.begin(refused))
    assert room.throttled_ms == 2000


async def test_replicas_are_not_limited(room: Room) -> None:
    await room.quotas.alter(quota("*", request_rate=1, consumer_byte_rate=1), "test")
    room.shake_hands()
    room.runner.context.life.broker = 2
    for _ in range(3):
        room.start(MessageWithSlices(m.FetchResponse([]), [[piece(1)]]), m.ApiKey.FETCH)
    assert room.throttled_ms == 0


async def test_what_begins_a_connection_is_not_charged_and_what_repeats_it_is(room: Room) -> None:
    await room.quotas.alter(quota("ANONYMOUS", request_rate=1), "test")
    room.shake_hands()
    room.start(RESPONSE)
    assert room.throttled_ms == 0
    room.shake_hands()
    assert room.throttled_ms == 1000


async def test_lines_are_about_a_request_until_it_has_ended(room: Room) -> None:
    seen: list[dict[str, str]] = []
    is_over = asyncio.Event()

    async def outlives_the_request() -> None:
        await is_over.wait()
        seen.append(current_request())

    async def handles() -> m.Message:
        background.append(asyncio.create_task(outlives_the_request()))
        await asyncio.sleep(0)
        seen.append(current_request())
        return RESPONSE

    background: list[asyncio.Task[None]] = []
    request = Request(m.APIS[m.ApiKey.METADATA], 0, 7, REQUESTS[m.ApiKey.METADATA], memoryview(b""), True)
    started = room.begin(request)
    room.outcome = handles()
    room.runner.start(request, started)
    assert current_request() == {}
    await room.finish()
    started.is_over = True  # the scheduler's work
    is_over.set()
    await background[0]
    (inside, later) = seen
    assert (inside["request"], inside["api"], inside["principal"]) == ("0-7", "Metadata", ANONYMOUS_PRINCIPAL)
    assert inside["client"] == "127.0.0.1:4711"
    assert later == {}


async def test_lines_about_a_response_that_waited_are_about_its_request(room: Room) -> None:
    seen = []
    waiting = Late(NO_DEADLINE_S)
    room.start(waiting, correlation_id=8)

    def respond() -> Response:
        seen.append(current_request()["request"])
        return RESPONSE

    room.runner.end(waiting, respond)
    assert seen == ["0-8"]
    assert current_request() == {}
