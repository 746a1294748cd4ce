"""The protocol of one connection, without the socket: bytes in, messages out.

The broker has a ServerConnection, the asyncio client and the blocking client a ClientConnection each. The caller gets a
buffer, lets the socket fill it, says how much was received, and handles what that completed::

    buffer = connection.get_buffer()
    for request in connection.received(sock.recv_into(buffer)):
        ...
        sock.sendall(connection.respond(request.correlation_id, response))

A connection begins with one Handshake; it tells the client which versions of each API the broker speaks. Each later
request uses the highest version that both know. Responses carry the correlation id of their request and may come in
any order.

The broker refuses a request whose body does not fit its message, or that names too much, with InvalidRequest and the
connection goes on: the frame says where the next one begins. It ends a connection that cannot go on: bytes that are not
a frame, a frame or header above its limit, an API or version that is unknown, anything but a valid Handshake at first,
a Produce with acks=0 that would have to be refused, and MAX_REFUSALS_IN_A_ROW refused requests in a row.
"""

from functools import cache
from typing import Any, NamedTuple

import msgspec

from warmlog_protocol import messages as m
from warmlog_protocol.codec.memory import ReusedMemory
from warmlog_protocol.errors import (
    ApiError,
    ErrorCode,
    InvalidRequest,
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedVersion,
    error_from_code,
)
from warmlog_protocol.wire.frames import (
    HEAD_BYTES,
    MAX_HEADER_BYTES,
    REQUEST_PREFIX_FIELDS,
    RESPONSE_PREFIX_FIELDS,
    Allocate,
    Frame,
    FrameBuffer,
    pack_frame,
    split_header,
)

DEFAULT_MAX_FRAME_BYTES = 100 * 1024 * 1024
"""As Kafka's `socket.request.max.bytes`."""
DEFAULT_MAX_ITEMS = 10_000
"""Topics or partitions that one request may name: each costs the broker up to some 20 µs."""
MAX_REFUSALS_IN_A_ROW = 20
"""A peer that sends this many malformed requests and no valid one between them speaks another protocol."""
CLIENT_BUFFER_BYTES = 256 * 1024
"""Responses to Produce are small; a Fetch response beyond this gets a buffer of its own."""


_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes from a peer: also for text that is not UTF-8 and for arrays nested too deeply."""


@cache
def _decoder(message: type[m.Message]) -> "msgspec.msgpack.Decoder[Any]":
    return msgspec.msgpack.Decoder(message)


class ResponseTooLarge(InvalidRequest):
    """The response would exceed the largest header that clients accept."""


class ReceivedBatch(msgspec.Struct, frozen=True, gc=False):
    """One batch, and its partition. Borrowed memory is valid only until the handler has returned."""

    topic: str
    partition: int
    batch: memoryview
    is_owned: bool
    """Whether nothing else writes to the memory of `batch`, so that it can be kept."""

    def owned(self) -> "ReceivedBatch":
        """Return the batch in memory that can be kept: copied if it is borrowed."""
        if self.is_owned:
            return self
        return ReceivedBatch(self.topic, self.partition, memoryview(bytes(self.batch)), is_owned=True)


class Request(NamedTuple):
    """A request as the broker received it. `payload` may be borrowed: see frames.Frame."""

    api: m.Api
    api_version: int
    correlation_id: int
    message: m.Message
    payload: memoryview
    is_payload_owned: bool

    @property
    def payload_bytes(self) -> int:
        return len(self.payload)

    def batches(self) -> list[ReceivedBatch]:
        """The batches of a Produce request. Raises InvalidRequest if their sizes do not add up to the payload."""
        assert isinstance(self.message, m.ProduceRequest)
        payload, is_owned = self.payload, self.is_payload_owned
        batches: list[ReceivedBatch] = []
        position = 0
        for wanted in self.message.partitions:
            if wanted.size_bytes < 0:
                raise InvalidRequest("a batch of a negative size")
            end = position + wanted.size_bytes
            batches.append(ReceivedBatch(wanted.topic, wanted.partition, payload[position:end], is_owned))
            position = end
        if position != len(payload):
            raise InvalidRequest(f"the batches have {position} bytes by the header, the payload has {len(payload)}")
        return batches


class RefusedRequest(NamedTuple):
    """A request that the broker could not read: `error` is its response. Its payload is skipped."""

    api: m.Api
    api_version: int
    correlation_id: int
    error: InvalidRequest
    payload_bytes: int = 0

    @property
    def message(self) -> m.Message:
        """Raises the error."""
        raise self.error

    def batches(self) -> list[ReceivedBatch]:
        """None, as there is no message."""
        return []


class ReceivedResponse(NamedTuple):
    """A response as the client received it: the message of the request's API, or the error that came instead."""

    correlation_id: int
    result: m.Message | ApiError
    payload: memoryview
    is_payload_owned: bool

    def owned(self) -> "ReceivedResponse":
        """Return the response with a payload that nothing else writes to: copied only if it is borrowed."""
        if self.is_payload_owned or not self.payload:
            return self
        return self._replace(payload=memoryview(bytes(self.payload)), is_payload_owned=True)


class ServerConnection(FrameBuffer):
    """The broker's side of one connection."""

    def __init__(
        self,
        *,
        max_frame_bytes: int,
        buffer_bytes: int,
        max_header_bytes: int = MAX_HEADER_BYTES,
        max_items: int = DEFAULT_MAX_ITEMS,
    ) -> None:
        """`max_items` is how many topics or partitions one request may name."""
        super().__init__(max_frame_bytes=max_frame_bytes, buffer_bytes=buffer_bytes, max_header_bytes=max_header_bytes)
        self._max_items = max_items
        self.is_open = False
        """Whether a Handshake was received."""
        self._refusals_in_a_row = 0

    def received(self, count: int) -> list[Request | RefusedRequest]:
        """The requests that the last `count` bytes completed.

        Raises RemoteProtocolError if the connection cannot continue (see the module's docstring). Its `reply` is the
        last response to send, if any.
        """
        return [self._request(frame) for frame in self.frames_received(count)]

    def respond(self, correlation_id: int, response: m.Message, payload_bytes: int = 0) -> bytes:
        """The frame of a response, up to its payload, which the caller sends next.

        Raises ResponseTooLarge if clients would refuse its header.
        """
        frame = pack_frame((correlation_id, ErrorCode.NONE), response, payload_bytes)
        if len(frame) > MAX_HEADER_BYTES:
            raise ResponseTooLarge(
                f"the response would have a header of {len(frame) - HEAD_BYTES} bytes, {MAX_HEADER_BYTES - HEAD_BYTES} "
                "are allowed: ask for fewer topics or partitions at a time"
            )
        return frame

    def refuse(self, correlation_id: int, error: ApiError) -> bytes:
        """The frame of an error that concerns the whole request."""
        return pack_frame((correlation_id, error.code), m.ErrorResponse(str(error)))

    def _request(self, frame: Frame) -> Request | RefusedRequest:
        (api_key, api_version, correlation_id), body = split_header(frame.header, REQUEST_PREFIX_FIELDS)
        api = m.APIS.get(api_key)
        if api is None or not api.min_version <= api_version <= api.max_version:
            known = "is not known" if api is None else f"is known in versions {api.min_version} to {api.max_version}"
            raise self._refusal(correlation_id, UnsupportedVersion(f"API {api_key} version {api_version}: it {known}"))
        if not self.is_open and api.key != m.ApiKey.HANDSHAKE:
            raise self._refusal(correlation_id, InvalidRequest("a connection begins with a Handshake"))
        try:
            message: m.Message = _decoder(api.request).decode(body)
            if len(body) > self._max_items:  # an item takes a byte at least
                self._check_items(correlation_id, message)
        except _MALFORMED as error:
            return self._refused(api, api_version, correlation_id, InvalidRequest(f"{api.request.__name__}: {error}"))
        except InvalidRequest as error:
            return self._refused(api, api_version, correlation_id, error)
        self.is_open = True
        self._refusals_in_a_row = 0
        return Request(api, api_version, correlation_id, message, frame.payload, frame.is_payload_owned)

    def _check_items(self, correlation_id: int, message: m.Message) -> None:
        """Raise InvalidRequest for too many items; RemoteProtocolError if that request gets no response.

        Members of a job are not counted: a job may have more of them.
        """
        for name in message.__struct_fields__:
            items = getattr(message, name)
            if not isinstance(items, list) or not items or isinstance(items[0], m.JobMember):
                continue
            count = len(items)
            if isinstance(items[0], m.TopicPartitions):
                count = max(count, sum(len(each.partitions) for each in items))
            if count > self._max_items:
                error = InvalidRequest(f"{count} {name} in one request, {self._max_items} are allowed")
                if isinstance(message, m.ProduceRequest) and message.acks == 0:
                    raise self._refusal(correlation_id, error)
                raise error

    def _refused(self, api: m.Api, api_version: int, correlation_id: int, error: InvalidRequest) -> RefusedRequest:
        """Return the refused request; RemoteProtocolError if it is one too many, or the first of the connection."""
        self._refusals_in_a_row += 1
        if not self.is_open or self._refusals_in_a_row >= MAX_REFUSALS_IN_A_ROW:
            raise self._refusal(correlation_id, error)
        return RefusedRequest(api, api_version, correlation_id, error)

    def _refusal(self, correlation_id: int, error: ApiError) -> RemoteProtocolError:
        kind = f"requests refused as {error.code.name}"
        return RemoteProtocolError(str(error), self.refuse(correlation_id, error), kind=kind)


class ClientConnection(FrameBuffer):
    """The client's side of one connection."""

    def __init__(
        self,
        *,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        buffer_bytes: int = CLIENT_BUFFER_BYTES,
        allocate: Allocate | None = None,
    ) -> None:
        """`allocate`: for responses that are larger than `buffer_bytes`."""
        self._reused = ReusedMemory()
        super().__init__(max_frame_bytes=max_frame_bytes, buffer_bytes=buffer_bytes, allocate=allocate or self._reused)
        self._next_correlation_id = 0
        self._waiting: dict[int, m.Api] = {}
        self._versions: dict[int, int] = {m.ApiKey.HANDSHAKE: m.APIS[m.ApiKey.HANDSHAKE].max_version}
        self.broker: m.HandshakeResponse | None = None
        """The broker's response to the Handshake; None before it."""

    def request(self, message: m.Message, payload_bytes: int = 0, *, has_response: bool = True) -> tuple[int, bytes]:
        """A correlation id and the frame of a request, up to its payload, which the caller sends next.

        Raises LocalProtocolError before the response to the Handshake, UnsupportedVersion if the broker does not speak
        the API.
        """
        api = m.API_OF_REQUEST[type(message)]
        version = self._versions.get(api.key)
        if version is None:
            if self.broker is None:
                raise LocalProtocolError(f"{api.key.name} before the Handshake got its response")
            name = api.key.name
            raise UnsupportedVersion(
                f"broker {self.broker.broker_version} does not speak {name} in a version known here"
            )
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        if has_response:
            self._waiting[correlation_id] = api
        return correlation_id, pack_frame((api.key, version, correlation_id), message, payload_bytes)

    def received(self, count: int) -> list[ReceivedResponse]:
        """The responses that the last `count` bytes completed. Raises RemoteProtocolError if they are malformed."""
        frames = self.frames_received(count)
        if self._reused.buffers and frames and not frames[-1].is_payload_owned:
            self._reused.shrink()
        return [self._response(frame) for frame in frames]

    def release(self) -> None:
        """Free all memory, as far as nothing refers to it."""
        super().release()
        self._reused.release()

    def _response(self, frame: Frame) -> ReceivedResponse:
        (correlation_id, error_code), body = split_header(frame.header, RESPONSE_PREFIX_FIELDS)
        api = self._waiting.pop(correlation_id, None)
        if api is None:
            raise RemoteProtocolError(f"a response to request {correlation_id}, which was never sent")
        try:
            if error_code != ErrorCode.NONE:
                error = error_from_code(error_code, _decoder(m.ErrorResponse).decode(body).message)
                return ReceivedResponse(correlation_id, error, frame.payload, frame.is_payload_owned)
            message: m.Message = _decoder(api.response).decode(body)
        except _MALFORMED as error:
            raise RemoteProtocolError(f"{api.response.__name__}: {error}") from None
        if isinstance(message, m.HandshakeResponse):
            self.broker = message
            for theirs in message.apis:  # the highest version that both sides speak
                if (ours := m.APIS.get(theirs.api_key)) is not None:
                    highest = min(ours.max_version, theirs.max_version)
                    if highest >= max(ours.min_version, theirs.min_version):
                        self._versions[theirs.api_key] = highest
        return ReceivedResponse(correlation_id, message, frame.payload, frame.is_payload_owned)
