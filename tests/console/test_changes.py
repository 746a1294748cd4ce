"""What can be changed from the page: it shows the command, asks, and does it; or not, if the console is read only."""

from collections.abc import Iterator
from typing import Any

import pytest

import warmlog
from broker_process import BrokerProcess
from console.conftest import Browser, agree, browsing, change, fill, row
from console_process import ConsoleProcess
from warmlog.blocking import Admin, Consumer, Producer


@pytest.fixture
def admin(broker: BrokerProcess) -> Iterator[Admin]:
    with Admin(broker.address) as admin:
        yield admin


def said(page: Any, text: str) -> None:
    page.get_by_role("alert").filter(has_text=text).first.wait_for()


def test_a_topic_is_created_altered_grown_and_deleted(browser: Browser, admin: Admin) -> None:
    page = browser.page("/topics")
    change(page, "Create topic", "made", "2", "retention.ms=7d segment.bytes=1MiB")
    said(page, "Create topic: done")
    row(page, "made").get_by_role("link").click()
    row(page, "retention.ms", "7d", "topic").wait_for()
    change(page, "Change settings", "retention.ms=1d", "segment.bytes")
    row(page, "retention.ms", "1d").wait_for()
    row(page, "segment.bytes", "default").wait_for()
    change(page, "Add partitions", "3")
    said(page, "Add partitions: done")
    assert len(admin.describe_topic("made").partitions) == 3
    change(page, "Delete topic")
    page.get_by_role("heading", level=1, name="Topics").wait_for()
    assert "made" not in admin.topic_names()


def test_the_command_that_does_the_same_is_shown_and_cancel_does_nothing(browser: Browser, admin: Admin) -> None:
    page = browser.page("/topics")
    fill(page, "Create topic", "not-made", "1", "cleanup.policy=compact")
    command = "warmlog topic create not-made --partitions 1 --config cleanup.policy=compact"
    page.get_by_text(command).wait_for()
    page.get_by_role("dialog").last.get_by_role("button", name="Cancel").click()
    page.wait_for_timeout(1000)
    assert "not-made" not in admin.topic_names()


def test_records_are_deleted_after_a_warning(browser: Browser, admin: Admin, broker: BrokerProcess) -> None:
    admin.create_topic("shortened")
    with Producer(broker.address) as producer:
        producer.send_many("shortened", [b"x"] * 10)
    page = browser.page("/topic?name=shortened")
    fill(page, "Delete records", "0", "4")
    page.get_by_text("before offset 4 are gone for ever").wait_for()
    agree(page, "Delete records")
    said(page, "Delete records: done")
    assert admin.list_offsets("shortened", "earliest")[0].offset == 4


def test_an_error_of_the_broker_is_said(browser: Browser) -> None:
    page = browser.page("/topics")
    change(page, "Create topic", "no such/name", "1", "")
    said(page, "no such/name")
    change(page, "Create topic", "fine", "many", "")
    said(page, "many")


def test_a_reset_shows_what_it_would_do_first(browser: Browser, admin: Admin, broker: BrokerProcess) -> None:
    admin.create_topic("read")
    with Producer(broker.address) as producer:
        producer.send_many("read", [b"x"] * 10)
    with Consumer(broker.address, topics=["read"], group="readers", commit="manual") as consumer:
        assert len(list(consumer.records(until="latest"))) == 10
        consumer.commit()
    page = browser.page("/group?name=readers")
    row(page, "read", "10").wait_for()
    fill(page, "Reset offsets", "2")
    page.get_by_text("read-0: from 10 to 2").wait_for()
    page.get_by_text("warmlog group reset readers --to 2 --execute").wait_for()
    assert admin.committed_offsets("readers")["read", 0].offset == 10
    agree(page, "Reset offsets")
    said(page, "Reset offsets: done")
    assert admin.committed_offsets("readers")["read", 0].offset == 2
    change(page, "Delete group")
    page.get_by_role("heading", level=1, name="Groups").wait_for()
    assert "readers" not in [each.name for each in admin.list_groups()]


def test_a_transaction_is_aborted(browser: Browser, admin: Admin, broker: BrokerProcess) -> None:
    admin.create_topic("loaded")
    with Producer(broker.address, transactional_id="stuck") as producer:
        transaction = producer.transaction()
        transaction.__enter__()
        producer.send("loaded", b"x").result()
        page = browser.page("/transactions")
        row(page, "stuck", "ongoing").wait_for()
        change(page, "Abort", "stuck")
        said(page, "Abort: done")
        with pytest.raises(warmlog.WarmlogError):
            producer.send("loaded", b"y").result()
        transaction.__exit__(warmlog.WarmlogError, warmlog.WarmlogError(), None)
    assert admin.describe_transaction("stuck").state == "empty"


def test_users_rights_and_quotas_are_changed(browser: Browser, admin: Admin) -> None:
    page = browser.page("/access")
    change(page, "Add user", "bob", "a long secret")
    row(page, "bob", "password").wait_for()
    change(page, "New password", "bob", "another secret")
    said(page, "New password: done")
    change(page, "Set quota", "bob", "", "producer_byte_rate", "5000000")
    row(page, "bob", "producer_byte_rate=5000000").wait_for()
    change(page, "Set quota", "bob", "", "producer_byte_rate", "")
    change(page, "Add right", "User:bob", "read", "topic", "orders*", "allow")
    row(page, "User:bob", "allow", "orders…").wait_for()
    fill(page, "Delete right", "User:bob", "read", "topic", "orders*", "allow")
    page.get_by_text("allow User:bob read on topic orders…").wait_for()
    agree(page, "Delete right")
    said(page, "Delete right: done")
    change(page, "Delete user", "bob")
    said(page, "Delete user: done")
    assert admin.list_users() == []
    assert admin.describe_acls() == []
    assert admin.describe_quotas() == []


def test_a_console_that_is_read_only_changes_nothing(chromium: Any, broker: BrokerProcess, admin: Admin) -> None:
    admin.create_topic("kept")
    with ConsoleProcess(broker.address) as console, browsing(chromium, console) as browser:
        for path, titles in (
            ("/topics", ["Create topic"]),
            ("/topic?name=kept", ["Change settings", "Add partitions", "Delete records", "Delete topic"]),
            ("/records", ["Produce"]),
            ("/group?name=g", ["Reset offsets", "Delete group"]),
            ("/transactions", ["Abort"]),
            ("/access", ["Add user", "New password", "Delete user", "Add right", "Delete right", "Set quota"]),
        ):
            page = browser.page(path)
            for title in titles:
                assert page.get_by_role("button", name=title, exact=True).is_disabled()
        page = browser.page("/topic?name=kept")
        row(page, "retention.ms").wait_for()
        forced = "document.querySelectorAll('button[disabled]').forEach(each => each.disabled = false)"
        page.evaluate(forced)
        page.get_by_role("button", name="Delete topic").click(force=True)
        page.wait_for_timeout(1500)
        agree = page.get_by_role("dialog").get_by_role("button", name="Delete topic")
        if agree.count():
            agree.click()
            page.wait_for_timeout(1500)
    assert "kept" in admin.topic_names()
