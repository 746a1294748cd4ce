"""What transactional clients have done and seen in a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple


class Outcome(Enum):
    """What a producer knows of a transaction."""

    UNKNOWN = auto()
    """All of it is there or nothing."""
    COMMITTED = auto()
    ABORTED = auto()


class GivenUpError(Exception):
    """A transaction that its program aborts."""


class Record(NamedTuple):
    """A record as a reader got it."""

    partition: int
    offset: int
    value: bytes


Views = Mapping[str, Sequence[Record]]
"""What there is in the end for readers of each isolation level, in the order of reading."""


@dataclass(slots=True)
class Transaction:
    """One transaction: its records, with their partitions."""

    records: list[tuple[int, bytes]] = field(default_factory=list)
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class TransactionNotes:
    """The whole history of transactions."""

    by_writer: dict[str, list[Transaction]] = field(default_factory=dict)
    seen: dict[str, list[Record]] = field(default_factory=dict)
    """What the reader of each isolation level got that lives through everything."""
    cut_off: list[str] = field(default_factory=list)
    """What these readers were told of logs that are shorter than they have read."""
    errors: dict[str, int] = field(default_factory=dict)
    """How often each error has ended a transaction."""

    def note_error(self, error: Exception) -> None:
        """Count an error that has ended a transaction."""
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1

    def count(self, outcome: Outcome) -> int:
        """Return the number of transactions with this outcome."""
        return sum(each.outcome is outcome for written in self.by_writer.values() for each in written)
