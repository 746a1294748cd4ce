"""The index picture: which pages a search in the offset index reads, of a partition and of the 13-page example."""

from nicegui import html, ui

from warmlog.cli.index_trace.trace import IndexShape, Trace, columns_of, describe, summary, trace_both, traces_of
from warmlog.console.page import Page, page_at

PAGE_BYTES = 4096
EXAMPLES = {13: 6656, 14: 7168}
"""Entries of indexes with so many pages."""
OFFSET_ENTRY_BYTES, WARM_ENTRIES = 8, 1024
TEXT = (
    "A classic binary search reads other pages whenever the index grows by a page, so a lookup at the end waits for "
    "pages that nothing else keeps in memory. The warm/cold search looks into the last 8 KiB first (shaded): at most "
    "three pages, always the same ones."
)


@page_at("/index")
async def index(page: Page) -> None:
    async def search() -> None:
        with page.failures_told():
            wanted = int(offset.value) if offset.value else None
            found = await page.admin.trace_index(topic.value, int(partition.value or 0), wanted)
            name = f"{topic.value}-{partition.value}, segment {found.base_offset}"
            picture.clear()
            with picture:
                draw(*traces_of(name, found, PAGE_BYTES), f"offset {found.offset}")

    html.p(TEXT)
    with ui.row().classes("items-end"):
        topic = ui.input("Topic", value=page.query.get("topic", ""))
        partition = ui.input("Partition", value=page.query.get("partition", "0"))
        offset = ui.input("Offset, the last entry if empty", value=page.query.get("offset", ""))
        for each in (topic, partition, offset):
            each.on("keydown.enter", search)
        ui.button("Search", on_click=search)
    picture = html.div().classes("wl-wide")
    if topic.value:
        ui.timer(0.1, search, once=True)
    html.h2("An example: a lookup at the end of an index of 13 pages, and of 14")
    for number, entries in EXAMPLES.items():
        shape = IndexShape(f"{number} pages", entries, OFFSET_ENTRY_BYTES, WARM_ENTRIES, PAGE_BYTES)
        draw(shape, trace_both(shape, entries - 1), f"entry {entries - 1}")


def draw(index: IndexShape, traces: tuple[Trace, ...], target: str) -> None:
    """Draw the pages of the index once for each search, those that it reads with their order."""
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
