"""What all pages have in common: the frame, tables, questions before a change, and what is said of failures.

Everything that comes from the broker is shown as text: the templates here are constant, and get it as data.
"""

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from nicegui import html, ui
from starlette.requests import Request

from warmlog.cli.terminal.exits import describe
from warmlog.cli.terminal.output import escaped
from warmlog.cli.terminal.tables import Cell, Instant, shown
from warmlog.console.safety import SESSION
from warmlog.console.sessions import SAMPLE_S, Session
from warmlog.errors import AuthorizationFailed, WarmlogError

MENU = {
    "/": "Overview",
    "/topics": "Topics",
    "/records": "Records",
    "/groups": "Groups",
    "/transactions": "Transactions",
    "/access": "Users and rights",
    "/index": "Index",
}
FAILURES = (WarmlogError, OSError, ValueError, TypeError)
ROWS_A_PAGE = 50
STYLE = """
body { font-size: 0.95rem } h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.2rem; margin: 1rem 0 0 }
.wl-main { width: 100%; max-width: 90rem; margin: 0 auto; align-items: stretch } .wl-wide { width: 100% }
.wl-main > * { max-width: 100% } .wl-mono { font-family: monospace; white-space: pre-wrap; overflow-wrap: anywhere }
.wl-nav a { color: inherit; text-decoration: none; padding: 0.4rem 0.6rem }
.wl-nav a[aria-current], .wl-nav a:hover { text-decoration: underline } .wl-nav a:focus-visible { outline: 2px solid }
.wl-main a, .q-dialog a { color: #0b57d0 } .body--dark .wl-main a, .body--dark .q-dialog a { color: #9ecbff }
.wl-bad { background: #b3261e; color: #fff; padding: 0.5rem 1rem; white-space: pre-wrap }
.q-table td { max-width: 40rem; overflow-wrap: anywhere }
@layer theme { .body--dark :is(.wl-main, .q-dialog) :is(.q-btn--outline, .q-btn--flat) { color: #9ecbff !important } }
.q-dialog .q-btn--outline { background: #fff } .body--dark .q-dialog .q-btn--outline { background: #1d1d1d }
.wl-facts { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.2rem } .wl-facts dd { margin: 0 }
.wl-cell { border: 2px solid #767676; min-width: 3rem; text-align: center; padding: 0.3rem }
.wl-warm { border-color: #b35c00; background: #ffe8c2; color: #1f2933 } .q-table th { font-weight: 600; opacity: 1 }
"""
CELL = """
<q-td :props="props"><a v-if="props.row.links[props.col.name]" :href="props.row.links[props.col.name]">{{
    props.row.texts[props.col.name] }}</a>
  <time v-else-if="props.row.times[props.col.name]" :title="new Date(props.value).toISOString() + ' (UTC)'">{{
    new Date(props.value).toLocaleString(undefined, {dateStyle: "medium", timeStyle: "medium"}) }}</time>
  <template v-else>{{ props.row.texts[props.col.name] }}</template></q-td>
"""

SCRIPT = """<script>new MutationObserver(() => document.querySelectorAll(".q-table__middle:not([tabindex])").forEach(
each => each.tabIndex = 0)).observe(document.body, {childList: true, subtree: true})</script>"""
"""Lets the keyboard scroll a table that is wider than the page."""

Values = Sequence["Cell | float | Link | None"]
Fetch = Callable[[], Awaitable[Sequence[Values]]]


class Link(NamedTuple):
    """A cell that leads to another page."""

    cell: Cell
    url: str


class Change(NamedTuple):
    """Something that a user may change. The functions are called with what was typed into the fields."""

    title: str
    fields: Mapping[str, str]
    """By label what is typed there at first."""
    command: Callable[..., str]
    """Returns the command that does the same, without the program's name."""
    act: Callable[..., Awaitable[object]]
    loses: Callable[..., str | Awaitable[str]] | str = ""
    """What cannot be undone."""
    then: str = ""
    """The page to show afterwards."""


class Page:
    """One open page of a session."""

    def __init__(self, session: Session, request: Request) -> None:
        self.session = session
        self.admin = session.admin
        self.query = request.query_params
        self._root: str = request.scope.get("root_path", "")
        self._refreshes: list[Callable[[], Awaitable[None]]] = []
        self._alert: Any = None

    def url(self, path: str, **query: object) -> str:
        """Return the address of a page, with what it is to show; what is None or "" is left out."""
        given = urlencode({name: value for name, value in query.items() if value not in (None, "")})
        return f"{self._root}{path}{'?' if given else ''}{given}"

    def frame(self, title: str) -> Any:
        """Draw what is around a page, and return the element that the page goes into."""
        ui.add_css(STYLE)
        ui.add_body_html(SCRIPT)
        dark = ui.dark_mode(self.session.is_dark)

        def switch() -> None:
            self.session.is_dark = not self.session.is_dark
            dark.set_value(self.session.is_dark)

        ui.colors(primary="#1f4e8c")
        with ui.header().classes("row items-center"):
            with html.nav().props("aria-label=Pages").classes("wl-nav row"):
                for target, name in MENU.items():
                    html.a(name, href=self.url(target)).props("aria-current=page" if name == title else "")
            ui.space()
            html.span(f"{self.session.user or 'no login'}{'' if self.session.may_change else ', read only'}")
            ui.button(icon="contrast", on_click=switch).props('flat color=white aria-label="Dark or light"')
            if self.session.user:
                with html.form(method="post", action=self.url("/logout")):
                    ui.button("Log out").props("flat color=white type=submit no-caps")
        main = html.div().classes("wl-main column q-pa-md q-gutter-y-sm")
        ui.skip_link(target=main)
        with main:
            self._alert = ui.label().classes("wl-bad").props("role=alert")
            self.say("")
            html.h1(title)
        return main

    def say(self, failure: str) -> None:
        """Show what is wrong with the broker above the page; "" for nothing."""
        self._alert.set_text(failure)
        self._alert.set_visibility(bool(failure))

    def on_refresh(self, refresh: Callable[[], Awaitable[None]]) -> None:
        """Call `refresh` each time that the page shows what is new."""
        self._refreshes.append(refresh)

    def start(self, seconds: float = SAMPLE_S) -> Callable[[], Awaitable[None]]:
        """Refresh now, and every so many seconds while the page is open. Failures are said above it.

        Returns what refreshes it at once.
        """
        is_running = False

        async def tick() -> None:
            nonlocal is_running
            if is_running:
                return
            is_running = True
            try:
                await self.session.sample()
                for refresh in self._refreshes:
                    await refresh()
                status = self.session.history.last
                self.say("; ".join(status.problems) if status is not None else "")
            except AuthorizationFailed as error:
                self.say(describe(error))
            except FAILURES as error:
                self.say(f"{describe(error)} (trying again)")
            finally:
                is_running = False

        ui.timer(seconds, tick)
        return tick

    async def attempt(self, action: Callable[[], Awaitable[object]], done: str = "") -> bool:
        """Run `action`; say what came of it, and return whether it did not fail."""
        try:
            await action()
        except FAILURES as error:
            ui.notify(describe(error), type="negative", multi_line=True, close_button="Close", timeout=0)
            return False
        if done:
            ui.notify(done, type="positive")
        return True

    def changes(self, *changes: Change) -> None:
        """Draw a button for each change; without effect if the session may change nothing."""
        with ui.row():
            for each in changes:
                button = ui.button(each.title, on_click=lambda change=each: self.change(change)).props(
                    "no-caps outline"
                )
                if not self.session.may_change:
                    button.props('disable title="read only: see --allow-changes"')

    async def change(self, change: Change) -> bool:
        """Ask for the fields; show the command that does the same and what is lost, ask again, and do it."""
        given: list[str] = []
        if change.fields:
            with dialog_of(change.title) as dialog, ui.card():
                html.h2(change.title)
                inputs = [
                    ui.input(label, value=value, password=label == "Password").classes("wl-wide")
                    for label, value in change.fields.items()
                ]
                with ui.row():
                    ui.button("Cancel", on_click=lambda: dialog.submit(None)).props("flat no-caps")
                    ui.button("Go on", on_click=lambda: dialog.submit(True)).props("no-caps")
            if not await dialog:
                return False
            given = [each.value or "" for each in inputs]
        loses = [change.loses if isinstance(change.loses, str) else ""]

        async def prepare() -> None:
            change.command(*given)
            if not isinstance(change.loses, str):
                text = change.loses(*given)
                loses[0] = text if isinstance(text, str) else await text

        if not await self.attempt(prepare):
            return False
        with dialog_of(change.title) as dialog, ui.card():
            html.h2(change.title)
            if loses[0]:
                html.p(loses[0]).classes("wl-bad")
            html.p("The command that does the same:")
            html.code(f"warmlog {change.command(*given)}").classes("wl-mono")
            with ui.row():
                ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat no-caps")
                confirm = ui.button(change.title, on_click=lambda: dialog.submit(True)).props("no-caps")
                confirm.props(f"color={'negative' if loses[0] else 'primary'}")
        is_agreed = await dialog and self.session.may_change
        if not is_agreed or not await self.attempt(lambda: change.act(*given), f"{change.title}: done"):
            return False
        if change.then:
            ui.navigate.to(change.then)
        return True

    def table(self, label: str, columns: str, fetch: Fetch | None = None) -> "Table":
        """Draw a table under a heading; `columns` are titles between commas. With `fetch` it is refreshed by it."""
        html.h2(label)
        table = Table(label, columns)

        async def refresh() -> None:
            assert fetch is not None
            table.show(await fetch())

        if fetch is not None:
            self.on_refresh(refresh)
        return table


def dialog_of(title: str) -> Any:
    """Return a dialog that is read out by its title."""
    dialog = ui.dialog().props("transition-duration=0")
    dialog.props["aria-label"] = title
    return dialog


def add(path: str, build: Callable[[Page], Awaitable[None]], title: str = "") -> None:
    """Add a page at `path`."""

    async def show(request: Request) -> None:
        page = Page(request.scope[SESSION], request)
        with page.frame(MENU.get(path, title)):
            await build(page)

    ui.page(path, title=f"{MENU.get(path, title)} · warmlog")(show)


class Table:
    """A table, whose rows are replaced. Numbers, sizes and times are sorted as such."""

    def __init__(self, label: str, columns: str) -> None:
        columns_shown = [
            {"name": title, "label": title, "field": title, "sortable": True, "align": "left"}
            for title in columns.split(",")
        ]
        self.table = ui.table(columns=columns_shown, rows=[], row_key="id", pagination={"rowsPerPage": ROWS_A_PAGE})
        self.table.classes("wl-wide").props("flat dense bordered wrap-cells rows-per-page-label='Rows a page'")
        self.table.props["aria-label"] = label
        self.table.add_slot("body-cell", CELL)

    def show(self, rows: Sequence[Values]) -> None:
        """Show these rows."""
        names = [column["name"] for column in self.table.columns]
        self.table.rows = [_row(number, dict(zip(names, row, strict=True))) for number, row in enumerate(rows)]


def _row(number: int, cells: Mapping[str, Cell | float | Link | None]) -> dict[str, Any]:
    """Return a row for CELL: what is sorted, its texts, and which cells are times and links."""
    plain = {name: cell.cell if isinstance(cell, Link) else cell for name, cell in cells.items()}
    return {
        "id": number,
        **plain,
        "texts": {name: text_of(cell) for name, cell in plain.items()},
        "times": {name: True for name, cell in plain.items() if isinstance(cell, Instant) and cell >= 0},
        "links": {name: cell.url for name, cell in cells.items() if isinstance(cell, Link)},
    }


def text_of(value: Cell | float | None) -> str:
    """Return a cell as people read it."""
    if value is None or isinstance(value, str):
        return escaped(value or "")
    return f"{value:,.1f}" if isinstance(value, float) else shown(value)


class Facts:
    """Names and texts, one below the other."""

    def __init__(self) -> None:
        self._list = html.dl().classes("wl-facts")
        self._texts: dict[str, Any] = {}

    def show(self, **facts: str) -> None:
        """Show these; those that were shown before stay at their places."""
        for name, text in facts.items():
            if name not in self._texts:
                with self._list:
                    html.dt(name.replace("_", " ").capitalize())
                    with html.dd():
                        self._texts[name] = ui.label()
            self._texts[name].set_text(escaped(text))


class Chart:
    """Lines over time."""

    def __init__(self, label: str) -> None:
        options: dict[str, Any] = {
            "animation": False,
            "title": {"text": label, "textStyle": {"fontSize": 13, "color": "#767676"}},
            "tooltip": {"trigger": "axis"},
            "legend": {"bottom": 0, "textStyle": {"color": "#767676"}},
            "xAxis": {"type": "time", "axisLabel": {"color": "#7a7a7a", "hideOverlap": True}},
            "yAxis": {
                "type": "value",
                "axisLabel": {"color": "#7a7a7a"},
                "splitLine": {"lineStyle": {"color": "#80808040"}},
            },
            "series": [],
        }
        self._plot = ui.echart(options).classes("wl-wide").style("height: 15rem")
        self._plot.props["role"], self._plot.props["aria-label"] = "img", label

    def draw(self, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """Draw these lines of (milliseconds since 1970, figure)."""
        self._plot.options["series"] = [
            {"type": "line", "showSymbol": len(points) < 2, "name": name, "data": list(map(list, points))}
            for name, points in lines.items()
        ]
        self._plot.update()


def charts(*labels: str) -> list[Chart]:
    """Draw charts beside each other, as far as there is room."""
    with ui.grid(columns="repeat(auto-fit, minmax(min(100%, 26rem), 1fr))").classes("wl-wide"):
        return [Chart(label) for label in labels]


def pairs(text: str) -> dict[str, str]:
    """Parse "retention.ms=7d segment.bytes=1MiB", quoted as in a shell; ValueError for anything else."""
    found = [each.partition("=") for each in shlex.split(text)]
    if bad := [name for name, separator, _ in found if not separator]:
        raise ValueError(f"{bad[0]!r} is not NAME=VALUE")
    return {name: value for name, _, value in found}


def options(name: str, text: str) -> str:
    """Return an option for each word of a text: "a=1 b=2" is " --set a=1 --set b=2"."""
    return "".join(f" {name} {shlex.quote(each)}" for each in shlex.split(text))
