"""How the keys and values of an internal topic are encoded.

A key is a msgpack array `[kind, fields…]`, a value an array `[version, fields…]`; new fields come at the end. Records
of unknown kinds or versions come from a newer version of warmlog: they are ignored, and compaction keeps them.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar

import msgspec

from warmlog_broker.coordinator.framework.decision import Record

VERSION = 1
"""Of all values: a field that is added needs no new one."""


class Key(msgspec.Struct, array_like=True, frozen=True, tag_field="kind", gc=False):
    """A key; the tag of each subclass is its kind."""


class Value(msgspec.Struct, array_like=True, frozen=True, tag_field="version", gc=False):
    """A value; the tag of each subclass is VERSION."""


K = TypeVar("K", bound=Key)

_encoder = msgspec.msgpack.Encoder()
_array_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


class RecordCodec(Generic[K]):
    """The records of one internal topic."""

    def __init__(self, values: Mapping[type[K], type[Value]]) -> None:
        """`values` has the type of the value for each type of key."""
        self._values = values
        self._key_decoder: msgspec.msgpack.Decoder[K] = msgspec.msgpack.Decoder(reduce(or_, values))
        self._value_decoders = {key: msgspec.msgpack.Decoder(value) for key, value in values.items()}

    def put(self, key: K, value: Value) -> Record:
        """Return the record that sets what `key` stands for to `value`, of the type that belongs to the key."""
        assert type(value) is self._values[type(key)]
        return Record(_encoder.encode(key), _encoder.encode(value))

    def remove(self, key: K) -> Record:
        """Return the tombstone for `key`."""
        return Record(_encoder.encode(key), None)

    def read(self, record: Record) -> tuple[K, Any] | None:
        """Return the key and the value of `record`, of the type that belongs to the key; None for a tombstone.

        None for a kind or version that is not known. ValueError for a value that does not match its version.
        """
        try:
            key = self._key_decoder.decode(record.key)
        except msgspec.DecodeError:
            return None
        if record.value is None:
            return key, None
        try:
            return key, self._value_decoders[type(key)].decode(record.value)
        except msgspec.DecodeError as error:
            if _version(record.value) not in (VERSION, None):
                return None
            raise ValueError(f"the value of {key} is damaged: {error}") from None


def _version(value: bytes) -> int | None:
    """Return the version of a value that cannot be read; None if it has none."""
    try:
        version, *_ = _array_decoder.decode(value)
        return msgspec.msgpack.decode(version, type=int)
    except (msgspec.DecodeError, ValueError):
        return None
