"""Records: find them, follow what comes, look at one, download them, produce one."""

import asyncio
from collections.abc import Callable
from typing import Any

from nicegui import html, ui

from warmlog import Producer
from warmlog.cli.terminal.json_records import write_json_records
from warmlog.cli.terminal.tables import Count, Instant, Size
from warmlog.cli.terminal.times import format_ms, parse_start
from warmlog.console import views
from warmlog.console.page import Page, dialog_of, options, page_at, pairs
from warmlog.console.reading import MIB, SEARCH_BYTES, Budget, Query, Row, Tail, search, whole
from warmlog.console.widgets import Link, Table, Values

TAIL_MOST = 200
"""Records that are taken from each partition at once; what is more is left out."""
SHOWN_MOST = 500
MAX_SCAN = 1_000_000
MAX_LETTERS = 200_000
"""Of one value: a browser shows so much quickly."""
HEADINGS = ("partition", "offset", "time", "key", "value", "headers", "size", "kind")
FIELDS = {
    "partition": ("Partition, all if empty", ""),
    "start": ("From an offset, earliest, -100, -10m or a time", ""),
    "key": ("Key is", ""),
    "header": ("Header is, NAME=VALUE", ""),
    "text": ("Value contains", ""),
    "scan": ("Within the last", "10000"),
    "limit": ("Show", "100"),
}
"""What is asked for, in the page and in its address: a label, and what is there at first."""

SEARCH, FOLLOW, PAUSE, STOP = "Search", "Follow", "Pause", "Stop"
BY_FIELDS = "Fields of JSON values"


@page_at("/records", every_s=1)
async def records(page: Page) -> None:
    Records(page)


class Records:
    """The page. Its address says what it shows, so that it can be sent to others."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._rows: list[Row] = []
        self._work: asyncio.Task[list[Row]] | None = None
        """A search."""
        self._tail: Tail | None = None
        asked = page.query
        with ui.row().classes("items-end"):
            self._topic = ui.select([], label="Topic", with_input=True, new_value_mode="add-unique")
            self._topic.style("min-width: 14rem")
            self._given = {
                name: ui.input(label, value=asked.get(name, first)).on("keydown.enter", self._begin)
                for name, (label, first) in FIELDS.items()
            }
            self._given["start"].style("width: min(22rem, 88vw)")
            self._hidden = ui.checkbox("Aborted records and markers", value=bool(asked.get("hidden")))
        with ui.row().classes("items-center"):
            self._mode = ui.toggle([SEARCH, FOLLOW, PAUSE, STOP], on_change=self._switch)
            ui.button("JSON lines", on_click=lambda: self._download(write_json_records, "jsonl")).props("flat")
            ui.button("Parquet", on_click=lambda: self._download(views.to_parquet, "parquet")).props("flat")
        fields = {"Topic": asked.get("topic", ""), "Key, none if empty": "", "Value": ""}
        fields |= {"Headers, NAME=VALUE …": "", "Partition, by key if empty": ""}
        page.change("Produce", fields, _produce_command, self._produce)
        self._note = ui.label().props("role=status")
        with ui.tabs(on_change=self._show_fields).props("align=left") as self._tabs:
            listed, by_fields = ui.tab("List"), ui.tab(BY_FIELDS)
        with ui.tab_panels(self._tabs, value=listed).classes("wl-wide"):
            with ui.tab_panel(listed).classes("q-pa-none"):
                self._table = Table("Records", HEADINGS)
                self._table.table.on("rowClick", lambda event: self._open(self._rows[event.args[1]["id"]]))
            with ui.tab_panel(by_fields).classes("q-pa-none"):
                self._fields = html.div().classes("wl-wide")
        page.client.on_delete(self._cancel)
        page.on_refresh(self._next)
        ui.timer(0.1, self._first, once=True)

    async def _first(self) -> None:
        """Learn the names of topics, and show what the address asks for."""
        with self._page.failures_told():
            names = await self._page.admin.topic_names()
            typed, asked = self._topic.value, self._page.query.get("topic")
            topic = typed or asked
            self._topic.set_options(sorted({*names, *([topic] if topic else [])}), value=topic)
            if asked and not typed:
                await self._begin()

    def _query(self) -> Query:
        """Return what is asked for; ValueError if it cannot be understood."""
        given = {name: (field.value or "").strip() for name, field in self._given.items()}
        return Query(
            self._topic.value or "",
            int(given["partition"]) if given["partition"] else None,
            parse_start(given["start"]) if given["start"] else None,
            given["key"].encode(),
            given["header"],
            given["text"].encode(),
            min(int(given["scan"]), MAX_SCAN),
            min(int(given["limit"]), SHOWN_MOST),
            self._hidden.value,
        )

    # --- searching and following ------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Search for what is asked for now, also while a search runs."""
        if self._mode.value == SEARCH:
            await self._switch()
        else:
            self._mode.value = SEARCH

    async def _switch(self) -> None:
        """Do what was chosen, in place of what was done; a pause, and going on after it, keeps the tail."""
        mode = self._mode.value
        if self._tail is not None and mode in (FOLLOW, PAUSE):
            return
        if self._work is not None or self._tail is not None:
            self._note.set_text("stopped")
        self._cancel()
        self._tail = None
        with self._page.failures_told():
            if mode == FOLLOW:
                self._tail = Tail(self._page.admin, self._query(), TAIL_MOST)
                self._show([])
                await self._next()
                return
            if mode == SEARCH and not await self._search():
                return
        self._tail = self._mode.value = None

    def _cancel(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.cancel()

    async def _search(self) -> bool:
        """Show what is asked for; False if something else was chosen meanwhile, or the page was closed."""
        query, budget = self._query(), Budget()
        self._note.set_text("searching …")
        self._work = work = asyncio.create_task(search(self._page.admin, query, budget))
        await asyncio.wait([work])
        if self._work is not work:
            return False
        self._work = None
        self._note.set_text("")
        self._show(work.result())
        cut = "" if budget.bytes_left > 0 else f", of the first {SEARCH_BYTES // MIB} MiB that were read"
        self._note.set_text(f"{len(self._rows)} records of {query.topic}{cut}")
        given = {name: field.value for name, field in self._given.items() if field.value != FIELDS[name][1]}
        hidden = 1 if query.shows_hidden else None
        ui.navigate.history.replace(self._page.url("/records", topic=query.topic, **given, hidden=hidden))
        if query.limit == 1 and self._rows:
            await self._open(self._rows[0])
        return True

    async def _next(self) -> None:
        tail = self._tail
        if tail is None or self._mode.value != FOLLOW:
            return
        rows = await tail.next()
        if rows and tail is self._tail:
            self._show([*rows, *self._rows][:SHOWN_MOST])
        left_out = f", {tail.left_out:,} left out because they came too fast" if tail.left_out else ""
        self._note.set_text(f"following {tail.query.topic}: {len(self._rows)} records shown{left_out}")

    # --- showing ----------------------------------------------------------------------------------------------------

    def _decoded(self, row: Row, name: str = "value") -> Any:
        """What the decoder makes of a key or value; None without one."""
        decode, data = self._page.session.settings.decoder, getattr(row, name)
        if decode is None or data is None or row.is_cut:
            return None
        try:
            return decode(row.topic, name, data)
        except Exception as error:
            return f"the decoder failed: {error!r}"

    def _show(self, rows: list[Row]) -> None:
        self._rows = rows
        self._table.show(
            [
                (
                    row.partition,
                    Link(Count(row.offset), self._link(row)),
                    Instant(row.timestamp_ms),
                    views.preview(row.key, self._decoded(row, "key")),
                    views.preview(row.value, self._decoded(row)),
                    ", ".join(f"{name}={views.preview(value)}" for name, value in row.headers),
                    Size(row.size_bytes),
                    row.kind,
                )
                for row in rows
            ]
        )
        self._show_fields()

    def _show_fields(self) -> None:
        """Decode the values into fields, if these are looked at."""
        if self._tabs.value != BY_FIELDS:
            return
        names, lines = views.fields_of(self._rows, self._decoded)
        self._fields.clear()
        with self._fields:
            cells: list[Values] = [(row.offset, *line) for row, line in zip(self._rows, lines, strict=True)]
            Table("Fields", ("offset", *names)).show(cells)

    def _link(self, row: Row) -> str:
        return self._page.url("/records", topic=row.topic, partition=row.partition, start=row.offset, limit=1, hidden=1)

    async def _open(self, row: Row) -> None:
        """Show one record, whole."""
        with self._page.failures_told():
            (row,) = await whole(self._page.admin, [row])
            decoded = self._decoded(row)
            text, parsed = views.text_of(row.value, decoded), views.json_of(row.value, decoded)
            key = [f"key: {views.text_of(row.key, self._decoded(row, 'key'))}"]
            texts = {
                "Text": text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}\n… it is longer: download it",
                "Hex": views.hex_of(row.value),
                "Key and headers": "\n".join(key + [f"{name}: {views.text_of(data)}" for name, data in row.headers]),
            }
            title = f"{row.topic}-{row.partition}, offset {row.offset}"
            with dialog_of(title) as dialog, ui.card().style("width: 60rem; max-width: 95vw"):
                html.h2(title)
                ui.label(f"{format_ms(row.timestamp_ms) or 'no time'}, {row.size_bytes:,} bytes {row.kind}")
                html.a("Link to this record", href=self._link(row))
                with ui.tabs().props("align=left") as tabs:
                    names = [ui.tab(name) for name in (*texts, "JSON")]
                with ui.tab_panels(tabs, value=names[0]).classes("wl-wide"):
                    for name, content in texts.items():
                        with ui.tab_panel(name):
                            html.pre(content).classes("wl-mono").props("tabindex=0")
                    with ui.tab_panel("JSON"):
                        tree = ui.tree([] if parsed is None else views.tree_of(parsed)).expand([1])
                        tree.props('no-nodes-label="no JSON, or too large to fold"')
                with ui.row():
                    ui.button("Copy", on_click=lambda: ui.clipboard.write(text)).props("outline")
                    file = (row.value or b"", f"{row.topic}-{row.partition}-{row.offset}.bin")
                    ui.button("Download", on_click=lambda: ui.download.content(*file)).props("outline")
                    ui.button("Close", on_click=dialog.close)
            dialog.on("hide", dialog.delete)
            dialog.open()

    async def _download(self, write: Callable[[list[Row]], bytes], suffix: str) -> None:
        with self._page.failures_told():
            readable = [row for row in self._rows if row.kind != "unreadable"]
            found = await whole(self._page.admin, readable)
            ui.download.content(write(found), f"{self._topic.value}.{suffix}")

    async def _produce(self, topic: str, key: str, value: str, headers: str, partition: str) -> None:
        session = self._page.session
        await session.admin.describe_partitions([topic])  # an error at once, and not at the end of retries
        async with Producer(session.settings.broker, **session.options) as producer:
            await producer.send(
                topic,
                value.encode(),
                key=key.encode() or None,
                headers=[(name, text.encode()) for name, text in pairs(headers).items()],
                partition=int(partition) if partition else None,
            )
        if self._tail is None:
            self._topic.set_value(topic)
            await self._begin()


def _produce_command(topic: str, key: str, value: str, headers: str, partition: str) -> list[str]:
    place = [*(["--key", key] if key else []), *(["--partition", partition] if partition else [])]
    return ["produce", topic, "--value", value, *options("--header", headers), *place]
