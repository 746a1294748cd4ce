"""Ten things that people look for, each in at most three clicks: docs/how-to/console.md lists them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker_process import BrokerProcess
from console.conftest import Browser, browsing, row
from console_process import ConsoleProcess
from warmlog import Acl
from warmlog.blocking import Admin, Consumer, Producer

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "console.md"
MOST_CLICKS = 3


class Job(NamedTuple):
    """What is looked for, as the documentation has it; what is clicked; and what shows that it is found."""

    name: str
    clicks: tuple[Callable[[Any], Any], ...]
    found: Callable[[Any], Any]
    types: dict[str, str] = {}  # noqa: RUF012 - a field's default
    """Into which fields what is typed, after the first click. Enter ends it."""


def link(name: str) -> Callable[[Any], Any]:
    return lambda page: page.get_by_role("link", name=name, exact=True).last.click()


def in_a_tab(name: str) -> Callable[[Any], Any]:
    """A link that is opened in another tab, by a click with Ctrl."""

    def click(page: Any) -> None:
        with page.context.expect_page():
            page.get_by_role("link", name=name, exact=True).last.click(modifiers=["ControlOrMeta"])

    return click


def heading(name: str) -> Callable[[Any], Any]:
    return lambda page: page.get_by_role("columnheader", name=name).click()


def cells(*texts: str) -> Callable[[Any], Any]:
    return lambda page: row(page, *texts).wait_for()


def cells_of_tabs(*texts: tuple[str, str]) -> Callable[[Any], Any]:
    """One row in each of the tabs that were opened last."""
    return lambda page: [
        row(tab, *each).wait_for() for tab, each in zip(page.context.pages[-len(texts) :], texts, strict=True)
    ]


def text(words: str) -> Callable[[Any], Any]:
    return lambda page: page.get_by_text(words).first.wait_for()


JOBS = (
    Job("find a record by its key", (link("Records"),), cells("k7", "value 7"), {"Topic": "orders", "Key is": "k7"}),
    Job("see the newest records of a topic", (link("Topics"), link("orders"), link("Records")), cells("value 99")),
    Job("see why a group is behind", (link("slow"),), cells("orders", "0")),
    Job("see what a topic keeps, and for how long", (link("Topics"), link("orders")), cells("retention.ms", "7d")),
    Job(
        "compare the settings of two topics",
        (link("Topics"), in_a_tab("orders"), in_a_tab("other")),
        cells_of_tabs(("retention.ms", "7d"), ("retention.ms", "1d")),
    ),
    Job("find the largest topic", (link("Topics"), heading("Size"), heading("Size")), cells("orders")),
    Job("see whether the broker is well", (), text("ready, no problem is known")),
    Job("find a transaction that hangs", (link("Transactions"),), cells("stuck", "ongoing")),
    Job("see who may read a topic", (link("Users and rights"),), cells("User:alice", "allow", "orders")),
    Job("see which pages a lookup in an index reads", (link("Index"),), text("orders-0, segment"), {"Topic": "orders"}),
)


@pytest.fixture(scope="module", autouse=True)
def data(broker: BrokerProcess) -> Iterator[None]:
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        admin.create_topic("orders", configs={"retention.ms": "7d"})
        admin.create_topic("other", configs={"retention.ms": "1d"})
        for number in range(100):
            producer.send("orders", b"value %d %s" % (number, b"x" * 500), key=b"k%d" % number)
            if number % 10 == 9:
                producer.flush()  # a batch of its own, so that the index has entries
        with Consumer(broker.address, topics=["orders"], group="slow", commit="manual") as consumer:
            next(iter(consumer.records()))
            consumer.commit()
        admin.create_acls([Acl("User:alice", "read", "topic", "orders")])
        with (
            Producer(broker.address, transactional_id="stuck", transaction_timeout_ms=600_000) as stuck,
            stuck.transaction(),
        ):
            stuck.send("other", b"x").result()
            yield


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_a_job_takes_few_clicks(browser: Browser, job: Job) -> None:
    assert len(job.clicks) <= MOST_CLICKS
    page = browser.page("/")
    for number, click in enumerate(job.clicks):
        click(page)
        if number == 0 and job.types:
            for label, typed in job.types.items():
                page.locator(f'input[aria-label="{label}"]').fill(typed)
                page.keyboard.press("Enter")
    job.found(page)


def test_the_documentation_lists_these_jobs() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    listed = [(row[0], row[-1]) for row in rows]
    assert [(job.name, str(len(job.clicks))) for job in JOBS] == [row for row in listed if row[1].isdecimal()]


def test_from_nothing_to_the_record_that_was_just_produced_takes_less_than_a_minute(
    chromium: Any, tmp_path: Path
) -> None:
    begun = time.monotonic()
    with BrokerProcess(tmp_path) as broker, ConsoleProcess(broker.address) as console:
        with Admin(broker.address) as admin, Producer(broker.address) as producer:
            admin.create_topic("first")
            producer.send("first", b"hello").result()
        with browsing(chromium, console) as browser:
            page = browser.page("/")
            for click in (link("Topics"), link("first"), link("Records")):
                click(page)
            row(page, "hello").wait_for()
    assert time.monotonic() - begun < 60
