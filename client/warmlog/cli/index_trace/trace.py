"""Runs the storage engine's two searches of an index, and records which slots, and so which pages, they read.

As text, the pages of the index are a row of cells; visited ones are numbered in order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from warmlog.cli.terminal.output import counted
from warmlog_broker.storage.index.search import Probe, SlotBounds, classic_search, warm_cold_search

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
    probe: Probe

    @property
    def pages(self) -> int:
        return -(-self.entries * self.entry_bytes // self.page_bytes)

    @property
    def warm_pages(self) -> range:
        """The pages of the warm section."""
        last = self.entries - 1
        return range(self.page_of(max(0, last - self.warm_entries)), self.page_of(last) + 1)

    def page_of(self, slot: int) -> int:
        """Return the page on which a slot begins."""
        return slot * self.entry_bytes // self.page_bytes


class Trace(NamedTuple):
    """What one search read: slots in order, and pages in the order of their first visit."""

    name: str
    slots: tuple[int, ...]
    pages: tuple[int, ...]
    """In the order in which they were visited first."""
    found: SlotBounds


def trace_both(index: IndexShape, target: int) -> tuple[Trace, Trace]:
    """Run the classic and the warm/cold search for `target`, which is as stored in the file."""
    return (
        _trace("classic", index, lambda probe: classic_search(probe, index.entries, target)),
        _trace("warm/cold", index, lambda probe: warm_cold_search(probe, index.entries, index.warm_entries, target)),
    )


def _trace(name: str, index: IndexShape, search: Callable[[Probe], SlotBounds]) -> Trace:
    slots: list[int] = []

    def watched(slot: int) -> int:
        slots.append(slot)
        return index.probe(slot)

    found = search(watched)
    pages = dict.fromkeys(index.page_of(slot) for slot in slots)
    return Trace(name, tuple(slots), tuple(pages), found)


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
    found = "before the first entry" if trace.found.lower < 0 else f"found in slot {trace.found.lower}"
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
