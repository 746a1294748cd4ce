"""Runs the storage engine's two searches of an index, and records which slots, and so which pages, they read.

As text, the pages of the index are a row of cells; visited ones are numbered in order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from warmlog.cli.terminal.output import counted
from warmlog_broker.storage.index.search import Probe, trace_searches
from warmlog_protocol.messages import TraceIndexResponse

GAP = "…"
MAX_COLUMNS = 32
"""An index of more pages is drawn without most of the unvisited ones."""


@dataclass(frozen=True, slots=True)
class IndexShape:
    """An index as a search sees it, and its name."""

    name: str
    entries: int
    entry_bytes: int
    warm_entries: int
    page_bytes: int
    probe: Probe = int
    """Of an index of entries that are numbered from 0, or of one that only its broker can read."""

    @property
    def pages(self) -> int:
        return -(-self.entries * self.entry_bytes // self.page_bytes)

    @property
    def warm_pages(self) -> range:
        last = self.entries - 1
        return range(self.page_of(max(0, last - self.warm_entries)), self.page_of(last) + 1)

    def page_of(self, slot: int) -> int:
        return slot * self.entry_bytes // self.page_bytes


class Trace(NamedTuple):
    """What one search read: slots in order, and pages in the order of their first visit."""

    name: str
    slots: tuple[int, ...]
    pages: tuple[int, ...]
    """In the order in which they were visited first."""
    lower: int
    """The last slot that is not above the target; -1 if there is none."""


def trace_both(index: IndexShape, target: int) -> tuple[Trace, Trace]:
    """Run the classic and the warm/cold search for `target`, which is as stored in the file."""
    classic, warm = trace_searches(index.probe, index.entries, index.warm_entries, target)
    return trace_of(index, *classic), trace_of(index, *warm)


def trace_of(index: IndexShape, name: str, slots: Sequence[int], lower: int) -> Trace:
    """Return the trace of a search that read these slots and found the slot `lower`."""
    return Trace(name, tuple(slots), tuple(dict.fromkeys(map(index.page_of, slots))), lower)


def traces_of(name: str, found: TraceIndexResponse, page_bytes: int) -> tuple[IndexShape, tuple[Trace, ...]]:
    """Return an index of a broker, and the searches there."""
    index = IndexShape(name, found.entries, found.entry_bytes, found.warm_entries, page_bytes)
    return index, tuple(trace_of(index, each.name, each.slots, each.lower) for each in found.searches)


class Column(NamedTuple):
    """A page of a drawing, or a gap of `left_out` unvisited ones."""

    page: int
    left_out: int = 0


def columns_of(index: IndexShape, traces: tuple[Trace, ...]) -> list[Column]:
    """Return the pages to draw: all of a small index; of a large one both ends, the warm section and those visited."""
    if index.pages <= MAX_COLUMNS:
        return [Column(page) for page in range(index.pages)]
    shown = sorted({0, index.pages - 1, *index.warm_pages, *(page for trace in traces for page in trace.pages)})
    columns: list[Column] = []
    next_page = 0
    for page in shown:
        if page - next_page == 1:
            columns.append(Column(next_page))
        elif page > next_page:
            columns.append(Column(next_page, page - next_page))
        columns.append(Column(page))
        next_page = page + 1
    return columns


# --- as text --------------------------------------------------------------------------------------------------------


def draw_text(index: IndexShape, target: str, traces: tuple[Trace, ...], *, width: int) -> Iterator[str]:
    """Yield the lines, at most `width` characters long if a cell is not wider."""
    yield f"{index.name}: {describe(index)}"
    yield f"looking for {target}"
    columns = columns_of(index, traces)
    cell = max(3, len(str(index.pages)))
    a_line = max(1, (width - 10) // (cell + 1))
    for trace in traces:
        yield ""
        yield f"{trace.name}: {summary(trace)}"
        for start in range(0, len(columns), a_line):
            yield from _row(columns[start : start + a_line], cell, index, trace)


def describe(index: IndexShape) -> str:
    """Return entries and pages of the index in words."""
    pages = counted(index.pages, "page")
    return f"{counted(index.entries, 'entry', 'entries')} of {index.entry_bytes} bytes, {pages} of {index.page_bytes}"


def summary(trace: Trace) -> str:
    """Return the pages and the result of a search in one line."""
    pages = ", ".join(map(str, trace.pages))
    found = "before the first entry" if trace.lower < 0 else f"found in slot {trace.lower}"
    return f"pages {pages}; {counted(len(trace.slots), 'slot')} read, {found}"


def _row(columns: list[Column], cell: int, index: IndexShape, trace: Trace) -> Iterator[str]:
    labels, cells, marks = [], [], []
    for page, left_out in columns:
        labels.append((GAP if left_out else str(page)).center(cell))
        order = str(trace.pages.index(page) + 1) if page in trace.pages and not left_out else ""
        cells.append((GAP if left_out else order).center(cell))
        marks.append(("~" if page in index.warm_pages and not left_out else " ") * cell)
    line = "+".join(["", *("-" * cell for _ in columns), ""])
    yield f"   page   {' '.join(labels)}".rstrip()
    yield f"         {line}"
    yield "  visit  " + "|".join(["", *cells, ""])
    yield f"         {line}"
    if "~" in "".join(marks):
        yield f"   warm   {' '.join(marks)}".rstrip()
