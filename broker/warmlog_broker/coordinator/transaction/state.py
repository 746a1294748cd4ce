"""What the records of one partition of `__transactions` result in: transactional ids and their transactions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from warmlog_broker.coordinator.framework.decision import Record
from warmlog_broker.coordinator.transaction.records import GroupKey, IdKey, IdValue, PartitionKey, read


class Producer(NamedTuple):
    """One incarnation of a producer."""

    producer_id: int
    epoch: int


class Enrolled(NamedTuple):
    """A partition of the topic with this id."""

    topic_id: bytes
    number: int


@dataclass(slots=True)
class Transaction:
    """A transactional id, and what belongs to its transaction until that has ended everywhere."""

    transactional_id: str
    value: IdValue
    partitions: dict[Enrolled, str] = field(default_factory=dict)
    """With the names of their topics."""
    groups: dict[str, None] = field(default_factory=dict)

    @property
    def producer(self) -> Producer:
        return Producer(self.value.producer_id, self.value.epoch)

    @property
    def previous(self) -> Producer:
        """Whom the last change was made for."""
        return Producer(self.value.previous_producer_id, self.value.previous_epoch)


class Transactions:
    """The transactional ids of one partition of `__transactions`: what a replay of its records results in."""

    def __init__(self) -> None:
        self._transactions: dict[str, Transaction] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transactions) and self._transactions == other._transactions

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._transactions)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self._transactions.values())

    def get(self, transactional_id: str) -> Transaction | None:
        """Return what is known of a transactional id."""
        return self._transactions.get(transactional_id)

    def replay(self, record: Record) -> None:
        """Change the state by the next record of the log. ValueError for a damaged record."""
        entry = read(record)
        if entry is None:
            return
        key, value = entry
        found = self._transactions.get(key.transactional_id)
        match key:
            case IdKey():
                if value is None:
                    self._transactions.pop(key.transactional_id, None)
                elif found is None:
                    self._transactions[key.transactional_id] = Transaction(key.transactional_id, value)
                else:
                    found.value = value
            case PartitionKey() if found is not None:
                enrolled = Enrolled(key.topic_id, key.partition)
                if value is None:
                    found.partitions.pop(enrolled, None)
                else:
                    found.partitions[enrolled] = value.topic
            case GroupKey() if found is not None:
                if value is None:
                    found.groups.pop(key.group, None)
                else:
                    found.groups[key.group] = None
