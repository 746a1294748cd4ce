"""What a console with three open pages costs `produce.send_many`, and how long 1,000 topics of 10 partitions take.

`python -m console.costs` in tests, on a machine that does nothing else. The broker is asked with and without pages in
turns; what is printed last is the median of nine. The browser runs on the same machine, which counts against it.
"""

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from broker_process import BrokerProcess
from console_process import ConsoleProcess
from warmlog.blocking import Admin, Producer

VALUES = [b"x" * 100] * 200_000
TURN_S = 2.5
PAIRS = 9
PAGES = ("/", "/topics", "/topic?name=t")


def rate(producer: Producer) -> float:
    """Records a second, over TURN_S."""
    begun, sent = time.perf_counter(), 0
    while time.perf_counter() - begun < TURN_S:
        producer.send_many("t", VALUES)
        sent += len(VALUES)
    return sent / (time.perf_counter() - begun)


def produce(browser: Any, directory: Path) -> None:
    """Print the rates of each pair, and their median ratio."""
    with (
        BrokerProcess(directory) as broker,
        Producer(broker.address) as producer,
        Admin(broker.address) as admin,
        ConsoleProcess(broker.address) as console,
    ):
        admin.create_topic("t", configs={"retention.bytes": 500_000_000, "segment.bytes": 100_000_000})
        rate(producer)
        ratios = []
        for _ in range(PAIRS):
            pages = [browser.new_page() for _ in PAGES]
            for page, path in zip(pages, PAGES, strict=True):
                page.goto(f"{console.url}{path}")
            time.sleep(2)
            beside, memory = rate(producer), console.rss_bytes
            for page in pages:
                page.close()
            time.sleep(2)
            alone = rate(producer)
            ratios.append(beside / alone)
            print(f"{beside:,.0f} and {alone:,.0f} records/s: {ratios[-1]:.3f}; {memory / 1e6:.0f} MB", flush=True)
        print(f"median {statistics.median(ratios):.3f}")


def list_topics(browser: Any, directory: Path) -> None:
    """Print how long the list takes in a browser that has seen the console before."""
    with BrokerProcess(directory) as broker, Admin(broker.address) as admin:
        for number in range(1000):
            admin.create_topic(f"topic-{number:04}", partitions=10)
        with ConsoleProcess(broker.address) as console:
            context = browser.new_context()
            context.new_page().goto(console.url)
            for _ in range(3):
                begun = time.perf_counter()
                page = context.new_page()
                page.goto(f"{console.url}/topics")
                page.locator("tbody tr").nth(49).wait_for()
                print(f"1,000 topics in {time.perf_counter() - begun:.2f} s")
                page.close()


if __name__ == "__main__":
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as made:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        list_topics(chromium, Path(made) / "many")
        produce(chromium, Path(made) / "one")
        chromium.close()
