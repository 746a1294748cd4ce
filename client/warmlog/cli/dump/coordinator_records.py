"""Records of `__groups` and `__transactions` as JSON: the kind and fields of the key, and the fields of the value.

key: {"kind":"offset","group":"etl","topic_id":"c2…","partition":0} payload: {"offset":40,…,"committed_at_ms":17…}

Offsets that an open transaction commits are in a record of kind "pending" in `__groups`.
"""

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Any
from uuid import UUID

import msgspec

from warmlog.cli.dump.decoders import DECODERS, RecordDecoder
from warmlog_broker.coordinator.framework.decision import Record
from warmlog_broker.coordinator.readers import READERS

_DIRECTORY = re.compile(r"(\w+)-[0-9]+")
_TOPIC_ID_BYTES = 16

_decode_any = DECODERS["msgpack"]


def decoder_of_directory(directory: str) -> RecordDecoder | None:
    """Return the decoder for a directory of this name if it is a partition of a coordinator's topic, else None."""
    match = _DIRECTORY.fullmatch(directory)
    read = READERS.get(match[1]) if match else None
    return None if read is None else lambda key, value: _decode(read, key, value)


def _decode(read: Callable[[Record], Any], key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
    """Return key and value as JSON; those of an unknown kind or version, or that are damaged, field by field."""
    try:
        found = None if key is None else read(Record(key, value))
    except ValueError:
        found = None
    if found is None:
        return None if key is None else _decode_any(key), None if value is None else _decode_any(value)
    kind = type(found[0]).__name__.removesuffix("Key").lower()
    return _json({"kind": kind, **_plain(found[0])}), None if found[1] is None else _json(_plain(found[1]))


def _json(document: object) -> str:
    return msgspec.json.encode(document).decode()


def _plain(value: Any) -> Any:
    """Return structs and named tuples as dicts, and ids of topics as they are shown elsewhere."""
    if isinstance(value, msgspec.Struct):
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
