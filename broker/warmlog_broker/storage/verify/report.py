"""Findings, counts and progress of a verification."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from warmlog_protocol.errors import WarmlogError

MAX_FINDINGS_A_FILE = 100
"""Further findings in a file are only counted."""
MAX_NAMES = 3


def summarize(names: list[str]) -> str:
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{len(names):,} such as {names[0]}"


@dataclass(frozen=True, slots=True)
class Finding:
    """A deviation from what is expected. `position` is in bytes of the file, `offset` one of the log."""

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
    partitions: int = 0
    segments: int = 0
    batches: int = 0
    records: int = 0
    log_bytes: int = 0
    index_entries: int = 0
    snapshots: int = 0
    offset_gaps: int = 0
    """Gaps between the offsets of two batches: compaction leaves them."""


@dataclass(slots=True)
class Report:
    """The growing result of a verification."""

    findings: list[Finding] = field(default_factory=list)
    suppressed: Counter[str] = field(default_factory=Counter)
    """Number of findings beyond MAX_FINDINGS_A_FILE, by file."""
    notes: list[str] = field(default_factory=list)
    """Remarks that are no findings, such as files that were removed meanwhile."""
    counts: Counts = field(default_factory=Counts)
    on_progress: Callable[["Report"], None] = lambda _report: None
    """Called every few MiB and after each file."""
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
        name = str(path)
        self._by_file[name] += 1
        if self._by_file[name] > MAX_FINDINGS_A_FILE:
            self.suppressed[name] += 1
        else:
            self.findings.append(Finding(name, expected, found, position, offset))

    def find_unreadable(self, path: Path, error: Exception, *, expected: str) -> None:
        reason = error.strerror if isinstance(error, OSError) else None
        self.find(path, expected=expected, found=str(error) if reason is None else f"that it cannot be read: {reason}")

    @contextmanager
    def reading(self, path: Path, *, expected: str) -> Iterator[None]:
        """Add an error of the context as a finding of `path`; FileNotFoundError is raised."""
        try:
            yield
        except FileNotFoundError:
            raise
        except (WarmlogError, ValueError, OSError) as error:
            self.find_unreadable(path, error, expected=expected)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def has_findings_in(self, paths: list[Path]) -> bool:
        names = {str(path) for path in paths}
        return any(finding.path in names for finding in self.findings)

    def discard_findings_in(self, paths: list[Path]) -> None:
        """Remove the findings in these files, which have changed meanwhile and are checked again."""
        names = {str(path) for path in paths}
        self.findings = [finding for finding in self.findings if finding.path not in names]
        for name in names:
            del self.suppressed[name]
            del self._by_file[name]
