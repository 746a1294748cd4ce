"""What a caller may pass as a record, and how large it is taken to be: checked before anything is buffered."""

from collections.abc import Mapping, Sequence

from warmlog_protocol.batch import HEADER_BYTES

Bytes = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]
Headers = Sequence[Header] | Mapping[str, bytes | None]

RECORD_OVERHEAD_BYTES = 16
"""The most that a record takes in a batch beside its bytes: three lengths of 4 and a timestamp's delta."""
HEADER_OVERHEAD_BYTES = 12
"""The most that msgpack adds to one header: two lengths and the pair."""
BATCH_OVERHEAD_BYTES = HEADER_BYTES + 64
"""A batch's header, and what starts its columns."""

MAX_TIMESTAMP_MS = (1 << 62) - 1


def as_bytes(what: str, value: object) -> bytes | None:
    """`value` as immutable bytes, or None; a mutable buffer is copied. TypeError, naming `what`, for anything else."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, Bytes):
        return bytes(value)
    hint = f"; encode it first: {what}.encode()" if isinstance(value, str) else ""
    raise TypeError(f"{what} must be bytes, bytearray, memoryview or None, not {type(value).__name__}{hint}")


def as_headers(headers: Headers | None) -> list[Header] | None:
    """`headers` as a list of pairs; None when there are none. TypeError for names that are no text and the like."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    checked: list[Header] = []
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"a header's name must be str, not {type(name).__name__}")
        checked.append((name, as_bytes(f"the value of header {name!r}", value)))
    return checked


def as_timestamp(timestamp_ms: object) -> int:
    """`timestamp_ms` if it is a number of milliseconds since 1970."""
    if not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms must be an int, not {type(timestamp_ms).__name__}")
    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ValueError(f"timestamp_ms {timestamp_ms} is not between 0 and {MAX_TIMESTAMP_MS}")
    return timestamp_ms


def content_bytes(value: bytes | None, key: bytes | None, headers: Sequence[Header] | None) -> int:
    """The most that what a record holds can take in a batch; RECORD_OVERHEAD_BYTES come to it."""
    size_bytes = len(value or b"") + len(key or b"")
    for name, header_value in headers or ():
        size_bytes += len(name.encode()) + len(header_value or b"") + HEADER_OVERHEAD_BYTES
    return size_bytes
