"""Checks what a caller passes as a record, before it is buffered, and bounds its size."""

from collections.abc import Mapping, Sequence

from warmlog_protocol.batch import HEADER_BYTES

Bytes = bytes | bytearray | memoryview
Header = tuple[str, bytes | None]
Headers = Sequence[Header] | Mapping[str, bytes | None]

RECORD_OVERHEAD_BYTES = 16
"""Upper bound on what a record takes in a batch beside its content: three lengths and a timestamp delta, 4 each."""
HEADER_OVERHEAD_BYTES = 12
"""Upper bound on what msgpack adds to a header: two lengths and the pair."""
BATCH_OVERHEAD_BYTES = HEADER_BYTES + 64
"""A batch's header, and the descriptions of its columns."""

MAX_TIMESTAMP_MS = (1 << 62) - 1


def as_bytes(what: str, value: object) -> bytes | None:
    """Return `value` as immutable bytes, or None; a mutable buffer is copied. Else raise TypeError, naming `what`."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, Bytes):
        return bytes(value)
    hint = f"; encode it first: {what}.encode()" if isinstance(value, str) else ""
    raise TypeError(f"{what} must be bytes, bytearray, memoryview or None, not {type(value).__name__}{hint}")


def as_headers(headers: Headers | None) -> list[Header] | None:
    """Return `headers` as a list of pairs, None if there are none. TypeError for a name or value of another type."""
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
    """Return `timestamp_ms` if it is a valid number of milliseconds since 1970; else TypeError or ValueError."""
    if not isinstance(timestamp_ms, int):
        raise TypeError(f"timestamp_ms must be an int, not {type(timestamp_ms).__name__}")
    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise ValueError(f"timestamp_ms {timestamp_ms} is not between 0 and {MAX_TIMESTAMP_MS}")
    return timestamp_ms


def as_partition(partition: object) -> None:
    """Raise TypeError unless `partition` is a number, or None."""
    if partition is not None and (not isinstance(partition, int) or isinstance(partition, bool)):
        raise TypeError(f"partition={partition!r}: an int or None expected, not {type(partition).__name__}")


def content_bytes(value: bytes | None, key: bytes | None, headers: Sequence[Header] | None) -> int:
    """Upper bound on a record's encoded payload, without RECORD_OVERHEAD_BYTES."""
    size_bytes = len(value or b"") + len(key or b"")
    for name, header_value in headers or ():
        size_bytes += len(name.encode()) + len(header_value or b"") + HEADER_OVERHEAD_BYTES
    return size_bytes
