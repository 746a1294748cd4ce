"""Decisions of a coordinator: records for its internal topic, and a result for the caller.

*Apply on commit*: a function that decides reads the state and changes nothing. Its records are appended; once they are
durable, each goes through `State.replay`, and then the caller gets the result. So the state is always what a replay of
the log results in, and a coordinator that loads the log continues where the last one stopped.

The key of a record is a msgpack array `[kind, fields…]`, its value an array `[version, fields…]`; new fields come at
the end. Records of unknown kinds or versions come from a newer version of warmlog: they are ignored, and compaction
keeps them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

VERSION = 1
"""Of all values: a field that is added needs no new one."""

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")

_encoder = msgspec.msgpack.Encoder()
_array_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])


class Record(NamedTuple):
    """A record of an internal topic. A value of None is a tombstone: it removes what the key stands for."""

    key: bytes
    value: bytes | None


class Key(msgspec.Struct, array_like=True, frozen=True, tag_field="kind", gc=False):
    """A key; the tag of each subclass is its kind."""


class Value(msgspec.Struct, array_like=True, frozen=True, tag_field="version", gc=False):
    """A value; the tag of each subclass is VERSION."""


KeyType = TypeVar("KeyType", bound=Key)


class RecordCodec(Generic[KeyType]):
    """The records of one internal topic."""

    def __init__(self, values: Mapping[type[KeyType], type[Value]]) -> None:
        """`values` has the type of the value for each type of key."""
        self._values = values
        self._key_decoder: msgspec.msgpack.Decoder[KeyType] = msgspec.msgpack.Decoder(reduce(or_, values))
        self._value_decoders = {key: msgspec.msgpack.Decoder(value) for key, value in values.items()}

    def put(self, key: KeyType, value: Value) -> Record:
        """Return the record that sets what `key` stands for to `value`, of the type that belongs to the key."""
        assert type(value) is self._values[type(key)]
        return Record(_encoder.encode(key), _encoder.encode(value))

    def remove(self, key: KeyType) -> Record:
        return Record(_encoder.encode(key), None)

    def read(self, record: Record) -> tuple[KeyType, Any] | None:
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


class PartitionId(NamedTuple):
    """A partition of the topic with this id. Names of topics are not used, since they may be given again."""

    topic_id: bytes
    number: int


@dataclass(frozen=True, slots=True)
class Decision(Generic[R]):
    """`result` is valid once `records` are durable and replayed, in their order and as one batch."""

    records: Sequence[Record]
    result: R


class State(Protocol):
    """What the records of one partition result in."""

    def replay(self, record: Record) -> None:
        """Change the state by the next record of the log."""
        ...


class OwnedState(Generic[V]):
    """What records result in, by name: each counts for the principal that created it."""

    def __init__(self) -> None:
        self._found: dict[str, V] = {}
        self.held: dict[str, int] = {}
        """What they take in memory, in bytes, by the principals that created them."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._found == other._found

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[V]:
        return iter(self._found.values())

    def get(self, name: str) -> V | None:
        """Return what is known of a group or a transactional id."""
        return self._found.get(name)

    def _recount(self, owner: str, before_bytes: int, new_owner: str, after_bytes: int) -> None:
        """Note that what `owner` held is `new_owner`'s, and takes `after_bytes`."""
        if owner != new_owner:
            self._hold(owner, -before_bytes)
            self._hold(new_owner, after_bytes)
        elif before_bytes != after_bytes:
            self._hold(owner, after_bytes - before_bytes)

    def _hold(self, owner: str, more_bytes: int) -> None:
        held_bytes = self.held.get(owner, 0) + more_bytes
        if held_bytes:
            self.held[owner] = held_bytes
        else:
            self.held.pop(owner, None)


def set_or_remove(known: dict[K, V], key: K, value: V | None) -> None:
    """Note what a record says of `key`; None for a tombstone."""
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value


def holds_anything(_principal: str, _more_bytes: int) -> None:
    """As `Holdings.check` without limits."""
