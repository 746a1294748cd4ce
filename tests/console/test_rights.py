"""With a login: a user sees and does what the broker lets it."""

from collections.abc import Iterator
from typing import Any

import pytest

from broker_process import BrokerProcess
from console.conftest import browsing, row
from console_process import ConsoleProcess
from warmlog.admin.access.acls import Acl
from warmlog.blocking import Admin, Consumer, Producer

PASSWORD = "correct horse"
PAGES = ("/", "/topics", "/groups", "/transactions", "/access", "/topic?name=secret", "/records?topic=secret")
PAGES += ("/group?name=spies", "/index?topic=secret")


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsoleProcess]:
    """Of a broker with the topics `public` and `secret`; `reader` may read the first, `boss` everything."""
    data_dir = tmp_path_factory.mktemp("rights") / "data"
    with (
        BrokerProcess(data_dir) as broker,
        Admin(broker.address) as admin,
        Producer(broker.address) as producer,
    ):
        for topic in ("public", "secret"):
            admin.create_topic(topic)
            producer.send(topic, b"a value of " + topic.encode()).result()
        with Consumer(broker.address, topics=["secret"], group="spies") as consumer:
            list(consumer.records(until="latest"))
        for user in ("reader", "boss"):
            admin.create_user(user, PASSWORD)
        rules = [Acl("User:reader", operation, "topic", "public") for operation in ("read", "describe_configs")]
        rules += [Acl("User:boss", "all", kind, "*") for kind in ("topic", "group", "transactional_id")]
        admin.create_acls([*rules, Acl("User:boss", "all", "cluster")])
    settings = {"listeners": "main=sasl_plaintext://127.0.0.1:0", "authorization": "acl"}
    with BrokerProcess(data_dir, **settings) as broker, ConsoleProcess(broker.address) as running:
        yield running


def test_a_user_who_may_read_one_topic_sees_that_and_nothing_of_others(chromium: Any, console: ConsoleProcess) -> None:
    with browsing(chromium, console) as browser:
        browser.log_in("reader", PASSWORD)
        for path in PAGES:
            page = browser.page(path)
            page.wait_for_timeout(2500)
            text = page.locator("main").inner_text()
            asked = path.partition("?")[2]
            assert "a value of secret" not in text
            if "secret" not in asked:
                assert "secret" not in text
            if "spies" not in asked:
                assert "spies" not in text
            page.close()
        page = browser.page("/topics")
        row(page, "public").wait_for()
        assert page.locator("tbody tr").count() == 1
        page = browser.page("/records?topic=public")
        row(page, "a value of public").wait_for()
        page = browser.page("/topic?name=public")
        row(page, "retention.ms").wait_for()


def test_what_a_user_may_not_do_the_broker_refuses(chromium: Any, console: ConsoleProcess) -> None:
    with browsing(chromium, console) as browser:
        browser.log_in("reader", PASSWORD)
        page = browser.page("/topic?name=public")
        page.get_by_role("button", name="Delete topic").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete topic").click()
        page.get_by_role("alert").filter(has_text="lacks the right").first.wait_for()


def test_another_user_has_a_session_of_its_own(chromium: Any, console: ConsoleProcess) -> None:
    with browsing(chromium, console) as reader, browsing(chromium, console) as boss:
        reader.log_in("reader", PASSWORD)
        boss.log_in("boss", PASSWORD)
        row(boss.page("/topics"), "secret").wait_for()
        row(boss.page("/groups"), "spies").wait_for()
        row(boss.page("/access"), "reader", "password").wait_for()
        page = reader.page("/topics")
        row(page, "public").wait_for()
        assert page.locator("tbody tr").count() == 1


def test_logging_out_ends_the_session(chromium: Any, console: ConsoleProcess) -> None:
    with browsing(chromium, console) as browser:
        browser.log_in("reader", PASSWORD)
        page = browser.page("/topics")
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Password").wait_for()
        page.goto(f"{console.url}/topics")
        page.get_by_label("Password").wait_for()


def test_a_wrong_password_is_said(chromium: Any, console: ConsoleProcess) -> None:
    with browsing(chromium, console) as browser:
        page = browser.page("/")
        page.get_by_label("User").fill("reader")
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("alert").filter(has_text="password").wait_for()
