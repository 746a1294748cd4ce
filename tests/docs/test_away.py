"""Programs of the how-tos while the broker is away, at first, in the middle, at the end; and while they are killed."""

import asyncio
import contextlib
import json
import signal
import sqlite3
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

PAGES, EXAMPLES = ROOT / "docs/how-to", ROOT / "examples"
RUNNER = Path(__file__).parent / "recipe.py"
RECORDS = 100
KILLS = 3
"""Of the broker, and of the job by SIGTERM and SIGKILL."""


class Job:
    """A job of a page over RECORDS records, each in a batch of its own."""

    def __init__(self, broker: BrokerProcess, directory: Path, page: str, call: str) -> None:
        """`page`: that of a how-to, or a program by its path."""
        self.broker = broker
        self.directory = directory
        self.output = directory / "output"
        self.command = [sys.executable, RUNNER, PAGES / page, broker.address, self.output, call]
        self.process: subprocess.Popen[bytes]

    def begin(self, stdout: int | None = None) -> None:
        self.process = subprocess.Popen(self.command, cwd=self.directory, stdout=stdout, stderr=subprocess.PIPE)

    def end(self, timeout_s: float = 90) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, errors.decode()

    def handled(self) -> Counter[bytes]:
        return Counter(self.output.read_bytes().splitlines() if self.output.exists() else [])

    @property
    def deliveries(self) -> int:
        seen = self.output.with_suffix(".seen")
        return len(seen.read_bytes().splitlines()) if seen.exists() else 0

    def fail_without_broker(self) -> None:
        """Kill the broker, run the job, which says that the broker is away, and start the broker again."""
        self.broker.kill()
        self.begin()
        exit_code, errors = self.end()
        assert exit_code == 1
        assert is_away(errors), errors
        self.broker.start()

    def survive(self) -> None:
        """Run it without the broker at first; kill the broker in the middle, and then end and kill the job."""
        self.fail_without_broker()
        self.begin()
        wait_until(lambda: self.deliveries > RECORDS // 4)
        self.broker.kill()
        time.sleep(0.5)
        self.broker.start()
        for number in (signal.SIGTERM, signal.SIGKILL):
            before = self.deliveries
            wait_until(lambda before=before: self.deliveries > before or self.process.poll() is not None)
            self.process.send_signal(number)
            self.end()
            self.begin()
        exit_code, errors = self.end()
        assert exit_code == 0, errors


def is_away(errors: str) -> bool:
    """Whether a program ended because it could not reach the broker at its beginning."""
    return errors.splitlines()[-1].startswith("warmlog_transport.errors.BrokerUnavailable: ")


async def _prepare(address: str, topic: str, values: list[bytes]) -> None:
    async with warmlog.Admin(address) as admin:
        for name in ("visits", "visits.dead", "visits.retry", "totals", "copies", topic):
            await admin.create_topic(name, partitions=2, exist_ok=True)
    async with warmlog.Producer(address) as producer:
        for number, value in enumerate(values):
            await producer.send(topic, value, key=b"%d" % (number % 7))


async def _read(address: str, topic: str) -> list[warmlog.Record]:
    async with warmlog.Consumer(address, topics=[topic], isolation="read_committed") as consumer:
        return [record async for record in consumer.records(until="latest")]


@pytest.fixture
def broker(tmp_path: Path) -> Any:
    with BrokerProcess(tmp_path / "data", group_initial_rebalance_delay_ms=0) as broker:
        yield broker


VISITS = [*(b"%d" % number for number in range(RECORDS - 1)), b"no JSON"]


@pytest.mark.parametrize(
    ("call", "doubled"), [("with_dead_letters()", 1), pytest.param("in_order()", 3, marks=pytest.mark.slow)]
)
def test_a_job_loses_nothing_and_doubles_no_more_than_its_page_says(
    broker: BrokerProcess, tmp_path: Path, call: str, doubled: int
) -> None:
    """A record is handled again if it was not committed when the program ended. `in_order` tries the bad one thrice."""
    asyncio.run(_prepare(broker.address, "visits", VISITS))
    job = Job(broker, tmp_path, "recipes.md", call)
    job.survive()
    counts = job.handled()
    assert len(counts) == RECORDS, "nothing is lost"
    assert sum(counts.values()) - RECORDS <= 2 + doubled * KILLS, "each end doubles one record"
    letters = asyncio.run(_read(broker.address, "visits.dead"))
    assert {record.value for record in letters} == {b"no JSON"}
    assert len(letters) <= KILLS
    headers = dict(letters[0].headers)
    assert (headers["failed.topic"], headers["failed.attempts"]) == (b"visits", b"1")
    assert (headers["failed.error"] or b"").startswith(b"JSONDecodeError: ")


@pytest.mark.slow
def test_everything_new_since_the_last_run_is_written_out(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(_prepare(broker.address, "visits", VISITS))
    job = Job(broker, tmp_path, "recipes.md", "new_visits()")
    job.survive()
    counts = job.handled()
    assert set(counts) == set(VISITS)
    assert sum(counts.values()) - RECORDS <= KILLS, "a kill repeats the batch that was not committed"
    job.begin()
    assert job.end()[0] == 0
    assert job.handled() == counts, "nothing is new"


@pytest.mark.slow
def test_what_is_retried_after_a_delay_becomes_a_dead_letter_each(broker: BrokerProcess, tmp_path: Path) -> None:
    values = [b"%d" % number for number in range(RECORDS // 3)]
    asyncio.run(_prepare(broker.address, "visits.retry", values))
    job = Job(broker, tmp_path, "recipes.md", f"retry({len(values) * 3})")

    def letters() -> list[bytes | None]:
        return [record.value for record in asyncio.run(_read(broker.address, "visits.dead"))]

    job.fail_without_broker()
    job.begin()
    wait_until(lambda: job.deliveries > len(values) // 2)
    broker.kill()
    time.sleep(0.5)
    broker.start()
    for number in (signal.SIGTERM, signal.SIGKILL):
        before = job.deliveries
        wait_until(lambda before=before: job.deliveries > before)
        job.process.send_signal(number)
        job.end()
        job.begin()
    wait_until(lambda: len(set(letters())) == len(values))
    job.process.kill()
    job.end()
    assert len(letters()) <= len(values) + KILLS


@pytest.mark.slow
def test_a_database_with_its_positions_counts_each_record_once(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(_prepare(broker.address, "payments", [b'{"account": "a", "amount": 1}'] * RECORDS))
    Job(broker, tmp_path, "exactly-once.md", "consume(database)").survive()
    with contextlib.closing(sqlite3.connect(tmp_path / "payments.db")) as database:
        assert list(database.execute("SELECT sum(amount) FROM balances")) == [(RECORDS,)]
        assert list(database.execute("SELECT sum(next_offset) FROM positions")) == [(RECORDS,)]


@pytest.mark.slow
def test_the_example_with_a_database_counts_each_record_once(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(_prepare(broker.address, "visits", VISITS))
    with contextlib.closing(sqlite3.connect(tmp_path / "visits.db")) as database:
        database.execute("CREATE TABLE visits (page TEXT PRIMARY KEY, count INTEGER)")
        database.execute("CREATE TABLE positions (part TEXT PRIMARY KEY, next_offset INTEGER)")
        call = f"copy({broker.address!r}, sqlite3.connect('visits.db'))"
        Job(broker, tmp_path, str(EXAMPLES / "exactly_once_sqlite.py"), call).survive()
        assert list(database.execute("SELECT sum(count) FROM visits")) == [(RECORDS,)]


@pytest.mark.slow
def test_the_example_with_a_file_counts_each_record_once(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(_prepare(broker.address, "etl-orders", [b'{"customer": "a", "euros": 10}'] * RECORDS))
    Job(broker, tmp_path, str(EXAMPLES / "etl_resume.py"), f"process({broker.address!r})").survive()
    assert json.loads((tmp_path / "etl_state.json").read_text())["sums"] == {"a": 10 * RECORDS}


@pytest.mark.slow
def test_a_data_frame_has_each_record_once_or_is_an_error(broker: BrokerProcess, tmp_path: Path) -> None:
    count = 20_000
    asyncio.run(_prepare(broker.address, "trips", []))
    with warmlog.blocking.Producer(broker.address) as producer:
        producer.send_many("trips", [b'{"city": "Oslo", "km": 1}'] * count)
    job = Job(broker, tmp_path, "dataframes.md", "from warmlog import arrow_reader")
    job.fail_without_broker()
    for delay_s in (0.2, 0.4, 0.6, 0.8):
        job.begin(stdout=subprocess.PIPE)
        time.sleep(delay_s)
        broker.kill()
        broker.start()
        assert job.process.stdout is not None
        printed = job.process.stdout.read()
        exit_code, errors = job.end()
        assert (exit_code == 0 and printed.startswith(b"%d [" % count)) or is_away(errors)


@pytest.mark.slow
def test_a_file_with_its_positions_counts_each_record_once(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(_prepare(broker.address, "orders", VISITS))
    Job(broker, tmp_path, "resume.md", "consume()").survive()
    assert json.loads((tmp_path / "orders.json").read_text())["count"] == RECORDS


@pytest.mark.parametrize(
    ("call", "topic", "factor"),
    [
        ('work("worker-1")', "totals", 2),
        pytest.param("from warmlog.blocking import Consumer, Producer", "copies", 1, marks=pytest.mark.slow),
    ],
)
def test_from_topic_to_topic_each_record_comes_once(
    broker: BrokerProcess, tmp_path: Path, call: str, topic: str, factor: int
) -> None:
    asyncio.run(_prepare(broker.address, "orders", [b"%d" % number for number in range(RECORDS)]))
    Job(broker, tmp_path, "topic-to-topic.md", call).survive()
    values = sorted(int(record.value or b"") for record in asyncio.run(_read(broker.address, topic)))
    assert values == [factor * number for number in range(RECORDS)]


@pytest.mark.slow
def test_a_table_of_a_compacted_topic_is_right_after_kills(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(_prepare(broker.address, "balances", [b"%d" % number for number in range(RECORDS)]))
    job = Job(broker, tmp_path, "recipes.md", "balances()")
    job.fail_without_broker()
    for delay_s in (0.3, 0.5, 0.7):
        job.begin()
        time.sleep(delay_s)
        broker.kill()
        broker.start()
        exit_code, errors = job.end()
        is_right = exit_code == 0 and "Traceback" not in errors  # it may say that it tries to connect again
        assert is_right or is_away(errors), "its assertions on the table hold"
    for number in (signal.SIGTERM, signal.SIGKILL):
        job.begin()
        time.sleep(0.5)
        job.process.send_signal(number)
        job.end()
    job.begin()
    assert job.end() == (0, "")


@pytest.mark.slow
def test_a_shell_job_of_a_group_loses_nothing(broker: BrokerProcess, tmp_path: Path) -> None:
    asyncio.run(_prepare(broker.address, "visits", VISITS))
    (block,) = [each for each in blocks_of(PAGES / "recipes.md") if "--group nightly-export" in each.text]
    text = block.text.replace("warmlog", f"{sys.executable} -m warmlog --broker {broker.address}", 1)

    def run() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(["sh", "-c", f"exec {text.strip()}"], cwd=tmp_path, stderr=subprocess.PIPE)

    broker.kill()
    away = run()
    _, errors = away.communicate(timeout=180)
    assert away.returncode == 1
    assert errors.startswith(b"warmlog: ")
    broker.start()
    for number in (signal.SIGTERM, signal.SIGKILL):
        running = run()
        time.sleep(0.6)
        running.send_signal(number)
        running.communicate(timeout=180)
    running = run()
    broker.kill()
    broker.start()
    _, errors = running.communicate(timeout=120)
    if running.returncode != 0:
        assert errors.startswith(b"warmlog: ")
        last = run()
        last.communicate(timeout=180)
        assert last.returncode == 0
    written = (tmp_path / "visits.txt").read_bytes().splitlines()
    assert set(written) == set(VISITS), "exit code 0 says that all is written"


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
        assert time.monotonic() - began_s < 25, "it ends without the broker, too"
