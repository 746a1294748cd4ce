"""From a request to its response: runs the handler, and turns what it raises into an error code.

This is the one place that does so for whole requests; `handlers/items` does it for each item of a request.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from warmlog_broker.network.request_context import MAX_CLIENT_ID_CHARACTERS, RequestContext
from warmlog_broker.network.response import ConnectionEnds, Deferred, MessageWithSlices, Response
from warmlog_broker.runtime.internal_error import own_failure
from warmlog_broker.runtime.tasks import Tasks
from warmlog_broker.storage.record.file_records import FileSlice
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import Api, ApiKey, HandshakeRequest, Message
from warmlog_protocol.wire.connection import Request

Handler = Callable[[RequestContext, Request], Response]


class Channel(Protocol):
    """The part of a connection that ends requests: each by exactly one of `answer`, `refuse`, `end_without_answer`."""

    def answer(self, correlation_id: int, message: Message, slices: Sequence[FileSlice] = ()) -> None:
        """End a request with `message` and the bytes of `slices`."""
        ...

    def refuse(self, correlation_id: int, error: ApiError) -> None:
        """End a request with an error that concerns all of it."""
        ...

    def end_without_answer(self) -> None:
        """End a request that gets no response."""
        ...

    def close(self, reason: str) -> None:
        """Cut the connection."""
        ...

    def hold(self, payload_bytes: int) -> None:
        """Start no request until `resume`: one with so much payload is under way, and none may overtake it."""
        ...

    def resume(self, *, was_held: bool) -> None:
        """Work outside of `start` is done: send what it has answered, and start requests again if it held them."""
        ...


class RequestRunner:
    """The requests of one connection that are under way."""

    def __init__(
        self, channel: Channel, handlers: Mapping[int, Handler], tasks: Tasks, context: RequestContext
    ) -> None:
        """`handlers` by the key of their API."""
        self.context = context
        self._channel = channel
        self._handlers = handlers
        self._tasks = tasks
        self._deferred: dict[Deferred, tuple[Api, int]] = {}
        """With the correlation ids of their requests."""

    def start(self, request: Request) -> None:
        """Run the handler of `request`."""
        api, correlation_id = request.api, request.correlation_id
        if isinstance(request.message, HandshakeRequest):
            client_id = request.message.client_name[:MAX_CLIENT_ID_CHARACTERS]
            self.context = replace(self.context, client_id=client_id)
        try:
            response = self._handlers[api.key](self.context, request)
        except Exception as error:
            self._fail(api, correlation_id, error)
        else:
            self._take(api, correlation_id, response, len(request.payload))

    def end(self, deferred: Deferred, work: Callable[[], Response]) -> None:
        """End the request of `deferred` with what `work` returns or raises."""
        request = self._deferred.pop(deferred, None)
        if request is None:
            return
        try:
            response = work()
        except Exception as error:
            self._fail(*request, error)
        else:
            self._take(*request, response)

    def tick(self, now_s: float) -> None:
        """Expire the deferred responses that are late."""
        if self._deferred:
            for deferred in [each for each in self._deferred if each.deadline_s <= now_s]:
                deferred.expire()

    def drop_waiting(self) -> int:
        """Forget the requests that have only waited, as the peer sends no more; return how many there were."""
        dropped = [deferred for deferred in self._deferred if deferred.drop()]
        for deferred in dropped:
            del self._deferred[deferred]
        return len(dropped)

    def forget_all(self) -> None:
        """The connection is lost: what is under way goes on, and its responses go nowhere."""
        self.drop_waiting()
        self._deferred.clear()

    def _take(self, api: Api, correlation_id: int, response: Response, payload_bytes: int = 0) -> None:
        if isinstance(response, Message):
            self._channel.answer(correlation_id, response)
        elif isinstance(response, MessageWithSlices):
            slices = [piece for pieces in response.slices for piece in pieces]
            self._channel.answer(correlation_id, response.message, slices)
        elif isinstance(response, Deferred):
            self._deferred[response] = api, correlation_id
            response.begin(self)
        elif response is None:
            self._channel.end_without_answer()
        else:
            is_alone = not api.is_pipelined or api.key is ApiKey.PRODUCE
            if is_alone:
                self._channel.hold(payload_bytes)
            self._tasks.start(self._finish(api, correlation_id, response, is_alone=is_alone))

    async def _finish(
        self, api: Api, correlation_id: int, work: Coroutine[Any, Any, Response], *, is_alone: bool
    ) -> None:
        try:
            response = await work
        except Exception as error:
            self._fail(api, correlation_id, error)
        else:
            self._take(api, correlation_id, response)
        finally:
            self._channel.resume(was_held=is_alone)

    def _fail(self, api: Api, correlation_id: int, error: Exception) -> None:
        if isinstance(error, ConnectionEnds):
            self._channel.end_without_answer()
            self._channel.close(str(error))
        elif isinstance(error, ApiError):
            self._channel.refuse(correlation_id, error)
        else:
            self._channel.refuse(correlation_id, own_failure(f"{api.key.name} from {self.context.peer}"))
