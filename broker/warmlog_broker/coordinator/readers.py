"""How the records of the coordinators' topics are read, for tools that read logs."""

from collections.abc import Callable, Mapping
from typing import Any

from warmlog_broker.coordinator.framework.decision import Record
from warmlog_broker.coordinator.group.decisions import records as group_records
from warmlog_broker.coordinator.transaction.decisions import records as transaction_records

READERS: Mapping[str, Callable[[Record], Any]] = {
    "__groups": group_records.read,
    "__transactions": transaction_records.read,
}
"""By topic: returns key and value, or None for an unknown kind or version; ValueError for a damaged record."""


def record_check(topic: str) -> Callable[[bytes | None, bytes | None], None] | None:
    """Return what raises ValueError for a key and value that `topic` cannot have; None if it may have any."""
    reader = READERS.get(topic)
    if reader is None:
        return None

    def check(key: bytes | None, value: bytes | None) -> None:
        if key is not None:
            reader(Record(key, value))

    return check
