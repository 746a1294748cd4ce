"""Draws docs/images/console: each page, light and dark, wide and narrow: `python -m console.screenshots` in tests."""

import io
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

from broker_process import BrokerProcess
from console_process import ConsoleProcess
from warmlog.blocking import Admin, Consumer, Producer

TARGET = Path(__file__).parents[2] / "docs" / "images" / "console"
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topic?name=flights",
    "records": "/records?topic=flights&limit=20",
    "record": "/records?topic=flights&partition=0&start=100&limit=1",
    "groups": "/groups",
    "group": "/group?name=etl",
    "transactions": "/transactions",
    "access": "/access",
    "index": "/index?topic=flights",
}
WIDE, NARROW = {"width": 1200, "height": 800}, {"width": 390, "height": 800}
COLORS = 64


@contextmanager
def example(broker: BrokerProcess) -> Iterator[None]:
    """Topics, a group that is behind, an open transaction and users."""
    numbers = random.Random(1)
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        for name, partitions in (("flights", 4), ("orders", 2), ("weather", 1)):
            admin.create_topic(name, partitions=partitions, configs={"segment.bytes": 1_000_000})
            for number in range(3000):
                carrier = numbers.choice(["UA", "AA", "DL", "B6"])
                value = b'{"carrier": "%s", "flight": %d, "delay_min": %d, "note": "%s"}'
                filled = value % (carrier.encode(), number, numbers.randrange(90), b"-" * numbers.randrange(700))
                producer.send(name, filled, key=carrier.encode(), headers=[("source", b"example")])
        producer.flush()
        with Consumer(broker.address, topics=["flights"], group="etl", commit="manual") as consumer:
            for _, _record in zip(range(2000), consumer.records(), strict=False):
                pass
            consumer.commit()
        admin.create_user("alice", "not a secret")
        admin.alter_quotas({"producer_byte_rate": 1_000_000}, user="alice")
        with (
            Producer(broker.address, transactional_id="nightly-load", transaction_timeout_ms=900_000) as loader,
            loader.transaction(),
        ):
            loader.send("orders", b"not yet committed").result()
            yield


def draw(browser: Any, console: ConsoleProcess, broker: BrokerProcess) -> None:
    """Take all pictures; something is produced meanwhile, so that the charts show it."""
    with Producer(broker.address) as producer:
        warm = browser.new_context()
        warm.new_page().goto(console.url)
        for second in range(25):
            producer.send_many(
                "flights", [b'{"carrier": "UA", "flight": %d}' % second] * random.Random(second).randrange(100, 900)
            )
            time.sleep(1)
        session = warm.storage_state()
        warm.close()
    for scheme in ("light", "dark"):
        for size, viewport in (("wide", WIDE), ("narrow", NARROW)):
            context = browser.new_context(viewport=viewport, color_scheme=scheme, storage_state=session)
            for name, path in PAGES.items():
                page = context.new_page()
                page.goto(f"{console.url}{path}")
                page.wait_for_timeout(13_000 if name == "group" else 2500)  # a line needs some points
                with Image.open(io.BytesIO(page.screenshot())) as picture:
                    picture.convert("RGB").quantize(COLORS).save(TARGET / f"{name}-{scheme}-{size}.png", optimize=True)
                page.close()
            context.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    TARGET.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, BrokerProcess(Path(directory) / "data") as broker:
        options = {"executable_path": shutil.which("chromium"), "args": ["--no-sandbox"]}
        with (
            example(broker),
            ConsoleProcess(broker.address, "--allow-changes") as console,
            sync_playwright() as playwright,
        ):
            browser = playwright.chromium.launch(**options)
            draw(browser, console, broker)
            browser.close()


if __name__ == "__main__":
    main()
