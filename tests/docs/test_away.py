"""Programs of the how-tos while the broker is away, at first, in the middle, at the end; and while they are killed."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import warmlog
import warmlog.blocking
from broker_process import BrokerProcess
from docs.blocks import ADDRESS, ROOT, blocks_of
from waiting import wait_until

PAGES = ROOT / "docs/how-to"
RUNNER = Path(__file__).parent / "recipe.py"
RECORDS = 100


class Job:
    """A job of the recipes over RECORDS records, one of which cannot be handled."""

    def __init__(self, broker: BrokerProcess, output: Path, name: str) -> None:
        self.broker = broker
        self.output = output
        self.name = name
        self.process = self.begin()

    def begin(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, RUNNER, PAGES / "recipes.md", self.broker.address, self.output, self.name]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        return self.process

    def end(self, timeout_s: float = 60) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, errors.decode()

    def handled(self) -> Counter[bytes]:
        return Counter(self.output.read_bytes().splitlines() if self.output.exists() else [])

    def is_in_the_middle(self) -> bool:
        return sum(self.handled().values()) > RECORDS // 4


async def _prepare(address: str) -> None:
    async with warmlog.Admin(address) as admin:
        for topic in ("visits", "visits.dead", "visits.retry"):
            await admin.create_topic(topic, partitions=2, exist_ok=True)
    values = [*(b"%d" % number for number in range(RECORDS - 1)), b"no JSON"]
    async with warmlog.Producer(address) as producer:
        await producer.send_many("visits", values, keys=[b"%d" % (number % 7) for number in range(RECORDS)])


async def _dead_letters(address: str) -> list[warmlog.Record]:
    async with warmlog.Consumer(address, topics=["visits.dead"]) as consumer:
        return [record async for record in consumer.records(until="latest")]


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with BrokerProcess(tmp_path / "data", group_initial_rebalance_delay_ms=0) as broker:
        asyncio.run(_prepare(broker.address))
        yield broker


@pytest.mark.parametrize(("name", "doubled"), [("with_dead_letters", 1), ("in_order", 3)])
def test_a_job_loses_nothing_and_doubles_no_more_than_its_page_says(
    broker: BrokerProcess, tmp_path: Path, name: str, doubled: int
) -> None:
    """A record is handled again if it was not committed when the program ended. `in_order` tries the bad one thrice."""
    broker.kill()
    job = Job(broker, tmp_path / "output", name)
    exit_code, errors = job.end()
    assert (exit_code, errors.splitlines()[-1].partition(":")[0]) == (1, "warmlog_transport.errors.BrokerUnavailable")
    broker.start()
    job.begin()
    wait_until(job.is_in_the_middle)
    broker.kill()
    time.sleep(0.5)
    broker.start()
    for number in (signal.SIGTERM, signal.SIGKILL):
        before = sum(job.handled().values())
        wait_until(lambda before=before: sum(job.handled().values()) > before or job.process.poll() is not None)
        job.process.send_signal(number)
        job.end()
        job.begin()
    exit_code, errors = job.end()
    assert exit_code == 0, errors
    counts = job.handled()
    assert len(counts) == RECORDS, "nothing is lost"
    assert sum(counts.values()) - RECORDS <= 2 + doubled * 3, "each end doubles one record"
    letters = asyncio.run(_dead_letters(broker.address))
    assert {record.value for record in letters} == {b"no JSON"}
    assert len(letters) <= 3
    headers = dict(letters[0].headers)
    assert (headers["failed.topic"], headers["failed.attempts"]) == (b"visits", b"1")
    assert (headers["failed.error"] or b"").startswith(b"JSONDecodeError: ")


def test_an_application_without_asyncio_says_503_while_the_broker_is_away(tmp_path: Path) -> None:
    (program,) = [block for block in blocks_of(PAGES / "blocking.md") if "Flask(__name__)" in block.text]
    with BrokerProcess(tmp_path / "data") as broker:
        with warmlog.blocking.Admin(broker.address) as admin:
            admin.create_topic("clicks")
        names: dict[str, Any] = {"__name__": "page"}
        text = program.text.replace(ADDRESS, broker.address).replace("5_000", "1_000")
        exec(compile(text.replace("atexit.register", "print"), "blocking.md", "exec"), names)
        with contextlib.closing(names["producer"]):
            client = names["app"].test_client()
            broker.kill()
            assert client.post("/clicks", data=b"before any other").status_code == 503
            broker.start()
            wait_until(lambda: client.post("/clicks", data=b"back").status_code == 200)
            broker.kill()
            assert client.post("/clicks", data=b"later").status_code == 503


def test_the_web_application_says_503_while_the_broker_is_away(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a newer client that it may use
        from fastapi.testclient import TestClient

    (program, *_) = blocks_of(PAGES / "fastapi.md")
    with BrokerProcess(tmp_path / "data") as broker:
        names: dict[str, Any] = {"__name__": "page"}
        text = program.text.replace(ADDRESS, broker.address).replace("5_000", "1_000")
        exec(compile(text, "fastapi.md", "exec"), names)
        broker.kill()
        with pytest.raises(warmlog.BrokerUnavailable), TestClient(names["app"]):
            pass
        broker.start()
        with TestClient(names["app"]) as client:
            broker.kill()
            assert client.post("/events", content=b"before any other").status_code == 503
            broker.start()
            wait_until(lambda: client.post("/events", content=b"back").status_code == 200)
            broker.kill()
            assert client.post("/events", content=b"later").status_code == 503
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 10, "it ends without the broker, too"
