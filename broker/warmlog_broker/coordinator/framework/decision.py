"""Decisions of a coordinator: records for its internal topic, and a result for the caller.

*Apply on commit*: a function that decides reads the state and changes nothing. Its records are appended; once they are
durable, each goes through `State.replay`, and then the caller gets the result. So the state is always what a replay of
the log results in, and a coordinator that loads the log continues where the last one stopped.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")


class Record(NamedTuple):
    """A record of an internal topic. A value of None is a tombstone: it removes what the key stands for."""

    key: bytes
    value: bytes | None


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
        self.held: Counter[str] = Counter()
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

    def _hold(self, owner: str, more_bytes: int) -> None:
        self.held[owner] += more_bytes
        if not self.held[owner]:
            del self.held[owner]


def set_or_remove(known: dict[K, V], key: K, value: V | None) -> None:
    """Note what a record says of `key`; None for a tombstone."""
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value


def holds_anything(_principal: str, _more_bytes: int) -> None:
    """As `Holdings.check` without limits."""
