"""The index picture: which pages a search in the offset index reads, of a partition and of the 13-page example."""

from nicegui import html, ui

from warmlog.cli.index_trace.trace import IndexShape, Trace, columns_of, describe, summary, trace_both, traces_of
from warmlog.console import page as pages
from warmlog.console.page import Page

PAGE_BYTES = 4096
EXAMPLES = {13: 6656, 14: 7168}
"""Entries of indexes with so many pages."""
OFFSET_ENTRY_BYTES, WARM_ENTRIES = 8, 1024
TEXT = (
    "A classic binary search reads other pages whenever the index grows by a page, so a lookup at the end waits for "
    "pages that nothing else keeps in memory. The warm/cold search looks into the last 8 KiB first (shaded): at most "
    "three pages, always the same ones."
)


def add() -> None:
    pages.add("/index", build)


async def build(page: Page) -> None:
    html.p(TEXT)
    with ui.row().classes("items-end"):
        topic = ui.input("Topic", value=page.query.get("topic", ""))
        partition = ui.input("Partition", value=page.query.get("partition", "0"))
        offset = ui.input("Offset, the last entry if empty", value=page.query.get("offset", ""))
        ui.button("Search", on_click=lambda: page.attempt(search)).props("no-caps")
        for each in (topic, partition, offset):
            each.on("keydown.enter", lambda: page.attempt(search))
    picture = html.div().classes("wl-wide")

    async def search() -> None:
        wanted = int(offset.value) if offset.value else None
        found = await page.admin.trace_index(topic.value, int(partition.value or 0), wanted)
        shape, traces = traces_of(f"{topic.value}-{partition.value}, segment {found.base_offset}", found, PAGE_BYTES)
        picture.clear()
        with picture:
            _draw(shape, f"offset {found.offset}", traces)

    if topic.value:
        ui.timer(0.1, lambda: page.attempt(search), once=True)
    html.h2("An example: a lookup at the end of an index of 13 pages, and of 14")
    for number, entries in EXAMPLES.items():
        shape = IndexShape(f"{number} pages", entries, OFFSET_ENTRY_BYTES, WARM_ENTRIES, PAGE_BYTES)
        _draw(shape, f"entry {entries - 1}", trace_both(shape, entries - 1))
    page.start()


def _draw(index: IndexShape, target: str, traces: tuple[Trace, ...]) -> None:
    html.p(f"{index.name}: {describe(index)}, looking for {target}")
    for trace in traces:
        html.p(f"{trace.name}: {summary(trace)}")
        with ui.row().classes("no-wrap wl-wide").style("overflow-x: auto; gap: 2px").props("tabindex=0"):
            for number, left_out in columns_of(index, traces):
                is_warm = number in index.warm_pages and not left_out
                order = trace.pages.index(number) + 1 if number in trace.pages and not left_out else 0
                with html.div().classes(f"wl-cell {'wl-warm' if is_warm else ''}"):
                    html.div("…" if left_out else f"page {number}")
                    html.strong(f"#{order}" if order else "\u00a0")
