"""Each page: what it shows, whether it can be used by keyboard and read by a screen reader, dark and light."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from broker_process import BrokerProcess
from console.conftest import Browser, browsing, row
from console_process import ConsoleProcess
from warmlog.blocking import Admin, Consumer, Producer

PAGES = ("/", "/topics", "/topic?name=flights", "/records?topic=flights", "/groups", "/group?name=etl")
PAGES += ("/transactions", "/access", "/index?topic=flights")
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 375, "height": 800}},
}
XSS = "<img src=x onerror=alert(1)>{{7*7}}"


@pytest.fixture(scope="module", autouse=True)
def data(broker: BrokerProcess) -> Iterator[None]:
    """A topic with records, a group that is behind, an open transaction, a user, a right and a quota."""
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("flights", partitions=2, configs={"retention.ms": "7d", "segment.bytes": 100_000})
        for number in range(200):
            value = b'{"carrier": "UA", "number": %d, "legs": [1, 2], "note": "%s"}' % (number, b"x" * 2000)
            producer.send("flights", value, key=b"UA", headers=[("source", b"test")], partition=number % 2)
        producer.flush()
        with Consumer(broker.address, topics=["flights"], group="etl", commit="manual") as consumer:
            next(iter(consumer.records()))
            consumer.commit()
        admin.create_user("alice", "a secret of hers")
        admin.alter_quotas({"producer_byte_rate": 1_000_000}, user="alice")
        with (
            Producer(broker.address, transactional_id="loader", transaction_timeout_ms=600_000) as loader,
            loader.transaction(),
        ):
            loader.send("flights", b"not yet committed", partition=0).result()
            yield


def settled(browser: Browser, path: str) -> Any:
    page = browser.page(path)
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_timeout(1500)
    return page


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_serious(chromium: Any, console: ConsoleProcess, look: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with browsing(chromium, console, bypass_csp=True, **LOOKS[look]) as browser:
        found = []
        for path in PAGES:
            page = settled(browser, path)
            for violation in Axe().run(page).response["violations"]:
                if violation["impact"] in ("serious", "critical"):
                    nodes = [node["html"][:200] for node in violation["nodes"][:3]]
                    found.append((path, violation["id"], nodes))
            page.close()
        assert found == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_and_200_percent(chromium: Any, console: ConsoleProcess, path: str) -> None:
    with browsing(chromium, console, **LOOKS["phone"]) as browser:
        page = settled(browser, path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 376


def test_pages_are_used_by_keyboard(browser: Browser) -> None:
    page = settled(browser, "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to main content"
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Topics"
    page.keyboard.press("Enter")
    page.get_by_role("heading", level=1, name="Topics").wait_for()


def test_the_overview_has_health_rates_disks_and_slow_groups(browser: Browser, broker: BrokerProcess) -> None:
    page = browser.page("/")
    page.get_by_text("ready, no problem is known").wait_for()
    page.get_by_text("after fsync").wait_for()
    row(page, "etl", "empty").wait_for()
    row(page, "works", "GiB").wait_for()
    busiest = page.locator(".q-table__container").filter(has_text="Records/s")
    with Producer(broker.address) as producer:
        for _ in range(60):
            producer.send("flights", b"more").result()
            page.wait_for_timeout(250)
            if busiest.locator("tbody tr", has_text="flights").is_visible():
                break
        else:
            pytest.fail("the topic is not among the busiest")
    assert page.locator("canvas").count() == 4


def test_a_topic_has_its_partitions_settings_with_origins_and_segments(browser: Browser) -> None:
    page = browser.page("/topics")
    row(page, "flights").get_by_role("link").click()
    page.get_by_role("heading", name="flights").wait_for()
    row(page, "retention.ms", "7d", "topic").wait_for()
    row(page, "compression.type", "default").wait_for()
    page.get_by_text("records are deleted after 7 days").wait_for()
    segments = page.locator(".q-table__container").filter(has=page.get_by_text("Index entries")).locator("tbody tr")
    segments.nth(3).wait_for()


def test_a_group_has_members_lag_and_partitions(browser: Browser) -> None:
    page = browser.page("/groups")
    row(page, "etl").get_by_role("link").click()
    page.get_by_role("heading", name="etl").wait_for()
    row(page, "flights", "0").wait_for()
    page.get_by_text("records, ").first.wait_for()


def test_an_open_transaction_has_its_age_and_partitions(browser: Browser) -> None:
    page = browser.page("/transactions")
    row(page, "loader", "ongoing", "flights-0").wait_for()


def test_users_rights_and_quotas_are_listed(browser: Browser) -> None:
    page = browser.page("/access")
    row(page, "alice", "password").wait_for()
    row(page, "alice", "producer_byte_rate=1000000").wait_for()


def test_the_index_is_drawn_beside_the_example(browser: Browser) -> None:
    page = browser.page("/index?topic=flights")
    page.get_by_text("flights-0, segment").wait_for()
    page.get_by_text("pages 0, 6, 9, 11, 12;").wait_for()
    page.get_by_text("pages 0, 7, 10, 12, 13;").wait_for()
    assert page.locator(".wl-warm").count() >= 3


def test_dark_and_light_are_chosen_by_hand_and_stay(browser: Browser) -> None:
    page = settled(browser, "/topics")
    assert not page.locator("body.body--dark").count()
    page.get_by_role("button", name="Dark or light").click()
    page.locator("body.body--dark").wait_for()
    page.get_by_role("link", name="Groups").click()
    page.get_by_role("heading", level=1, name="Groups").wait_for()
    page.locator("body.body--dark").wait_for()
    page.get_by_role("button", name="Dark or light").click()


def test_nothing_is_loaded_from_elsewhere(browser: Browser) -> None:
    asked: list[str] = []
    browser.context.on("request", lambda request: asked.append(request.url))
    for path in PAGES:
        settled(browser, path).close()
    assert len(asked) > len(PAGES)
    assert [url for url in asked if not url.startswith((browser.console.url, "data:"))] == []


def test_markup_in_names_and_clients_is_text(chromium: Any, broker: BrokerProcess, console: ConsoleProcess) -> None:
    named = {"client_name": XSS, "group": XSS, "instance_id": XSS, "commit": "manual"}
    with (
        Admin(broker.address) as admin,
        Consumer(broker.address, topics=["flights"], **named) as consumer,
        Producer(broker.address, transactional_id=XSS) as producer,
        producer.transaction(),
        browsing(chromium, console) as browser,
    ):
        next(iter(consumer.records()))
        consumer.commit()
        admin.alter_quotas({"consumer_byte_rate": 1_000_000}, client_id=XSS)
        producer.send("flights", b"x").result()
        for path in ("/groups", f"/group?name={quote(XSS)}", "/transactions", "/access"):
            page = browser.page(path)
            page.locator("td", has_text=XSS).first.wait_for()
            page.wait_for_timeout(500)
            assert page.locator("img[src=x]").count() == 0
            page.close()
