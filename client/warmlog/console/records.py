"""Records: find them, follow what comes, look at one, download them, produce one."""

import shlex
from typing import Any

from nicegui import html, ui

from warmlog import Producer
from warmlog.cli.terminal.tables import Count, Instant, Size
from warmlog.cli.terminal.times import format_ms, parse_start
from warmlog.console import page as pages
from warmlog.console import views
from warmlog.console.page import Change, Link, Page, Table, options, pairs
from warmlog.console.reading import NEWEST, OLDEST, Query, Row, Tail, search, whole
from warmlog.points import PointKind
from warmlog.times import datetime_of

TAIL_S = 1.0
TAIL_MOST = 200
"""Records that are taken from each partition at once; what is more is left out."""
SHOWN_MOST = 500
MAX_SCAN = 1_000_000
MAX_LETTERS = 200_000
"""Of one value: a browser shows so much quickly."""
COLUMNS = "Partition,Offset,Time,Key,Value,Headers,Size,Kind"
FIELDS = {
    "partition": ("Partition, all if empty", ""),
    "start": ("From: newest, oldest, an offset, -10m or a time", NEWEST),
    "key": ("Key is", ""),
    "header": ("Header is, NAME=VALUE", ""),
    "text": ("Value contains", ""),
    "scan": ("Within the last", "10000"),
    "limit": ("Show", "100"),
}
"""What is asked for, in the page and in its address: a label, and what is there at first."""


def add() -> None:
    pages.add("/records", build)


async def build(page: Page) -> None:
    Records(page)


class Records:
    """The page. Its address says what it shows, so that it can be sent to others."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._rows: list[Row] = []
        self._tail: Tail | None = None
        self._is_paused = False
        with ui.row().classes("items-end"):
            self._topic = ui.select([], label="Topic", with_input=True, new_value_mode="add-unique").style(
                "min-width: 14rem"
            )
            self._given = {
                name: ui.input(label, value=page.query.get(name, first)).on("keydown.enter", self._search)
                for name, (label, first) in FIELDS.items()
            }
            self._given["start"].style("width: min(22rem, 88vw)")
            self._hidden = ui.checkbox("Aborted records and markers", value=bool(page.query.get("hidden")))
        with ui.row().classes("items-center"):
            ui.button("Search", on_click=self._search).props("no-caps")
            self._follow = ui.button("Follow", on_click=self._switch).props("no-caps outline")
            self._pause = ui.button("Pause", on_click=self._switch_pause).props("no-caps outline disable")
            for title, make in (("JSON lines", views.to_json_lines), ("Parquet", views.to_parquet)):
                ui.button(title, on_click=lambda make=make: self._download(make)).props("no-caps flat")
        fields = {"Topic": page.query.get("topic", ""), "Key, none if empty": "", "Value": ""}
        fields |= {"Headers, NAME=VALUE …": "", "Partition, by key if empty": ""}
        page.changes(Change("Produce", fields, _produce_command, self._produce))
        self._note = ui.label().props("role=status")
        with ui.tabs().props("no-caps align=left") as tabs:
            tab_list, tab_fields = ui.tab("List"), ui.tab("Fields of JSON values")
        with ui.tab_panels(tabs, value=tab_list).classes("wl-wide"):
            with ui.tab_panel(tab_list).classes("q-pa-none"):
                self._table = Table("Records", COLUMNS)
                self._table.table.on("rowClick", lambda event: self._open(self._rows[event.args[1]["id"]]))
            with ui.tab_panel(tab_fields).classes("q-pa-none"):
                self._fields = html.div().classes("wl-wide")
        page.on_refresh(self._next)
        page.start(TAIL_S)
        ui.timer(0.1, self._first, once=True)

    async def _first(self) -> None:
        """Learn the names of topics, and show what the address asks for."""

        async def learn() -> None:
            asked = self._page.query.get("topic")
            names = await self._page.admin.topic_names()
            self._topic.set_options(sorted({*names, *([asked] if asked else [])}), value=asked)

        if await self._page.attempt(learn) and self._topic.value:
            await self._search()
            if self._page.query.get("limit") == "1" and self._rows:
                await self._open(self._rows[0])

    def _query(self) -> Query:
        """Return what is asked for; ValueError if it cannot be understood."""
        given = {name: (field.value or "").strip() for name, field in self._given.items()}
        start: Any = given["start"] or NEWEST
        if start not in (NEWEST, OLDEST):
            point = parse_start(start)
            if point.kind not in (PointKind.OFFSET, PointKind.TIME):
                raise ValueError(f"{start!r}: {FIELDS['start'][0]} expected")
            start = point.number if point.kind is PointKind.OFFSET else datetime_of(point.number)
        return Query(
            self._topic.value or "",
            int(given["partition"]) if given["partition"] else None,
            start,
            given["key"].encode(),
            given["header"],
            given["text"].encode(),
            min(int(given["scan"]), MAX_SCAN),
            min(int(given["limit"]), SHOWN_MOST),
            self._hidden.value,
        )

    async def _search(self) -> None:
        async def find() -> None:
            query = self._query()
            self._note.set_text("searching …")
            self._show(await search(self._page.admin, query))
            self._note.set_text(f"{len(self._rows)} records of {query.topic}")
            given = {name: field.value for name, field in self._given.items() if field.value != FIELDS[name][1]}
            hidden = 1 if query.shows_hidden else None
            ui.navigate.history.replace(self._page.url("/records", topic=query.topic, **given, hidden=hidden))

        self._stop()
        if not await self._page.attempt(find):
            self._note.set_text("")

    # --- following ----------------------------------------------------------------------------------------------

    async def _switch(self) -> None:
        async def begin() -> None:
            self._tail = Tail(self._page.admin, self._query(), TAIL_MOST)
            self._show([])
            await self._next()

        if self._tail is not None:
            self._stop()
        elif await self._page.attempt(begin):
            self._follow.set_text("Stop")
            self._pause.enable()

    def _stop(self) -> None:
        self._tail, self._is_paused = None, False
        self._follow.set_text("Follow")
        self._pause.set_text("Pause")
        self._pause.disable()

    def _switch_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._pause.set_text("Go on" if self._is_paused else "Pause")

    async def _next(self) -> None:
        tail = self._tail
        if tail is None or self._is_paused:
            return
        if rows := await tail.next():
            self._show([*rows, *self._rows][:SHOWN_MOST])
        left_out = f", {tail.left_out:,} left out because they came too fast" if tail.left_out else ""
        self._note.set_text(f"following {tail.query.topic}: {len(self._rows)} records shown{left_out}")

    # --- showing ------------------------------------------------------------------------------------------------

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
                    Size(row.value_bytes),
                    row.kind,
                )
                for row in rows
            ]
        )
        names, lines = views.fields_of(rows, self._decoded)
        self._fields.clear()
        with self._fields:
            columns = ",".join(["Offset", *(name.replace(",", " ") for name in names)])
            Table("Fields", columns).show([(row.offset, *line) for row, line in zip(rows, lines, strict=True)])

    def _link(self, row: Row) -> str:
        return self._page.url("/records", topic=row.topic, partition=row.partition, start=row.offset, limit=1, hidden=1)

    async def _open(self, row: Row) -> None:
        """Show one record, whole."""
        found: list[Row] = []

        async def load() -> None:
            found.extend(await whole(self._page.admin, [row]))

        if not await self._page.attempt(load):
            return
        (row,) = found
        decoded = self._decoded(row)
        parsed = views.json_of(row.value, decoded)
        text = views.text_of(row.value, decoded)
        shown = text if len(text) <= MAX_LETTERS else f"{text[:MAX_LETTERS]}\n… the value is longer: download it"
        headers = "\n".join(f"{name}: {views.text_of(value)}" for name, value in row.headers)
        key = f"key: {views.text_of(row.key, self._decoded(row, 'key'))}\n{headers}"
        title = f"{row.topic}-{row.partition}, offset {row.offset}"
        with pages.dialog_of(title) as dialog, ui.card().style("width: 60rem; max-width: 95vw"):
            html.h2(title)
            ui.label(f"{format_ms(row.timestamp_ms) or 'no time'}, {row.value_bytes:,} bytes {row.kind}")
            html.a("Link to this record", href=self._link(row))
            with ui.tabs().props("no-caps align=left") as tabs:
                names = [ui.tab(name) for name in ("Text", "JSON", "Hex", "Key and headers")]
            with ui.tab_panels(tabs, value=names[0]).classes("wl-wide"):
                for name, content in ((names[0], shown), (names[2], views.hex_of(row.value)), (names[3], key)):
                    with ui.tab_panel(name):
                        html.pre(content).classes("wl-mono").props("tabindex=0")
                with ui.tab_panel(names[1]):
                    nodes = [] if parsed is None else views.tree_of(parsed)
                    ui.tree(nodes, label_key="label").props('no-nodes-label="no JSON, or too large to fold"').expand(
                        [1]
                    )
            with ui.row():
                ui.button("Copy", on_click=lambda: ui.clipboard.write(text)).props("no-caps outline")
                value = row.value or b""
                save = ui.button("Download", on_click=lambda: ui.download.content(value, f"{row.offset}.bin"))
                save.props("no-caps outline")
                ui.button("Close", on_click=dialog.close).props("no-caps")
        dialog.on("hide", dialog.delete)
        dialog.open()

    async def _download(self, make: Any) -> None:
        async def send() -> None:
            content, suffix = make(
                await whole(self._page.admin, [row for row in self._rows if row.kind != "unreadable"])
            )
            ui.download.content(content, f"{self._topic.value}.{suffix}")

        await self._page.attempt(send)

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
            await self._search()


def _produce_command(topic: str, key: str, value: str, headers: str, partition: str) -> str:
    command = f"produce {shlex.quote(topic)} --value {shlex.quote(value)}{options('--header', headers)}"
    command += f" --key {shlex.quote(key)}" if key else ""
    return f"{command} --partition {partition}" if partition else command
