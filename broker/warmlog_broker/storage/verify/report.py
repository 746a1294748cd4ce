"""What a verification finds, counts and tells while it goes on."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MAX_FINDINGS_A_FILE = 100
"""A file that is damaged from end to end is described by its first findings; the others are counted."""


MAX_NAMES = 3


def in_short(names: list[str]) -> str:
    """A few names as they are, more of them as their number and an example."""
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{len(names):,} such as {names[0]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be. `position` is in bytes of the file, `offset` one of the log."""

    path: str
    expected: str
    found: str
    position: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        where = self.path
        if self.position is not None:
            where += f", position {self.position}"
        if self.offset is not None:
            where += f", offset {self.offset}"
        return f"{where}: expected {self.expected}, found {self.found}"


@dataclass(slots=True)
class Counts:
    """How much was looked at."""

    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    log_bytes: int = 0
    index_entries: int = 0
    snapshots: int = 0
    offset_gaps: int = 0
    """Places where offsets are missing between two batches: compaction leaves them."""


@dataclass(slots=True)
class Report:
    """The result of a verification, growing."""

    findings: list[Finding] = field(default_factory=list)
    suppressed: Counter[str] = field(default_factory=Counter)
    """By file: findings beyond MAX_FINDINGS_A_FILE."""
    notes: list[str] = field(default_factory=list)
    """What is worth saying and no finding, such as files that went away meanwhile."""
    counts: Counts = field(default_factory=Counts)
    on_progress: Callable[["Report"], None] = lambda _report: None
    """Called now and then, after some MiB or files."""
    _by_file: Counter[str] = field(default_factory=Counter)

    @property
    def is_clean(self) -> bool:
        return not self.findings

    @property
    def finding_count(self) -> int:
        return len(self.findings) + self.suppressed.total()

    def find(
        self, path: Path, *, expected: str, found: str, position: int | None = None, offset: int | None = None
    ) -> None:
        """Adds a finding."""
        name = str(path)
        self._by_file[name] += 1
        if self._by_file[name] > MAX_FINDINGS_A_FILE:
            self.suppressed[name] += 1
        else:
            self.findings.append(Finding(name, expected, found, position, offset))

    def find_unreadable(self, path: Path, error: Exception, *, expected: str) -> None:
        """Adds that a file cannot be read, or cannot be what it should be."""
        reason = error.strerror if isinstance(error, OSError) else None
        self.find(path, expected=expected, found=str(error) if reason is None else f"that it cannot be read: {reason}")

    def note(self, text: str) -> None:
        self.notes.append(text)

    def without_files(self, paths: list[Path]) -> None:
        """Takes back what was found in these files: they have changed meanwhile, and are looked at again."""
        names = {str(path) for path in paths}
        self.findings = [finding for finding in self.findings if finding.path not in names]
        for name in names:
            del self.suppressed[name]
            del self._by_file[name]
