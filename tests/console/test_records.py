"""The page of records: found, followed, looked at, downloaded, produced; harmless whatever they are."""

import io
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.parquet
import pytest

from broker_process import BrokerProcess
from console.conftest import Browser, change, row
from warmlog.blocking import Admin, Consumer, Producer

XSS = b'<img src=x onerror=alert(1)><script>alert(2)</script>{{ constructor.constructor("alert(3)")() }}`${alert(4)}`'


@pytest.fixture(scope="module", autouse=True)
def data(broker: BrokerProcess) -> None:
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        for topic in ("orders", "odd", "quick", "made"):
            admin.create_topic(topic)
        for number in range(300):
            value = b'{"number": %d, "items": [{"name": "<b>"}]}' % number
            producer.send("orders", value, key=b"k%d" % (number % 7), headers=[("n", b"%d" % number)])
        producer.send("odd", XSS, key=XSS, headers=[(XSS.decode(), XSS)])
        producer.send("odd", b'{"<img src=x onerror=alert(5)>": "<img src=x>"}')
        producer.send("odd", b"\x1b[2J\x00\xff\xfe\xe2\x80\xae turned")
        producer.send("odd", None, key=b"tombstone")
        producer.send("odd", b"", key=b"empty")
        producer.flush()


def opened(browser: Browser, topic: str, **query: str) -> Any:
    """The page, when it has found records."""
    given = "".join(f"&{name}={quote(text)}" for name, text in query.items())
    page = browser.page(f"/records?topic={topic}{given}")
    page.get_by_role("status").filter(has_text=f"records of {topic}").wait_for()
    return page


def test_the_newest_records_are_shown_first(browser: Browser) -> None:
    page = opened(browser, "orders", limit="5")
    assert page.locator("tbody tr").count() == 5
    assert '"number": 299' in page.locator("tbody tr").first.inner_text()


def test_records_are_found_by_key_and_text_and_the_address_can_be_sent(browser: Browser) -> None:
    page = opened(browser, "orders")
    page.get_by_label("Key is").fill("k3")
    page.get_by_label("Value contains").fill('"number": 10,')
    page.get_by_role("button", name="Search").click()
    page.get_by_role("status").filter(has_text="1 records of orders").wait_for()
    row(page, "k3", '"number": 10,').wait_for()
    other = browser.context.new_page()
    other.goto(page.url)
    row(other, "k3", '"number": 10,').wait_for()
    assert other.locator("tbody tr").count() == 1


def test_what_cannot_be_understood_is_said(browser: Browser) -> None:
    page = opened(browser, "orders")
    page.get_by_label("From an offset").fill("nonsense")
    page.get_by_role("button", name="Search").click()
    page.get_by_role("alert").filter(has_text="nonsense").wait_for()


def test_a_record_is_shown_as_text_json_hex_and_fields(browser: Browser) -> None:
    page = opened(browser, "orders", limit="3")
    row(page, '"number": 299').locator("td").nth(4).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("heading", name="orders-0, offset 299").wait_for()
    dialog.get_by_role("tab", name="JSON").click()
    dialog.get_by_text("items [] 1").wait_for()
    dialog.get_by_role("tab", name="Hex").click()
    dialog.get_by_text("00000000  7b 22 6e").wait_for()
    dialog.get_by_role("tab", name="Key and headers").click()
    dialog.get_by_text("n: 299").wait_for()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("tab", name="Fields of JSON values").click()
    page.get_by_role("columnheader", name="number").wait_for()


def test_fields_may_have_any_names(browser: Browser, broker: BrokerProcess) -> None:
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("named")
        producer.send(
            "named", b'{"id": "one", "texts": "two", "times": "three", "links": "four", "0": "five"}'
        ).result()
        producer.send("named", b'{"id": "one", "a,b": "six"}').result()
    page = opened(browser, "named")
    page.get_by_role("tab", name="Fields of JSON values").click()
    row(page, "one", "two", "three", "four", "five").wait_for()
    row(page, "one", "six").wait_for()
    page.get_by_role("columnheader", name="a,b").wait_for()
    with Producer(broker.address) as producer:
        producer.send("named", b'{"later": "seven"}').result()
    page.get_by_role("button", name="Search").click()
    row(page, "seven").wait_for()
    page.get_by_role("columnheader", name="later").wait_for()


def test_deeply_nested_json_is_shown_as_text(browser: Browser, broker: BrokerProcess) -> None:
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("nested")
        producer.send("nested", b"[" * 700 + b"]" * 700).result()
    page = opened(browser, "nested", limit="1")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("[" * 700).wait_for()
    dialog.get_by_role("tab", name="JSON").click()
    dialog.get_by_text("too large to fold").wait_for()


def test_a_link_opens_the_record(browser: Browser) -> None:
    page = opened(browser, "orders", limit="3")
    page.get_by_role("link", name="298").click()
    page.get_by_role("heading", name="orders-0, offset 298").wait_for()


def test_markup_escape_codes_and_broken_text_are_harmless(browser: Browser) -> None:
    page = opened(browser, "odd")
    row(page, XSS.decode()[:60]).wait_for()
    row(page, r"\x1b[2J\x00\xff\xfe\u202e turned").wait_for()
    row(page, "tombstone", "null").wait_for()
    row(page, "empty", "(empty)").wait_for()
    row(page, XSS.decode()[:60]).locator("td").nth(4).click()
    dialog = page.get_by_role("dialog")
    for name in ("JSON", "Hex", "Key and headers", "Text"):
        dialog.get_by_role("tab", name=name).click()
        page.wait_for_timeout(300)
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("tab", name="Fields of JSON values").click()
    page.get_by_role("columnheader", name="<img src=x onerror=alert(5)>").wait_for()
    assert page.locator("img[src=x]").count() == 0


def test_a_record_of_10_mb_is_shown_and_downloaded(browser: Browser, broker: BrokerProcess) -> None:
    value = b"<i>" * (10_000_000 // 3)
    with Admin(broker.address) as admin:
        admin.create_topic("large", configs={"max.message.bytes": 20_000_000})
    with Producer(broker.address, batch_bytes=20_000_000) as producer:
        producer.send("large", value).result()
    page = opened(browser, "large")
    row(page, "9.5 MiB").locator("td").nth(4).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("it is longer: download it").wait_for()
    with page.expect_download() as download:
        dialog.get_by_role("button", name="Download").click()
    assert Path(download.value.path()).read_bytes() == value
    assert browser.console.rss_bytes < 200_000_000


def test_what_comes_is_followed_paused_and_held_back(browser: Browser, broker: BrokerProcess) -> None:
    page = opened(browser, "quick")
    page.get_by_role("button", name="Follow").click()
    page.get_by_role("status").filter(has_text="following quick: 0 records").wait_for()
    with Producer(broker.address) as producer:
        producer.send("quick", b"first").result()
        row(page, "first").wait_for()
        page.get_by_role("button", name="Pause").click()
        producer.send("quick", b"second").result()
        page.wait_for_timeout(2500)
        assert not row(page, "second").is_visible()
        page.get_by_role("button", name="Follow").click()
        row(page, "second").wait_for()
        producer.send_many("quick", [b"many %d" % number for number in range(5000)])
        row(page, "many 4999").wait_for()
        page.get_by_role("status").filter(has_text="left out because they came too fast").wait_for()
    page.get_by_role("button", name="Stop").click()


def test_records_are_downloaded_as_json_lines_and_parquet(browser: Browser) -> None:
    page = opened(browser, "orders", limit="2")
    with page.expect_download() as download:
        page.get_by_role("button", name="JSON lines").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [299, 298]
    with page.expect_download() as download:
        page.get_by_role("button", name="Parquet").click()
    table = pyarrow.parquet.read_table(io.BytesIO(Path(download.value.path()).read_bytes()))
    assert table["offset"].to_pylist() == [299, 298]


def test_a_record_is_produced_and_seen(browser: Browser, broker: BrokerProcess) -> None:
    page = opened(browser, "made")
    change(page, "Produce", "made", "a key", "a value", "h=1", "")
    row(page, "a key", "a value", "h=1").wait_for()
    with Consumer(broker.address, topics=["made"]) as consumer:
        (record,) = consumer.records(until="latest")
    assert (record.key, record.value, list(record.headers)) == (b"a key", b"a value", [("h", b"1")])
