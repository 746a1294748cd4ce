"""The results of handlers: a message, at once or later, with or without file ranges."""

import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from warmlog_broker.storage.record.file_records import FileSlice
from warmlog_protocol.messages import Message

NO_DEADLINE_S = math.inf


class MessageWithSlices(Struct, frozen=True, gc=False):
    """A message and its file ranges: a list for each partition in the message, in its order."""

    message: Message
    slices: Sequence[Sequence[FileSlice]]


class ConnectionEnds(Exception):
    """The request gets no response, and the connection is closed; the message says why."""


class DeferredOwner(Protocol):
    """The interface of the request runner that deferred responses use."""

    def end(self, deferred: "Deferred", work: Callable[[], "Response"]) -> None:
        """End the request of `deferred` with the result or the exception of `work`."""
        ...


class Deferred:
    """A response that is completed later, by one call of `complete` or `run`.

    The call may come before the handler has returned this object. It is a no-op once the connection is lost.
    """

    __slots__ = ("_early", "_owner", "deadline_s")

    def __init__(self, deadline_s: float = NO_DEADLINE_S) -> None:
        """`deadline_s` is on the event loop's clock, and may be set until the handler returns this object."""
        self.deadline_s = deadline_s
        self._owner: DeferredOwner | None = None
        self._early: Callable[[], Response] | None = None

    def complete(self, response: "Response") -> None:
        """Send `response`."""
        self.run(lambda: response)

    def run(self, work: Callable[[], "Response"]) -> None:
        """Send the response that `work` returns; an exception becomes the error of the request."""
        if self._owner is None:
            self._early = work
        else:
            self._owner.end(self, work)

    def begin(self, owner: DeferredOwner) -> None:
        """Called by the request runner: from now on the response can be sent."""
        self._owner = owner
        if self._early is not None:
            owner.end(self, self._early)

    def expire(self) -> None:
        """Called after the deadline: complete with what is available."""

    def drop(self) -> bool:
        """Called when the peer sends no more: return whether the request only waited, and is dropped."""
        return False


Response: TypeAlias = Message | MessageWithSlices | Deferred | Coroutine[Any, Any, "Response"] | None
"""None: the request gets no response, such as Produce with acks=0."""
