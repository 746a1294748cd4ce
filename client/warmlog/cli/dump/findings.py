"""What a dump finds wrong, reported on stderr after all files, in the words of Kafka's tool."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Contradiction(NamedTuple):
    """A kind of pairs of numbers that contradict each other, as Kafka's tool words it."""

    heading: str
    detail: str
    is_last_first: bool = False
    """Kafka's tool shows offsets with the last one first, and times in their order."""


INDEX_MISMATCH = Contradiction("Mismatches in :{file}", "  Index offset: {0}, log offset: {1}", is_last_first=True)
"""Offset in the offset index, last offset of the batch at its position (-1: no batch there)."""
TIMESTAMP_MISMATCH = Contradiction("Found timestamp mismatch in :{file}", "  Index timestamp: {0}, log timestamp: {1}")
"""Timestamp in the time index, largest timestamp of the batch."""
OUT_OF_ORDER_TIMESTAMP = Contradiction(
    "Found out of order timestamp in :{file}", "  Index timestamp: {0}, Previously indexed timestamp: {1}"
)
"""Timestamp in the time index, the one before it."""
OFFSET_NOT_FOUND = Contradiction(
    "The following indexed offsets are not found in the log.", "Indexed offset: {0}, found log offset: {1}"
)
"""Offset in the time index, last offset of the batch that holds it (-1: none)."""
NON_CONSECUTIVE = Contradiction("Non-consecutive offsets in {file}", "  {0} is followed by {1}", is_last_first=True)
"""Offset of a record, offset of the record after it."""
_ORDER = (INDEX_MISMATCH, TIMESTAMP_MISMATCH, OUT_OF_ORDER_TIMESTAMP, OFFSET_NOT_FOUND, NON_CONSECUTIVE)


class Findings:
    """Contradictions between files, and damage."""

    def __init__(self) -> None:
        self._pairs: dict[Contradiction, dict[str, list[tuple[int, int]]]] = {kind: {} for kind in _ORDER}
        self._remarks: list[str] = []

    def note(self, kind: Contradiction, path: Path, first: int, second: int) -> None:
        """Add a contradiction in the file at `path`."""
        self._pairs[kind].setdefault(str(path.absolute()), []).append((first, second))

    def remark(self, path: Path, text: str) -> None:
        """Add a finding about a file that has no counterpart in Kafka's tool."""
        self._remarks.append(f"{path}: {text}")

    def lines(self) -> Iterator[str]:
        """Yield all findings as text."""
        for kind, by_file in self._pairs.items():
            for file, pairs in by_file.items():
                yield kind.heading.format(file=file)
                for pair in reversed(pairs) if kind.is_last_first else pairs:
                    yield kind.detail.format(*pair)
        yield from self._remarks
