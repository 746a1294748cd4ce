"""A trace as text: the pages of the index as a row of cells; visited ones are numbered in order."""

from collections.abc import Iterator

from warmlog.cli.index_trace.trace import Column, IndexShape, Trace, columns_of
from warmlog.cli.terminal.output import counted

GAP = "…"


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
