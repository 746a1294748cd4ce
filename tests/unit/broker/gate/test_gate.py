"""The gate: how responses are changed that come at once, later, or with batches; and the table's completeness."""

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from warmlog_broker.config.listeners import DEFAULT_LISTENER
from warmlog_broker.gate import gate
from warmlog_broker.gate.gate import guarded
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import Deferred, Endpoint, MessageWithSlices, RequestContext, Response
from warmlog_broker.runtime.counters import Counters
from warmlog_broker.runtime.rate_limited_log import RepeatedLines
from warmlog_protocol import messages as m
from warmlog_protocol.errors import GroupAuthorizationFailed

CONTEXT = RequestContext(DEFAULT_LISTENER, "c", "User:alice", "127.0.0.1:4711")
REFUSED = GroupAuthorizationFailed.code


class FakeAuthorizer:
    """Allows everything on names that begin with "my"."""

    def __init__(self, *, is_on: bool = True) -> None:
        self.is_on = is_on

    def may(self, principal: str, operation: m.Operation, kind: m.ResourceType, name: str | None) -> bool:
        return (name or "").startswith("my")

    def is_denied_by_rule(self, *_: object) -> bool:
        return False


def services(*, is_on: bool = True) -> Services:
    fake = SimpleNamespace(
        authorizer=FakeAuthorizer(is_on=is_on),
        counters=Counters(),
        lines=RepeatedLines(logging.getLogger("warmlog_broker")),
        loop=SimpleNamespace(time=lambda: 0.0),
    )
    return cast("Services", fake)


def ask(handler: Callable[[m.Message], Response], message: m.Message) -> Any:
    """What the guarded handler returns."""
    kind = type(message)
    endpoints = guarded(services(), {kind: Endpoint(kind.__name__, lambda _, given: handler(given))})
    return endpoints[kind].handle(CONTEXT, message)


def deleted(message: m.Message) -> m.DeleteGroupsResponse:
    assert isinstance(message, m.DeleteGroupsRequest)
    return m.DeleteGroupsResponse([m.NamedResult(0, "", name) for name in message.groups])


MIXED = m.DeleteGroupsRequest(["theirs", "my1", "theirs", "my2"])
EXPECTED = [(REFUSED, "theirs"), (0, "my1"), (REFUSED, "theirs"), (0, "my2")]


def results(response: Any) -> list[tuple[int, str]]:
    return [(each.error_code, each.name) for each in response.groups]


def test_a_handler_gets_only_what_is_allowed() -> None:
    seen = []

    def handler(message: m.Message) -> Response:
        seen.append(cast("m.DeleteGroupsRequest", message).groups)
        return deleted(message)

    assert results(ask(handler, MIXED)) == EXPECTED
    assert seen == [["my1", "my2"]]


def test_a_handler_is_not_called_if_nothing_is_left() -> None:
    def handler(message: m.Message) -> Response:
        raise AssertionError

    assert results(ask(handler, m.DeleteGroupsRequest(["a", "b"]))) == [(REFUSED, "a"), (REFUSED, "b")]


def test_a_request_that_is_allowed_is_passed_on_as_it_is() -> None:
    message = m.DeleteGroupsRequest(["my1"])
    response = m.DeleteGroupsResponse([])

    def handler(given: m.Message) -> Response:
        assert given is message
        return response

    assert ask(handler, message) is response


async def test_the_response_of_a_coroutine_is_changed() -> None:
    async def later(message: m.Message) -> Response:
        await asyncio.sleep(0)
        return deleted(message)

    assert results(await ask(later, MIXED)) == EXPECTED


class Owner:
    """Collects what a deferred response ends with."""

    def __init__(self) -> None:
        self.ended: list[tuple[Deferred, Callable[[], Response]]] = []

    def end(self, deferred: Deferred, work: Callable[[], Response]) -> None:
        self.ended.append((deferred, work))


@pytest.mark.parametrize("is_early", [True, False])
def test_a_deferred_response_is_changed_when_it_comes(is_early: bool) -> None:
    inner = Deferred(7.0)
    if is_early:
        inner.complete(deleted(m.DeleteGroupsRequest(["my1", "my2"])))
    deferred = ask(lambda _: inner, MIXED)
    owner = Owner()
    assert isinstance(deferred, Deferred)
    assert deferred.deadline_s == 7.0
    deferred.begin(owner)
    if not is_early:
        assert owner.ended == []
        inner.complete(deleted(m.DeleteGroupsRequest(["my1", "my2"])))
    ((ended, work),) = owner.ended
    assert ended is deferred
    assert results(work()) == EXPECTED


def test_a_deferred_response_passes_on_what_happens_to_it() -> None:
    class Inner(Deferred):
        expired = dropped = 0

        def expire(self) -> None:
            self.expired += 1

        def drop(self) -> bool:
            self.dropped += 1
            return True

    inner = Inner()
    deferred = ask(lambda _: inner, MIXED)
    deferred.expire()
    assert deferred.drop()
    assert (inner.expired, inner.dropped) == (1, 1)


def test_batches_stay_with_their_partitions() -> None:
    def part(topic: str) -> m.FetchedPartition:
        return m.FetchedPartition(topic, 0, 0, "", 0, 0, 0, 0, bytes(16), 0)

    def fetched(message: m.Message) -> Response:
        names = [each.topic for each in cast("m.FetchRequest", message).partitions]
        assert cast("m.FetchRequest", message).max_wait_ms == 0
        return MessageWithSlices(
            m.FetchResponse([part(name) for name in names]), cast("Any", [[name] for name in names])
        )

    wanted = [m.FetchPartition(name, 0, 0, 1) for name in ("my1", "theirs", "my2")]
    response = ask(fetched, m.FetchRequest(500, 1, 1, wanted))
    assert response.slices == [["my1"], [], ["my2"]]
    assert [each.topic for each in response.message.partitions] == ["my1", "theirs", "my2"]


def test_an_api_without_a_row_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(gate.RIGHTS, m.DeleteGroupsRequest)
    with pytest.raises(KeyError):
        guarded(services(), {m.DeleteGroupsRequest: Endpoint("DeleteGroups", lambda _context, _message: None)})
