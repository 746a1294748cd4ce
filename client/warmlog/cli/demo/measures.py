"""How fast each step of the demo was."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Measure:
    """Records and bytes (keys and values) that a step moved, and the time that it took."""

    step: str
    records: int
    size_bytes: int
    seconds: float = 0.0

    @property
    def megabytes(self) -> float:
        return self.size_bytes / 1_000_000

    @property
    def records_per_s(self) -> float:
        return self.records / max(self.seconds, 1e-9)

    @property
    def megabytes_per_s(self) -> float:
        return self.megabytes / max(self.seconds, 1e-9)


class Stopwatch:
    """Collects the measures of all steps."""

    def __init__(self) -> None:
        self.measures: list[Measure] = []

    @contextmanager
    def timed(self, step: str, records: int, size_bytes: int) -> Iterator[Measure]:
        """Measures what happens inside."""
        measure = Measure(step, records, size_bytes)
        started_at = time.perf_counter()
        yield measure
        measure.seconds = time.perf_counter() - started_at
        self.add(measure)

    def add(self, measure: Measure) -> None:
        """Something that was measured elsewhere."""
        self.measures.append(measure)
