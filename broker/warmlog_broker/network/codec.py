"""The interface between a session and a wire protocol, and warmlog's own protocol as the first implementation.

A codec is the pure part of one connection: bytes into requests, responses into bytes and file ranges. It decides where
batches are in a message, and may convert a response in a thread. Sockets, memory limits and the order of requests
belong to the session.
"""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.network.request import Endpoint, Slices, StartedRequest
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol.errors import ApiError
from warmlog_protocol.messages import HandshakeRequest, Message
from warmlog_protocol.wire.connection import ReceivedBatch, RefusedRequest, Request, ServerConnection

SMALL_BUFFER_BYTES = 8 * 1024
"""The receive buffer of a new or idle connection, of which there may be thousands."""
Pieces: TypeAlias = tuple[bytes | FileSlice, ...] | list[bytes | FileSlice]
"""A response as it is sent, one piece after another."""


def slices_bytes(slices: Slices) -> int:
    """Return the size of all batches of a response."""
    return sum([len(piece) if isinstance(piece, bytes) else piece.size_bytes for each in slices for piece in each])


class ReceivedRequest(Protocol):
    @property
    def message(self) -> Message:
        """Raises InvalidRequest if it could not be read: that is its response."""
        ...

    @property
    def payload_bytes(self) -> int: ...

    def batches(self) -> list[ReceivedBatch]:
        """See BatchSource."""
        ...


class ProtocolCodec(Protocol):
    """The wire protocol of one connection."""

    @property
    def keeps_order(self) -> bool:
        """Whether clients expect responses in the order of their requests."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether the client has sent its Handshake: before that, requests must fit into the shared buffer."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes received of an incomplete request."""
        ...

    @property
    def buffer_bytes(self) -> int:
        """The size of the buffer that requests share."""
        ...

    @property
    def oversize_bytes(self) -> int:
        """The size of the incomplete request if the next `get_buffer` allocates a buffer of its own for it; else 0."""
        ...

    def get_buffer(self) -> memoryview:
        """Room for bytes from the socket, never empty. Invalidates what it returned before."""
        ...

    def received(self, count: int) -> Sequence[Any]:
        """The requests that the last `count` bytes completed: each a ReceivedRequest, for `begin`.

        Raises RemoteProtocolError if the connection cannot continue; its `reply` is sent as the last response.
        """
        ...

    def begin(self, request: Any) -> StartedRequest:
        """What is kept of a request until its response, for `encode`."""
        ...

    def allow(self, frame_bytes: int) -> None:
        """Receive at most this much of a request that has its own buffer, until the next call."""
        ...

    def use_buffer(self, buffer_bytes: int) -> None:
        """Resize the shared buffer."""
        ...

    def release(self) -> None:
        """Free the buffers: the connection is lost."""
        ...

    def encode(self, request: StartedRequest, message: Message, slices: Slices) -> Pieces | Coroutine[Any, Any, Pieces]:
        """The response to `request`; a coroutine if batches are converted first. An ApiError becomes the response."""
        ...

    def encode_error(self, request: StartedRequest, error: ApiError) -> Pieces:
        """The response to `request` if all of it failed with `error`."""
        ...


class WarmlogCodec(ServerConnection):
    """warmlog's own protocol: responses in any order, batches after the message."""

    keeps_order: ClassVar[bool] = False

    def __init__(self, config: BrokerConfig, endpoints: Mapping[int, Endpoint]) -> None:
        """The codec of one new connection; `endpoints` are by the keys of `APIS`."""
        super().__init__(
            max_frame_bytes=config.socket_request_max_bytes,
            buffer_bytes=SMALL_BUFFER_BYTES,
            max_header_bytes=config.request_header_max_bytes,
            max_items=config.request_max_items,
        )
        self._endpoints = endpoints

    def begin(self, request: Request | RefusedRequest) -> StartedRequest:
        started = StartedRequest(self._endpoints[request.api.key], request.correlation_id)
        if isinstance(request, Request) and isinstance(request.message, HandshakeRequest):
            started.client_name = request.message.client_name
        return started

    def encode(self, request: StartedRequest, message: Message, slices: Slices) -> Pieces:
        if not slices:
            return (self.respond(request.correlation_id, message),)
        pieces = [piece for of_partition in slices for piece in of_partition]
        return self.respond(request.correlation_id, message, slices_bytes(slices)), *pieces

    def encode_error(self, request: StartedRequest, error: ApiError) -> Pieces:
        return (self.refuse(request.correlation_id, error),)
