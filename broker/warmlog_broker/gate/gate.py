"""The gate between the connections and the handlers: requests are checked here if `authorization` is set."""

from collections.abc import Coroutine, Mapping
from typing import Any

from warmlog_broker.gate.asker import Asker
from warmlog_broker.gate.rules import Revise, Rule
from warmlog_broker.gate.table import RIGHTS
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.codec import ReceivedRequest
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.network.request_runner import Deferred, Handler, MessageWithSlices, Response
from warmlog_protocol.messages import APIS, Api, Message, ProduceRequest
from warmlog_protocol.wire.connection import ReceivedBatch


def guarded(services: Services, handlers: Mapping[int, Handler]) -> Mapping[int, Handler]:
    """Return the handlers as connections call them. KeyError for an API that the table of rights does not have."""
    return {key: _guarded(services, APIS[key], RIGHTS[key], handler) for key, handler in handlers.items()}


def _guarded(services: Services, api: Api, rules: tuple[Rule, ...], handler: Handler) -> Handler:
    def handle(context: RequestContext, request: ReceivedRequest) -> Response:
        asker = Asker(services, context, api)
        message: Message | None = request.message
        revisions: tuple[Revise, ...] = ()
        for rule in rules:
            message, revise = rule(asker, message)
            if revise is not None:
                revisions = (revise, *revisions)
            if message is None:
                break
        response: Response = None
        if message is not None:
            response = handler(context, request if message is request.message else _ReducedRequest(request, message))
        for revise in revisions:
            response = _revised(response, revise)
        return response

    return handle if rules else handler


class _ReducedRequest:
    """A request of which some topics are refused."""

    __slots__ = ("_request", "message")

    def __init__(self, request: ReceivedRequest, message: Message) -> None:
        self._request = request
        self.message = message

    @property
    def api(self) -> Api:
        return self._request.api

    @property
    def api_version(self) -> int:
        return self._request.api_version

    @property
    def correlation_id(self) -> int:
        return self._request.correlation_id

    @property
    def payload_bytes(self) -> int:
        return self._request.payload_bytes

    def batches(self) -> list[ReceivedBatch]:
        """The batches of the topics that are left: all of a topic, or none."""
        assert isinstance(self.message, ProduceRequest)
        topics = {part.topic for part in self.message.partitions}
        return [batch for batch in self._request.batches() if batch.topic in topics]


def _revised(response: Response, revise: Revise) -> Response:
    """Return the response, or what will be it, with the changes of `revise`."""
    if isinstance(response, Message) or response is None:
        return revise(response, ())[0]
    if isinstance(response, MessageWithSlices):
        return MessageWithSlices(*revise(response.message, response.slices))
    if isinstance(response, Deferred):
        return _RevisedDeferred(response, revise)
    return _revised_when_done(response, revise)


async def _revised_when_done(response: Coroutine[Any, Any, Response], revise: Revise) -> Response:
    return _revised(await response, revise)


class _RevisedDeferred(Deferred):
    """A response that comes later, and is changed then. It owns the one that the handler has returned."""

    __slots__ = ("_inner", "_revise")

    def __init__(self, inner: Deferred, revise: Revise) -> None:
        super().__init__(inner.deadline_s)
        self._inner = inner
        self._revise = revise

    def begin(self, owner: Any) -> None:
        super().begin(owner)
        self._inner.begin(self)

    def end(self, deferred: Deferred, work: Any) -> None:
        """As `DeferredOwner`."""
        assert deferred is self._inner
        self.run(lambda: _revised(work(), self._revise))

    def expire(self) -> None:
        self._inner.expire()

    def drop(self) -> bool:
        return self._inner.drop()
