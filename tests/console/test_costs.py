"""What the console costs: its memory, how long many topics take, and what it asks the broker."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from broker_process import BrokerProcess, port_to_keep
from console.conftest import browsing
from console_process import ConsoleProcess
from warmlog.blocking import Admin

TOPICS, PARTITIONS = 1_000, 10
WITHIN_S = 5.0
"""A second on a machine that does nothing else, where `costs` measures it."""
MEMORY_BYTES = 120_000_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("many") / "data") as running:
        with Admin(running.address) as admin:
            for number in range(TOPICS):
                admin.create_topic(f"topic-{number:04}", partitions=PARTITIONS)
        yield running


def test_a_thousand_topics_show_soon_and_the_memory_stays_small(chromium: Any, broker: BrokerProcess) -> None:
    with ConsoleProcess(broker.address) as console, browsing(chromium, console) as browser:
        browser.page("/")  # what a browser keeps of a site is loaded
        begun = time.monotonic()
        page = browser.page("/topics")
        page.locator("tbody tr").nth(49).wait_for()
        took_s = time.monotonic() - begun
        browser.page("/records?topic=topic-0001")
        page.wait_for_timeout(10_000)
        print(f"{TOPICS} topics in {took_s:.2f} s, {console.rss_bytes / 1e6:.0f} MB with three pages")
        assert took_s < WITHIN_S
        assert console.rss_bytes < MEMORY_BYTES


def test_nothing_is_asked_while_no_page_is_open_and_once_in_two_seconds_for_all(chromium: Any, tmp_path: Path) -> None:
    port = port_to_keep()
    with (
        BrokerProcess(tmp_path, admin_listen=f"127.0.0.1:{port}") as broker,
        ConsoleProcess(broker.address) as console,
        browsing(chromium, console) as browser,
    ):

        def asked_within(seconds: float) -> int:
            """How often the broker was asked for its status."""
            before = _requests(port)
            time.sleep(seconds)
            return _requests(port) - before

        pages = [browser.page("/") for _ in range(3)]
        pages[-1].get_by_text("ready, no problem is known").wait_for()
        assert 2 <= asked_within(8) <= 5
        for page in pages:
            page.close()
        time.sleep(15)
        assert asked_within(6) == 0


def _requests(port: int) -> int:
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    found = re.search(r'^warmlog_request_seconds_count\{api="DescribeStatus".*\} (\S+)', text, re.MULTILINE)
    return int(float(found[1])) if found else 0
