"""The headers of one record: named values beside its key and value.

In columns they are one msgpack array of [name, value] pairs, or no bytes if there are none; names are UTF-8 strings,
values binary or nil. Order is kept and names may repeat, as in Kafka.
"""

from collections.abc import Sequence

import msgspec

from warmlog_protocol.codec.msgpack import encode
from warmlog_protocol.errors import CorruptBatch

Header = tuple[str, bytes | None]

_decode = msgspec.msgpack.Decoder(tuple[Header, ...]).decode


def encode_headers(headers: Sequence[Header] | None) -> bytes:
    """Encode `headers`, as no bytes if there are none. TypeError for a name or value of another type."""
    if not headers:
        return b""
    for name, value in headers:
        if not isinstance(name, str) or not (value is None or isinstance(value, bytes | bytearray | memoryview)):
            raise TypeError(f"a header is a str and bytes or None, not {name!r:.40} and {value!r:.40}")
    return encode(headers)


def decode_headers(data: bytes) -> tuple[Header, ...]:
    """Decode the headers in `data`; CorruptBatch if it is not an array of pairs of a name and a value."""
    if not data:
        return ()
    try:
        return _decode(data)
    except (msgspec.DecodeError, ValueError) as error:  # ValueError: a name that is not UTF-8
        raise CorruptBatch(f"record headers: {error}") from error
