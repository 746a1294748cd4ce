"""The broker's side of a connection in Kafka's protocol, without the socket: bytes in, requests out.

::

    frame            := i32 size | header | body             size counts what follows it; big-endian
    request header   := i16 api_key | i16 api_version | i32 correlation_id | nullable string client_id | tags
    response header  := i32 correlation_id | tags

Only flexible versions have the tags, and the response to ApiVersions never has them: a client reads it before it knows
the versions of the broker. Its request is accepted in every version, of an unknown one only the header is read; the
response in the oldest form tells the client what to send.

Unlike warmlog's own protocol, Kafka's has no error that fits every request: what cannot be read ends the connection.
"""

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from warmlog_protocol.errors import RemoteProtocolError
from warmlog_protocol.kafka.compiled import reader, skip_tags, writer
from warmlog_protocol.kafka.schema import API, Api
from warmlog_protocol.wire.connection import ReceivedBatch
from warmlog_protocol.wire.frames import SIZE_BYTES, Frame, FrameBuffer, other_protocol

API_VERSIONS, PRODUCE = API["ApiVersions"].key, API["Produce"].key
LARGE_REQUESTS = {API[name].key for name in ("JoinGroup", "SyncGroup")}
"""The leader of a group sends what all members get."""
CORRELATION_BYTES = 4
LARGE_FACTOR = 8
"""How many times as large these may be as others."""

_HEAD = struct.Struct(">ihh")
_HEADER = struct.Struct(">hhih")
_RESPONSE_HEAD = struct.Struct(">ii")
_OURS = "Kafka's protocol"


class KafkaRequest(NamedTuple):
    """A request. `records` is what the slices in a Produce request refer to, which is borrowed unless it is owned."""

    api: Api
    version: int
    correlation_id: int
    client_id: str
    message: Any
    records: memoryview
    is_owned: bool

    @property
    def payload_bytes(self) -> int:
        return len(self.records)

    def batches(self) -> list[ReceivedBatch]:
        """The record sets of a Produce request in its order, which may be empty; a topic has a name or an id."""
        return [
            ReceivedBatch(topic.name, part.index, self.records[part.records or slice(0)], self.is_owned)
            for topic in self.message.topic_data
            for part in topic.partition_data
        ]


class KafkaConnection(FrameBuffer):
    """The broker's side of one connection."""

    PREFIX_BYTES = SIZE_BYTES

    def __init__(
        self,
        served: Mapping[int, Api],
        *,
        max_frame_bytes: int,
        buffer_bytes: int,
        max_request_bytes: int,
        max_items: int,
    ) -> None:
        """`max_request_bytes` is for requests without records, `max_items` for the elements of a request's arrays."""
        super().__init__(max_frame_bytes=max_frame_bytes, buffer_bytes=buffer_bytes)
        self._served = served
        self._max_request_bytes = max_request_bytes
        self._max_items = max_items
        self.is_open = False
        """Whether a request of a known kind and version was received, or its beginning: the peer speaks this protocol.

        Unlike warmlog's, this protocol has no Handshake: the first request may be a large one.
        """

    def received(self, count: int) -> list[KafkaRequest]:
        """The requests that the last `count` bytes completed.

        Raises RemoteProtocolError if the connection cannot continue: bytes that are no request, a request of an unknown
        kind or version, or one above a limit.
        """
        return [self._request(frame) for frame in self.frames_received(count)]

    def respond(self, api: Api, version: int, correlation_id: int, message: Any, records_bytes: int = 0) -> list[bytes]:
        """The frame of a response, cut where records are to be inserted, which have `records_bytes` in all.

        In an unknown version of ApiVersions it has the oldest form.
        """
        if version not in api.versions:
            version = api.versions.first
        pieces = writer(api.name, "response", version)(message)
        tags = b"\0" if version in api.flexible and api.key != API_VERSIONS else b""
        size = CORRELATION_BYTES + len(tags) + sum([len(piece) for piece in pieces]) + records_bytes
        pieces[0] = _RESPONSE_HEAD.pack(size, correlation_id) + tags + pieces[0]
        return pieces

    def _next_sizes(self) -> tuple[int, int] | None:
        """As in the base class; the header is part of the payload."""
        if self._end - self._start < _HEAD.size:
            return None
        size, key, version = _HEAD.unpack_from(self._buffer, self._start)
        limit = self._max_frame_bytes if key == PRODUCE else self._max_request_bytes
        if key in LARGE_REQUESTS:
            limit *= LARGE_FACTOR
        if not _HEADER.size <= size <= limit:
            head = bytes(self._buffer[self._start : self._start + _HEAD.size])
            raise RemoteProtocolError(
                f"a request of {size} bytes, {_HEADER.size} to {limit} are accepted{other_protocol(head, _OURS)}",
                kind="frames too large",
            )
        api = self._served.get(key)
        if api is not None and version in api.versions:
            self.is_open = True
        return size + SIZE_BYTES, 0

    def _request(self, frame: Frame) -> KafkaRequest:
        data = frame.payload
        key, version, correlation_id, id_bytes = _HEADER.unpack_from(data)
        api = self._served.get(key)
        if api is None or (version not in api.versions and key != API_VERSIONS):
            ours = "is not known" if api is None else f"is known in {api.versions.first} to {api.versions.last}"
            name = f"API {key}" if api is None else api.name
            # A frame of warmlog's own protocol has the size of its header in the place of key and version.
            hint = ": perhaps the peer speaks warmlog's protocol" if key == PRODUCE and version > 0 else ""
            raise RemoteProtocolError(f"{name} version {version}: it {ours}{hint}", kind="requests of unknown versions")
        if version not in api.versions:
            self.is_open = True
            return KafkaRequest(api, version, correlation_id, "", api.request(api_version=version), data[:0], True)
        try:
            position = _HEADER.size + max(id_bytes, 0)
            client_id = str(data[_HEADER.size : position], "utf-8")
            if version in api.flexible:
                position = skip_tags(data, position)
        except (IndexError, UnicodeDecodeError) as error:
            raise RemoteProtocolError(f"the header of {api.name}: {error}") from None
        has_records = key == PRODUCE
        body = data[position:] if has_records else bytes(data[position:])
        message = reader(api.name, "request", version)(body, self._max_items)
        records = body if isinstance(body, memoryview) else data[:0]
        return KafkaRequest(api, version, correlation_id, client_id, message, records, frame.is_payload_owned)
