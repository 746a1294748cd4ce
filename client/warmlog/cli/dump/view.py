"""What `warmlog log dump` shows of a file: options, and how keys and values become text.

Decoders are text, JSON and big-endian numbers, as Kafka's of these names. Records of `__groups` and `__transactions`
are shown as JSON: the kind and fields of the key, and the fields of the value.

key: {"kind":"offset","group":"etl","topic_id":"c2…","partition":0} payload: {"offset":40,…,"committed_at_ms":17…}

Offsets that an open transaction commits are in a record of kind "pending" in `__groups`.
"""

import base64
import re
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import UUID

if TYPE_CHECKING:
    from warmlog_broker.coordinator.framework.decision import Record

_DIRECTORY = re.compile(r"(\w+)-[0-9]+")
_TOPIC_ID_BYTES = 16

Decoder = Callable[[bytes], str]
RecordDecoder = Callable[[bytes | None, bytes | None], tuple[str | None, str | None]]
"""Returns a record's key and value as text; None stays None."""


class View(NamedTuple):
    """How much of a file to show, and how to check an index."""

    is_deep: bool
    """Whether each record has a line."""
    shows_data: bool
    skips_metadata: bool
    """Whether record lines begin with the key."""
    max_bytes: int | None
    """Of a log file; None for all of it."""
    decode: RecordDecoder
    is_check_only: bool
    is_sanity_only: bool
    max_message_bytes: int
    """The largest batch to check an index entry against."""
    offset: int | None = None
    """Only the batch and the record with this offset."""


def decoder_of(keys: Decoder, values: Decoder) -> RecordDecoder:
    """Return what decodes keys and values each in its way."""
    return lambda key, value: (None if key is None else keys(key), None if value is None else values(value))


def _number_of(size_bytes: int) -> Decoder:
    def decode(data: bytes) -> str:
        if len(data) != size_bytes:
            return _undecoded(data)
        return str(int.from_bytes(data, "big", signed=True))

    return decode


def _as_json(protocol: Literal["json", "msgpack"]) -> Decoder:
    """Format as one line of JSON without spaces; bytes in msgpack become base64."""

    def decode(data: bytes) -> str:
        import msgspec

        try:
            parsed = msgspec.json.decode(data) if protocol == "json" else msgspec.msgpack.decode(data)
            return msgspec.json.encode(parsed).decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, ValueError):
            return _undecoded(data)

    return decode


def _undecoded(data: bytes) -> str:
    return "0x" + data.hex()


DECODERS: dict[str, Decoder] = {
    "string": lambda data: data.decode("utf-8", errors="replace"),
    "integer": _number_of(4),
    "long": _number_of(8),
    "hex": lambda data: data.hex(),
    "base64": lambda data: base64.b64encode(data).decode(),
    "json": _as_json("json"),
    "msgpack": _as_json("msgpack"),
}
"""The values of --key-decoder and --value-decoder. Bytes that one cannot decode are hex after 0x."""


def decoder_of_directory(directory: str) -> RecordDecoder | None:
    """Return the decoder for a directory of this name if it is a partition of a coordinator's topic, else None."""
    from warmlog_broker.coordinator.readers import READERS

    match = _DIRECTORY.fullmatch(directory)
    read = READERS.get(match[1]) if match else None
    return None if read is None else lambda key, value: _decode_record(read, key, value)


def _decode_record(
    read: "Callable[[Record], Any]", key: bytes | None, value: bytes | None
) -> tuple[str | None, str | None]:
    """Return key and value as JSON; those of an unknown kind or version, or that are damaged, field by field."""
    from warmlog_broker.coordinator.framework.decision import Record

    decode_any = DECODERS["msgpack"]
    try:
        found = None if key is None else read(Record(key, value))
    except ValueError:
        found = None
    if found is None:
        return None if key is None else decode_any(key), None if value is None else decode_any(value)
    kind = type(found[0]).__name__.removesuffix("Key").lower()
    return _json({"kind": kind, **_plain(found[0])}), None if found[1] is None else _json(_plain(found[1]))


def _json(document: object) -> str:
    import msgspec

    return msgspec.json.encode(document).decode()


def _plain(value: Any) -> Any:
    """Return structs and named tuples as dicts, and ids of topics as they are shown elsewhere."""
    if hasattr(value, "__struct_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, IntEnum):
        return value.name.lower()
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: _plain(field) for name, field in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes) and len(value) == _TOPIC_ID_BYTES:
        return str(UUID(bytes=value))
    return value
