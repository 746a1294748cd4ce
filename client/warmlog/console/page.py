"""What all pages have in common: the frame, refreshing, questions before a change, and what is said of failures."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode

from nicegui import background_tasks, html, ui
from starlette.requests import Request

from warmlog.cli.terminal.exits import describe
from warmlog.cli.terminal.options import parse_setting
from warmlog.console.safety import SESSION
from warmlog.console.sessions import SAMPLE_S, Session
from warmlog.console.widgets import Table, Values
from warmlog.errors import ApiError, AuthorizationFailed, WarmlogError

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
DARK = "warmlog_dark"
"""The cookie of a browser in which dark or light was chosen by hand."""
STYLE = """
body { font-size: 0.95rem } h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.2rem; margin: 1rem 0 0 }
.wl-main { width: 100%; max-width: 90rem; margin: 0 auto; align-items: stretch } .wl-wide { width: 100% }
.wl-main > * { max-width: 100% } .wl-mono { font-family: monospace; white-space: pre-wrap; overflow-wrap: anywhere }
.wl-nav a { color: inherit; text-decoration: none; padding: 0.4rem 0.6rem }
.wl-nav a[aria-current], .wl-nav a:hover { text-decoration: underline } .wl-nav a:focus-visible { outline: 2px solid }
.wl-main a, .q-dialog a { color: #0b57d0 } .body--dark .wl-main a, .body--dark .q-dialog a { color: #9ecbff }
.wl-bad { background: #b3261e; color: #fff; padding: 0.5rem 1rem; white-space: pre-wrap }
.q-table td { max-width: 40rem; overflow-wrap: break-word } .wl-main > :is(.q-btn, .q-btn-group) { align-self: start }
@layer theme { .body--dark :is(.wl-main, .q-dialog) :is(.q-btn--outline, .q-btn--flat) { color: #9ecbff !important } }
.q-dialog .q-btn--outline { background: #fff } .body--dark .q-dialog .q-btn--outline { background: #1d1d1d }
.wl-facts { display: grid; grid-template-columns: max-content 1fr; gap: 0.2rem 1.2rem } .wl-facts dd { margin: 0 }
.wl-cell { border: 2px solid #767676; min-width: 3rem; text-align: center; padding: 0.3rem }
.wl-warm { border-color: #b35c00; background: #ffe8c2; color: #1f2933 } .q-table th { font-weight: 600; opacity: 1 }
"""
SCRIPT = """<script>new MutationObserver(() => document.querySelectorAll(".q-table__middle:not([tabindex])").forEach(
each => each.tabIndex = 0)).observe(document.body, {childList: true, subtree: true})</script>"""
"""Lets the keyboard scroll a table that is wider than the page."""

T = TypeVar("T")
Refresh = Callable[[], Awaitable[None]]
Draw = Callable[["Page"], Awaitable[None]]


def page_at(path: str, title: str = "", every_s: float = SAMPLE_S) -> Callable[[Draw], None]:
    """Add a page at `path`, which the function draws; it is refreshed every so many seconds while it is open."""
    title = MENU.get(path, title)

    def add(draw: Draw) -> None:
        async def show(request: Request) -> None:
            page = Page(request)
            with page.frame(title):
                await draw(page)
                ui.timer(every_s, page.refresh, immediate=False)
            background_tasks.create(page.refresh())  # while the browser loads what the page is made of

        ui.page(path, title=f"{title} · warmlog")(show)

    return add


class Page:
    """One open page of a session."""

    def __init__(self, request: Request) -> None:
        self.session: Session = request.scope[SESSION]
        self.admin = self.session.admin
        self.query = request.query_params
        self.client = ui.context.client
        self._request = request
        self._refreshes: list[tuple[int, Refresh]] = []
        self._refreshed = 0
        self._refreshing = asyncio.Lock()

    def url(self, path: str, **query: object) -> str:
        """Return the address of a page, with what it is to show; what is None or "" is left out."""
        given = urlencode({name: value for name, value in query.items() if value not in (None, "")})
        return f"{self._request.scope.get('root_path', '')}{path}{'?' if given else ''}{given}"

    def frame(self, title: str) -> Any:
        """Draw what is around a page, and return the element that the page goes into."""
        for kind in (ui.button, ui.tabs, ui.toggle):
            kind.default_props("no-caps")
        ui.add_css(STYLE)
        ui.add_body_html(SCRIPT)
        ui.colors(primary="#1f4e8c")
        chosen = self._request.cookies.get(DARK)
        dark = ui.dark_mode(None if chosen is None else chosen == "1")

        def switch() -> None:
            dark.set_value(not dark.value)
            ui.run_javascript(f"document.cookie = '{DARK}={dark.value:d}; path=/; SameSite=Lax'")

        with ui.header().classes("row items-center"):
            with html.nav().props("aria-label=Pages").classes("wl-nav row"):
                for target, name in MENU.items():
                    html.a(name, href=self.url(target)).props("aria-current=page" if name == title else "")
            ui.space()
            html.span(f"{self.session.user or 'no login'}{'' if self.session.may_change else ', read only'}")
            ui.button(icon="contrast", on_click=switch).props('flat color=white aria-label="Dark or light"')
            if self.session.user:
                with html.form(method="post", action=self.url("/logout")):
                    ui.button("Log out").props("flat color=white type=submit")
        main = html.div().classes("wl-main column q-pa-md q-gutter-y-sm")
        ui.skip_link(target=main)
        with main:
            self._alert = ui.label().classes("wl-bad").props("role=alert")
            self._alert.bind_visibility_from(self._alert, "text", bool)
            html.h1(title)
        return main

    # --- what it shows ----------------------------------------------------------------------------------------------

    def on_refresh(self, refresh: Refresh, every: int = 1) -> None:
        """Call `refresh` with each, or every so many-th, refresh of the page."""
        self._refreshes.append((every, refresh))

    def table(
        self, label: str, headings: Sequence[str], fetch: Callable[[], Awaitable[Sequence[Values]]], every: int = 1
    ) -> None:
        """Draw a table, whose rows are fetched with each, or every so many-th, refresh."""
        table = Table(label, headings)

        async def refresh() -> None:
            table.show(await fetch())

        self.on_refresh(refresh, every)

    async def refresh(self) -> None:
        """Show what is new. What fails is said above the page; no-op if it is being refreshed."""
        if self._refreshing.locked():
            return
        async with self._refreshing:
            try:
                await self.session.sample()
                for every, refresh in self._refreshes:
                    if self._refreshed % every == 0:
                        await refresh()
                self._refreshed += 1
                status = self.session.history.last
                self._alert.text = "; ".join(status.problems) if status is not None else ""
            except AuthorizationFailed as error:
                self._alert.text = describe(error)
            except FAILURES as error:
                self._alert.text = f"{describe(error)} (trying again)"

    # --- what it changes --------------------------------------------------------------------------------------------

    @contextmanager
    def failures_told(self) -> Iterator[None]:
        """Within it, a failure is told and ends it."""
        try:
            yield
        except FAILURES as error:
            ui.notify(describe(error), type="negative", multi_line=True, close_button="Close", timeout=0)

    def change(
        self,
        title: str,
        fields: Mapping[str, str],
        command: Callable[..., Sequence[str]],
        act: Callable[..., Awaitable[object]],
        loses: Callable[..., str | Awaitable[str]] | str = "",
        then: str = "",
    ) -> None:
        """Draw a button for a change, which shows the command that does the same, asks, and does it.

        `fields` has the text that is there at first by label. The functions are called with what was typed: `command`
        returns the words of the command, without the program's name, and `loses` what cannot be undone. `then` is the
        page to show afterwards.
        """

        async def run() -> None:
            with self.failures_told():
                typed = await answered(title, "Go on", lambda: inputs(fields)) if fields else []
                if typed is None:
                    return
                given = [each.value or "" for each in typed]
                words = shlex.join(["warmlog", *command(*given)])
                lost = loses(*given) if callable(loses) else loses
                lost = lost if isinstance(lost, str) else await lost
                color = "negative" if lost else "primary"
                is_agreed = await answered(title, title, lambda: explain(words, lost), color)
                if is_agreed and self.session.may_change:
                    await act(*given)
                    ui.notify(f"{title}: done", type="positive")
                    if then:
                        ui.navigate.to(then)

        button = ui.button(title, on_click=run).props("outline")
        if not self.session.may_change:
            button.props('disable title="read only: see --allow-changes"')


async def allowed(found: Awaitable[T], otherwise: T) -> T:
    """Return what the broker is asked for; `otherwise` if the user may not see all of it."""
    try:
        return await found
    except ApiError:
        return otherwise


async def answered(title: str, agree: str, draw: Callable[[], T], color: str = "primary") -> T | None:
    """Ask in a dialog that `draw` fills, and return what that has returned; None if the answer is no."""
    with dialog_of(title) as dialog, ui.card():
        html.h2(title)
        drawn = draw()
        with ui.row():
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat")
            ui.button(agree, on_click=lambda: dialog.submit(True)).props(f"color={color}")
    return drawn if await dialog else None


def dialog_of(title: str) -> ui.dialog:
    """Return a dialog that is read out by its title."""
    dialog = ui.dialog().props("transition-duration=0")
    dialog.props["aria-label"] = title
    return dialog


def inputs(fields: Mapping[str, str]) -> list[ui.input]:
    """Draw a field for each label, with the text that is there at first."""
    return [
        ui.input(label, value=value, password=label == "Password").classes("wl-wide") for label, value in fields.items()
    ]


def explain(command: str, lost: str) -> bool:
    """Draw what a change loses, and the command that does the same."""
    if lost:
        html.p(lost).classes("wl-bad")
    html.p("The command that does the same:")
    html.code(command).classes("wl-mono")
    return True


def pairs(text: str) -> dict[str, str]:
    """Parse "retention.ms=7d segment.bytes=1MiB", quoted as in a shell; ValueError for anything else."""
    return dict(map(parse_setting, shlex.split(text)))


def options(name: str, text: str) -> list[str]:
    """Return an option for each word of a text: `--set a=1 --set b=2` of "a=1 b=2"."""
    return [word for each in shlex.split(text) for word in (name, each)]
