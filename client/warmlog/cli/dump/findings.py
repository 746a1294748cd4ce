"""What a dump finds wrong, reported on stderr after all files, in the words of Kafka's tool."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

Pairs = dict[str, list[tuple[int, int]]]
"""Pairs of numbers that contradict each other, by file."""


@dataclass(slots=True)
class Findings:
    """Contradictions between files, and damage."""

    index_mismatches: Pairs = field(default_factory=dict)
    """Offset in the offset index, last offset of the batch at its position (-1: no batch there)."""
    timestamp_mismatches: Pairs = field(default_factory=dict)
    """Timestamp in the time index, largest timestamp of the batch."""
    out_of_order_timestamps: Pairs = field(default_factory=dict)
    """Timestamp in the time index, the one before it."""
    offsets_not_found: Pairs = field(default_factory=dict)
    """Offset in the time index, last offset of the batch that holds it (-1: none)."""
    non_consecutive: Pairs = field(default_factory=dict)
    """Offset of a record, offset of the record after it."""
    remarks: list[str] = field(default_factory=list)
    """Findings without a counterpart in Kafka's tool."""

    def remark(self, path: Path, text: str) -> None:
        """Add a finding about a file."""
        self.remarks.append(f"{path}: {text}")

    def lines(self) -> Iterator[str]:
        """Yield all findings as text."""
        yield from _described(
            "Mismatches in :{file}", "  Index offset: {0}, log offset: {1}", self.index_mismatches, is_last_first=True
        )
        yield from _described(
            "Found timestamp mismatch in :{file}",
            "  Index timestamp: {0}, log timestamp: {1}",
            self.timestamp_mismatches,
        )
        yield from _described(
            "Found out of order timestamp in :{file}",
            "  Index timestamp: {0}, Previously indexed timestamp: {1}",
            self.out_of_order_timestamps,
        )
        yield from _described(
            "The following indexed offsets are not found in the log.",
            "Indexed offset: {0}, found log offset: {1}",
            self.offsets_not_found,
        )
        yield from _described(
            "Non-consecutive offsets in {file}", "  {0} is followed by {1}", self.non_consecutive, is_last_first=True
        )
        yield from self.remarks


def note_pair(pairs: Pairs, path: Path, first: int, second: int) -> None:
    """Add a contradiction in the file at `path`."""
    pairs.setdefault(str(path.absolute()), []).append((first, second))


def _described(heading: str, detail: str, pairs: Pairs, *, is_last_first: bool = False) -> Iterator[str]:
    """Format `pairs`: as Kafka's tool does, offsets with the last one first and times in their order."""
    for file, contradictions in pairs.items():
        yield heading.format(file=file)
        for pair in reversed(contradictions) if is_last_first else contradictions:
            yield detail.format(*pair)
