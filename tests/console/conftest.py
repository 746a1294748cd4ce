"""A Chromium, a broker and its console: `make test-console`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from broker_process import BrokerProcess
from chromium import CHROMIUM, launched
from console_process import ConsoleProcess

NOT_OURS = ("WebSocket connection", "net::ERR_", "the server responded with a status of")
"""What a browser says while the console or its broker is away."""


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.slow)
    if CHROMIUM is None:
        item.add_marker(pytest.mark.skip(reason="needs Chromium: make test-console"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    with launched() as browser:
        yield browser


class Browser:
    """A browser of one user, and pages of one console in it."""

    def __init__(self, chromium: Any, console: ConsoleProcess, **context: Any) -> None:
        self.console = console
        self.context = chromium.new_context(ignore_https_errors=True, accept_downloads=True, **context)
        self.context.set_default_timeout(15_000)
        self.complaints: list[str] = []
        """What the browser has refused or not understood, such as by the Content-Security-Policy."""

    def page(self, path: str = "/") -> Any:
        """Open a page; it has its data when its note or its tables do."""
        page = self.context.new_page()
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        page.goto(f"{self.console.url}{path}")
        return page

    def _note(self, kind: str, text: str) -> None:
        if kind == "error" and not any(each in text for each in NOT_OURS):
            self.complaints.append(text)

    def log_in(self, user: str, password: str) -> None:
        page = self.page("/")
        page.get_by_label("User").fill(user)
        page.get_by_label("Password").fill(password)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("heading", name="Overview").wait_for()
        page.close()


@contextmanager
def browsing(chromium: Any, console: ConsoleProcess, **context: Any) -> Iterator[Browser]:
    """A browser of its own; fails if something in it has complained, or if a task of the console has failed."""
    browser = Browser(chromium, console, **context)
    try:
        yield browser
        assert browser.complaints == []
        assert "Traceback" not in console.output
    finally:
        browser.context.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), group_initial_rebalance_delay_ms=0) as running:
        yield running


@pytest.fixture(scope="module")
def console(broker: BrokerProcess) -> Iterator[ConsoleProcess]:
    """A console that may change things, although the broker asks for no login."""
    with ConsoleProcess(broker.address, "--allow-changes") as running:
        yield running


@pytest.fixture
def browser(chromium: Any, console: ConsoleProcess) -> Iterator[Browser]:
    with browsing(chromium, console) as opened:
        yield opened


def row(page: Any, *texts: str) -> Any:
    """The row of a table that has all these texts."""
    found = page.locator("tbody tr")
    for text in texts:
        found = found.filter(has_text=text)
    return found.first


def fill(page: Any, title: str, *fields: str) -> None:
    """Press the button of a change, and fill its fields in their order."""
    page.get_by_role("button", name=title, exact=True).click()
    if fields:
        dialog = page.get_by_role("dialog").last
        go_on = dialog.get_by_role("button", name="Go on")
        go_on.wait_for()
        for field, text in zip(dialog.locator("input").all(), fields, strict=True):
            field.fill(text)
        go_on.click()


def agree(page: Any, title: str) -> None:
    """Agree to a change that was shown."""
    agreed = page.get_by_role("dialog").filter(has_text="The command that does the same").last
    agreed.get_by_role("button", name=title, exact=True).click()
    agreed.wait_for(state="hidden")


def change(page: Any, title: str, *fields: str) -> None:
    """Change something."""
    fill(page, title, *fields)
    agree(page, title)
