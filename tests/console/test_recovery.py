"""A broker that stops, starts again, hangs; a console that is restarted: the page says so and recovers."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess
from console.conftest import browsing, row
from console_process import ConsoleProcess
from warmlog.blocking import Admin

AWAY_MS = 30_000


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as running:
        with Admin(running.address) as admin:
            admin.create_topic("flights")
        yield running


def test_a_broker_that_is_restarted_is_said_and_the_page_recovers(chromium: Any, broker: BrokerProcess) -> None:
    with ConsoleProcess(broker.address) as console, browsing(chromium, console) as browser:
        page = browser.page("/topics")
        row(page, "flights").wait_for()
        broker.kill()
        alert = page.locator("main [role=alert]")
        alert.filter(has_text="trying again").wait_for(timeout=AWAY_MS)
        broker.start()
        alert.wait_for(state="hidden", timeout=AWAY_MS)
        with Admin(broker.address) as admin:
            admin.create_topic("later")
        row(page, "later").wait_for()
        overview = browser.page("/")
        overview.get_by_text("ready, no problem is known").wait_for()


def test_a_broker_that_hangs_is_said_and_the_page_recovers(chromium: Any, broker: BrokerProcess) -> None:
    with ConsoleProcess(broker.address) as console, browsing(chromium, console) as browser:
        page = browser.page("/")
        page.get_by_text("ready, no problem is known").wait_for()
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            alert = page.locator("main [role=alert]")
            alert.filter(has_text="trying again").wait_for(timeout=AWAY_MS)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        alert.wait_for(state="hidden", timeout=AWAY_MS)


def test_a_search_that_takes_long_is_stopped(chromium: Any, broker: BrokerProcess) -> None:
    with ConsoleProcess(broker.address) as console, browsing(chromium, console) as browser:
        page = browser.page("/records?topic=flights")
        note = page.get_by_role("status")
        note.filter(has_text="0 records of flights").wait_for()
        search, stop = (page.get_by_role("button", name=name, exact=True) for name in ("Search", "Stop"))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            search.click()
            note.filter(has_text="searching").wait_for()
            stop.click()
            note.filter(has_text="stopped").wait_for()
            search.click()
            note.filter(has_text="searching").wait_for()
            page.close()
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        row(browser.page("/topics"), "flights").wait_for()


def test_a_console_that_is_restarted_asks_its_pages_to_come_back(chromium: Any, broker: BrokerProcess) -> None:
    with ConsoleProcess(broker.address) as console:
        address = console.url.removeprefix("http://")
        with browsing(chromium, console) as browser:
            page = browser.page("/topics")
            row(page, "flights").wait_for()
            console.process.terminate()
            console.process.wait(20)
            with ConsoleProcess(broker.address, "--listen", address):
                page.get_by_role("heading", level=1, name="Topics").wait_for()
                row(page, "flights").wait_for(timeout=AWAY_MS)
