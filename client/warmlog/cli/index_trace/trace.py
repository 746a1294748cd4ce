"""Which slots, and so which pages, the two searches of an index read: the functions of the storage engine, watched."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from warmlog_broker.storage.index.search import Probe, SlotBounds, classic_search, warm_cold_search

MAX_COLUMNS = 32
"""An index of more pages is drawn without most of those that nobody visits."""


@dataclass(frozen=True, slots=True)
class IndexShape:
    """What a search needs to know of an index, and what to call it."""

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
        """The page on which a slot begins."""
        return slot * self.entry_bytes // self.page_bytes


class Trace(NamedTuple):
    """What one search did."""

    name: str
    slots: tuple[int, ...]
    """In the order in which they were read."""
    pages: tuple[int, ...]
    """In the order in which they were visited first."""
    found: SlotBounds


def trace_both(index: IndexShape, target: int) -> tuple[Trace, Trace]:
    """The classic search and the warm/cold search for `target`, which is as the file has it."""
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
    """A page of a drawing, or with `left_out` some of them that nobody visits."""

    page: int
    left_out: int = 0


def columns_of(index: IndexShape, traces: tuple[Trace, ...]) -> list[Column]:
    """The pages to draw: all of a small index; of a large one the ends, the warm section and what is visited."""
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
