"""Decisions of a coordinator: records for its internal topic, and a result for the caller.

*Apply on commit*: a function that decides reads the state and changes nothing. Its records are appended; once they are
durable, each goes through `State.replay`, and then the caller gets the result. So the state is always what a replay of
the log results in, and a coordinator that loads the log continues where the last one stopped.
"""

from collections.abc import Sequence
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


def set_or_remove(known: dict[K, V], key: K, value: V | None) -> None:
    """Note what a record says of `key`; None for a tombstone."""
    if value is None:
        known.pop(key, None)
    else:
        known[key] = value


def holds_anything(_principal: str, _more_bytes: int) -> None:
    """As `Holdings.check` without limits."""
