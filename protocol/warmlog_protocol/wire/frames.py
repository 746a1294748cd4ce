"""Frames: messages and batches on the wire.

::

    frame           := u32 size | u32 header_size | header | payload        size counts what follows it; big-endian
    request header  := msgpack [api_key, api_version, correlation_id, body…]
    response header := msgpack [correlation_id, error_code, body…]
    payload         := record batches, one after another; the header gives the byte count of each partition

`body…` are the fields of a message (messages/), in place: header and message are one msgpack array. All sizes are
checked before anything is allocated: a frame that claims more than `max_frame_bytes` ends the connection after eight
bytes of it.
"""

from collections.abc import Callable
from struct import Struct as ByteLayout
from typing import ClassVar, NamedTuple

from msgspec.structs import astuple

from warmlog_protocol.codec.memory import zeroed_memory
from warmlog_protocol.codec.msgpack import encode
from warmlog_protocol.errors import RemoteProtocolError
from warmlog_protocol.messages import Message

SIZE_BYTES = 4
HEAD_BYTES = 8
REQUEST_PREFIX_FIELDS = 3
RESPONSE_PREFIX_FIELDS = 2
MAX_HEADER_BYTES = 8 * 1024 * 1024
"""The largest header of a response: it names topics and partitions only, and 8 MiB hold some 100,000 of them."""

_HEAD = ByteLayout(">II")
_HTTP_WORDS = (b"HTTP", b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ", b"CONNECT ", b"PRI * ")
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")
"""Type and major version of an alert and of a handshake: https://www.rfc-editor.org/rfc/rfc8446#section-5.1"""
_LAST_KAFKA_KEY, _LAST_KAFKA_VERSION = 100, 30
"""With some room: a peer that speaks Kafka's protocol is named in the log."""
_LEAST_KAFKA_BYTES = 8
"""Of a request: key, version and correlation id."""
OF_KAFKA = "clients of Kafka"
"""The kind of the error that such a peer causes."""

# msgpack's type bytes, https://github.com/msgpack/msgpack/blob/master/spec.md
_FIXARRAY, _FIXARRAY_END, _ARRAY16, _ARRAY32 = 0x90, 0x9F, 0xDC, 0xDD
_SHORT_ARRAY_HEADS = [bytes((kind,)) for kind in range(_FIXARRAY, _FIXARRAY_END + 1)]
_FIXINT_END, _NEGATIVE_FIXINT = 0x7F, 0xE0
_INT_BYTES = {0xCC: (1, False), 0xCD: (2, False), 0xCE: (4, False), 0xCF: (8, False)}
_INT_BYTES |= {0xD0: (1, True), 0xD1: (2, True), 0xD2: (4, True), 0xD3: (8, True)}


class Frame(NamedTuple):
    """One frame as received.

    `payload` may point into the receive buffer and is valid until the next `get_buffer`, unless `is_payload_owned`:
    nothing else writes to its memory then.
    """

    header: bytes
    payload: memoryview
    is_payload_owned: bool


def pack_frame(prefix: tuple[int, ...], message: Message, payload_bytes: int = 0) -> bytes:
    """The head and header of a frame; the caller sends `payload_bytes` of payload after it."""
    header = encode((*prefix, *astuple(message)))
    return _HEAD.pack(SIZE_BYTES + len(header) + payload_bytes, len(header)) + header


def split_header(header: bytes, prefix_fields: int) -> tuple[tuple[int, ...], bytes]:
    """The first `prefix_fields` integers of `header`, and the rest as a msgpack array of its own.

    Parsed by hand because the rest may be malformed: a request is refused by its correlation id then, and the
    connection goes on. Raises RemoteProtocolError if the header is not an array that begins with these integers.
    """
    try:
        fields, position = _read_array_head(header)
        if fields < prefix_fields:
            raise RemoteProtocolError(f"a header of {fields} fields, at least {prefix_fields} expected")
        prefix = []
        for _ in range(prefix_fields):
            number = header[position]
            position += 1
            if number > _FIXINT_END:
                number, position = _read_long_int(header, position)
            prefix.append(number)
    except IndexError:
        raise RemoteProtocolError(f"a header of {len(header)} bytes ends within its first fields") from None
    return tuple(prefix), _array_head(fields - prefix_fields) + header[position:]


def _array_head(fields: int) -> bytes:
    if fields <= _FIXARRAY_END - _FIXARRAY:
        return _SHORT_ARRAY_HEADS[fields]
    if fields <= 0xFFFF:
        return bytes((_ARRAY16,)) + fields.to_bytes(2, "big")
    return bytes((_ARRAY32,)) + fields.to_bytes(4, "big")


def _read_array_head(data: bytes) -> tuple[int, int]:
    kind = data[0]
    if _FIXARRAY <= kind <= _FIXARRAY_END:
        return kind - _FIXARRAY, 1
    if kind == _ARRAY16:
        return int.from_bytes(data[1:3], "big"), 3
    if kind == _ARRAY32:
        return int.from_bytes(data[1:5], "big"), 5
    raise RemoteProtocolError(f"a header that is not a msgpack array (first byte 0x{kind:02x})")


def _read_long_int(data: bytes, position: int) -> tuple[int, int]:
    """Return the integer whose type byte is before `position` (not a positive fixint), and the position after it."""
    kind = data[position - 1]
    if kind >= _NEGATIVE_FIXINT:
        return kind - 0x100, position
    layout = _INT_BYTES.get(kind)
    if layout is None:
        raise RemoteProtocolError(f"a header field that is not an integer (type byte 0x{kind:02x})")
    size, is_signed = layout
    end = position + size
    if end > len(data):
        raise IndexError
    return int.from_bytes(data[position:end], "big", signed=is_signed), end


def other_protocol(head: bytes, expected: str = "warmlog's protocol") -> str:
    """The end of an error message: what a peer speaks whose first bytes are `head`; empty if that is unknown."""
    if head[:2] in _TLS_RECORDS:
        return f": the peer speaks TLS, not {expected}"
    if head.startswith(_HTTP_WORDS):
        return f": the peer speaks HTTP, not {expected}"
    if head.isascii() and head[:SIZE_BYTES].decode().isprintable():
        return f": the peer sends text ({head.decode()!r}), not {expected}"
    return ""


def _is_of_kafka(size: int, header_size: int) -> bool:
    """Whether what should be the size of a header is a key of Kafka's APIs and its version, in a request of `size`."""
    is_key_and_version = header_size >> 16 <= _LAST_KAFKA_KEY and header_size & 0xFFFF <= _LAST_KAFKA_VERSION
    return is_key_and_version and size >= _LEAST_KAFKA_BYTES


Allocate = Callable[[int], memoryview]
"""Allocates this many bytes of writable memory, with any content."""


class FrameBuffer:
    """Bytes from a socket in, whole frames out; the socket writes straight into `get_buffer()`.

    Frames that fit share one buffer of `buffer_bytes`, so that one read from the socket can bring many. A larger one
    gets a buffer of exactly its size, and its payload is passed on without a copy. `allow` limits how much of it is
    received. A subclass for another protocol has its own heads: it has PREFIX_BYTES and `_next_sizes`.
    """

    PREFIX_BYTES: ClassVar[int] = HEAD_BYTES
    """What of a frame is not passed on."""

    def __init__(
        self,
        *,
        max_frame_bytes: int,
        buffer_bytes: int,
        max_header_bytes: int = MAX_HEADER_BYTES,
        allocate: Allocate = zeroed_memory,
    ) -> None:
        """`allocate`: for the buffers of frames that do not fit."""
        self._max_frame_bytes = max_frame_bytes
        self._max_header_bytes = max_header_bytes
        self._allocate = allocate
        self._allowed_bytes = max_frame_bytes
        self._shared = memoryview(bytearray(max(buffer_bytes, HEAD_BYTES)))
        self._buffer = self._shared
        self._start = 0
        self._end = 0

    def get_buffer(self) -> memoryview:
        """Room for the next bytes, never empty. Payloads in the shared buffer are invalid from here on."""
        if self._buffer is self._shared:
            self._make_room()
            if self._buffer is self._shared:
                return self._buffer[self._end :]
        return self._buffer[self._end : self._allowed_bytes]

    def allow(self, frame_bytes: int) -> None:
        """Receive at most this much of a frame that has its own buffer: more than was received. The default is all."""
        self._allowed_bytes = frame_bytes

    def frames_received(self, count: int) -> list[Frame]:
        """The frames that are complete with the last `count` bytes written into `get_buffer()`.

        Raises RemoteProtocolError if a frame's sizes are impossible or above the limit.
        """
        self._end += count
        frames = []
        while (sizes := self._next_sizes()) is not None and self._end - self._start >= sizes[0]:
            frames.append(self._take(*sizes))
        return frames

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame."""
        return self._end - self._start

    @property
    def buffer_bytes(self) -> int:
        """The size of the shared buffer."""
        return len(self._shared)

    @property
    def oversize_bytes(self) -> int:
        """The size of the incomplete frame if it has a buffer of its own, or gets one by `get_buffer`; else 0."""
        if self._buffer is not self._shared:
            return len(self._buffer)
        sizes = self._next_sizes()
        return sizes[0] if sizes is not None and sizes[0] > len(self._shared) else 0

    def use_buffer(self, buffer_bytes: int) -> None:
        """Replace the shared buffer by one of this size, or of what is pending if that is more.

        Payloads in the old one stay valid: nothing writes to it any more.
        """
        is_in_shared = self._buffer is self._shared
        pending = self._shared[self._start : self._end] if is_in_shared else memoryview(b"")
        self._shared = memoryview(bytearray(max(buffer_bytes, len(pending) + 1, HEAD_BYTES)))
        if is_in_shared:
            self._shared[: len(pending)] = pending
            self._buffer, self._start, self._end = self._shared, 0, len(pending)

    def release(self) -> None:
        """Free all memory: the connection is lost, but references to this object may remain for a while."""
        self._shared = self._buffer = memoryview(bytearray(HEAD_BYTES))
        self._start = self._end = 0

    def _next_sizes(self) -> tuple[int, int] | None:
        """Bytes of the next frame, its size field included, and of its header; None if its head is incomplete."""
        if self._end - self._start < HEAD_BYTES:
            return None
        size, header_size = _HEAD.unpack_from(self._buffer, self._start)
        frame_size = size + SIZE_BYTES
        if frame_size > self._max_frame_bytes:
            raise RemoteProtocolError(
                f"a frame of {frame_size} bytes; at most {self._max_frame_bytes} are accepted"
                f"{other_protocol(bytes(self._buffer[self._start : self._start + HEAD_BYTES]))}",
                kind="frames too large",
            )
        if header_size > size - SIZE_BYTES or header_size > self._max_header_bytes:
            if _is_of_kafka(size, header_size):
                raise RemoteProtocolError("the peer speaks Kafka's protocol, not warmlog's", kind=OF_KAFKA)
            raise RemoteProtocolError(
                f"a header of {header_size} bytes in a frame of {frame_size}; at most {self._max_header_bytes} allowed"
            )
        return frame_size, header_size

    def _take(self, size: int, header_size: int) -> Frame:
        is_owned = self._buffer is not self._shared
        header_start = self._start + self.PREFIX_BYTES
        payload_start = header_start + header_size
        self._start += size
        header, payload = self._buffer[header_start:payload_start], self._buffer[payload_start : self._start]
        if is_owned:
            self._buffer, self._start, self._end = self._shared, 0, 0
        return Frame(bytes(header), payload, is_owned)

    def _make_room(self) -> None:
        pending = self._end - self._start
        sizes = self._next_sizes()
        if sizes is not None and sizes[0] > len(self._shared):
            self._buffer = self._allocate(sizes[0])
            self._buffer[:pending] = self._shared[self._start : self._end]
        elif sizes is not None and self._start + sizes[0] <= len(self._shared):
            return
        else:
            self._shared[:pending] = bytes(self._shared[self._start : self._end])
        self._start, self._end = 0, pending
