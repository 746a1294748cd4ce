"""Starting points are spelled one way: the same text means the same offsets in each client and at the command line."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import warmlog
from broker_process import BrokerProcess
from integration.command_line import CommandLine, environment, succeeded
from warmlog.points import Point, PointKind
from warmlog.ranges.arrow_reader import arrow_reader

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
COUNTS = (100, 40)
TOPIC = "two-parts"
LOCAL_TIME = "CET-1CEST,M3.5.0,M10.5.0/3"

SPELLINGS: list[tuple[Any, str | None, tuple[int, int]]] = [
    ("earliest", "earliest", (0, 0)),
    ("latest", "latest", COUNTS),
    ("17", "17", (17, 17)),
    (17, None, (17, 17)),
    (Point(PointKind.OFFSET, 17), None, (17, 17)),
    ("-10", "-10", (90, 30)),
    ("-60", "-60", (40, 0)),
    (START + timedelta(minutes=25), None, (25, 25)),
    ("2026-01-01T00:25Z", "2026-01-01T00:25Z", (25, 25)),
    ("2026-01-01T00:25", "2026-01-01T01:25", (25, 25)),
    (datetime(2026, 1, 1, 0, 50), "2026-01-01T01:50+01:00", (50, 40)),
    (datetime(2026, 1, 1, 1, 50, tzinfo=timezone(timedelta(hours=1))), "2026-01-01 01:50", (50, 40)),
    ("2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00.001Z", (1, 1)),
    ("-10m", "-10m", COUNTS),
    ("-99ms", "-99ms", COUNTS),
    ("-10000d", "-10000d", (0, 0)),
    ({"two-parts-0": 5, "two-parts-1": "-3"}, None, (5, 37)),
    ({("two-parts", 0): START + timedelta(minutes=7), ("two-parts", 1): "latest"}, None, (7, 40)),
]


@pytest.fixture(scope="module")
def filled(broker: BrokerProcess) -> BrokerProcess:
    """With a topic of two partitions; record i was sent i minutes after START."""

    async def fill() -> None:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic(TOPIC, partitions=2, configs={"retention.ms": "-1"})
        async with warmlog.Producer(broker.address) as producer:
            for partition, count in enumerate(COUNTS):
                times = [START_MS + i * 60_000 for i in range(count)]
                await producer.send_many(TOPIC, [b"v"] * count, timestamps_ms=times, partition=partition)

    asyncio.run(fill())
    return broker


def firsts(places: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The first offset of each partition among these, or its end."""
    seen = dict(sorted(places, reverse=True))
    return seen.get(0, COUNTS[0]), seen.get(1, COUNTS[1])


def lasts(places: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The offset after the last of each partition among these."""
    seen = dict(sorted(places))
    return seen.get(0, -1) + 1, seen.get(1, -1) + 1


def read_by_arrow(broker: BrokerProcess, **options: Any) -> list[tuple[int, int]]:
    with arrow_reader(broker.address, [TOPIC], columns=["partition", "offset"], **options) as reader:
        return [(row["partition"], row["offset"]) for row in reader.read_all().to_pylist()]


@pytest.mark.parametrize(("where", "_", "expected"), SPELLINGS)
async def test_python_reads_from_there(filled: BrokerProcess, where: Any, _: object, expected: tuple[int, int]) -> None:
    async with warmlog.Consumer(filled.address, topics=[TOPIC], start=where) as consumer:
        assert tuple(consumer.positions().values()) == expected
        assert firsts([(each.partition, each.offset) async for each in consumer.records("latest")]) == expected
        await consumer.seek_to("earliest")
        await consumer.seek_to(where)
        assert (await consumer.to_arrow(columns=["offset"])).num_rows == sum(COUNTS) - sum(expected)
    assert firsts(read_by_arrow(filled, start=where)) == expected


@pytest.mark.parametrize(("where", "_", "expected"), SPELLINGS)
async def test_python_reads_to_there(filled: BrokerProcess, where: Any, _: object, expected: tuple[int, int]) -> None:
    async with warmlog.Consumer(filled.address, partitions=[f"{TOPIC}-0", (TOPIC, 1)]) as consumer:
        assert lasts([(each.partition, each.offset) async for each in consumer.records(where)]) == expected
        await consumer.seek_to("earliest")
        assert (await consumer.to_arrow(where, columns=["offset"])).num_rows == sum(expected)
        assert tuple(consumer.positions().values()) == expected
    assert lasts(read_by_arrow(filled, end=where)) == expected


@pytest.mark.parametrize(("text", "expected"), [(text, expected) for _, text, expected in SPELLINGS if text])
def test_commands_read_from_there_and_to_there(filled: BrokerProcess, text: str, expected: tuple[int, int]) -> None:
    assert firsts(printed(filled, "--from", text, "--to", "latest")) == expected
    assert firsts(printed(filled, f"--from={text}", "--to=latest")) == expected
    if text != "earliest":
        assert lasts(printed(filled, "--to", text)) == expected


def printed(broker: BrokerProcess, *options: str) -> list[tuple[int, int]]:
    """What `warmlog consume` prints with local time an hour ahead of UTC."""
    lines = succeeded(CommandLine(broker.address, TZ=LOCAL_TIME)("consume", TOPIC, "--format", "%p %o", *options))
    return [(int(line[:1]), int(line[2:])) for line in lines.splitlines()]


def test_a_time_past_the_end_is_said_in_local_time(filled: BrokerProcess) -> None:
    local = CommandLine(filled.address, TZ=LOCAL_TIME)
    for arguments in (["consume", TOPIC, "--to", "latest", "--from"], ["offsets", TOPIC, "--at"]):
        for text, notice in (
            ("2026-01-01T02:40", "no record is at or after 2026-01-01T02:40:00.000+01:00 (local time)"),
            ("2026-01-01T02:39", ""),
        ):
            assert local(*arguments, text).stderr.decode() == (f"warmlog: {notice}\n" if notice else "")


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({f"{TOPIC}-2": 5}, "start names two-parts-2, which is not read: of two-parts, partitions 0 to 1 can be named"),
        ({("two-prts", 0): 5}, "start names two-prts-0, .*did you mean two-parts"),
        ({0: 5}, "start has 0: "),
        ({(TOPIC, "0"): 5}, r"start has \('two-parts', '0'\): "),
        (-5, 'start: offset -5: .*"-5" is the last 5'),
        ("yesterday", "start: 'yesterday': earliest, "),
    ],
)
async def test_a_start_that_fits_nothing_is_refused_at_once(filled: BrokerProcess, start: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        async with warmlog.Consumer(filled.address, topics=[TOPIC], start=start):
            pass
    with pytest.raises(ValueError, match=message):
        arrow_reader(filled.address, [TOPIC], start=start)
    async with warmlog.Consumer(filled.address, topics=[TOPIC]) as consumer:
        with pytest.raises(ValueError, match=message.replace("start", "until")):
            consumer.batches(start)
        with pytest.raises(ValueError, match=message.replace("start", "until")):
            await consumer.to_arrow(start)
        with pytest.raises(ValueError, match=message.replace("start", "where")):
            await consumer.seek_to(start)
        assert consumer.positions() == {f"{TOPIC}-0": 0, f"{TOPIC}-1": 0}


async def test_a_single_name_for_topics_is_refused_alike(filled: BrokerProcess) -> None:
    for read in (lambda: warmlog.Consumer(filled.address, topics=TOPIC), lambda: arrow_reader(filled.address, TOPIC)):
        with pytest.raises(TypeError, match=r"^topics must be a list of names: topics=\['two-parts'\]$"):
            read()


async def test_positions_survive_a_restart_as_json(filled: BrokerProcess, tmp_path: Path) -> None:
    stored = tmp_path / "positions.json"
    stored.write_text("{}")
    seen = []
    for _ in range(4):
        async with warmlog.Consumer(filled.address, topics=[TOPIC], start=json.loads(stored.read_text())) as consumer:
            records = consumer.records("latest")
            some = [await anext(records) for _ in range(35)]
            seen += [(record.partition, record.offset) for record in some]
            stored.write_text(json.dumps(consumer.positions()))
    assert sorted(seen) == [(partition, offset) for partition in (0, 1) for offset in range(COUNTS[partition])]


async def test_topics_are_chosen_by_a_pattern_for_the_whole_name(filled: BrokerProcess) -> None:
    async with warmlog.Admin(filled.address) as admin:
        for name in ("orders", "orders.eu", "reorders"):
            await admin.create_topic(name)
    async with warmlog.Consumer(filled.address, pattern="orders.*", start={"orders.eu-0": "latest"}) as consumer:
        assert consumer.assignment == [("orders", 0), ("orders.eu", 0)]
    async with warmlog.Consumer(filled.address, pattern=".*") as consumer:
        assert not any(topic.startswith("_") for topic, _ in consumer.assignment)
    with pytest.raises(
        warmlog.UnknownTopicOrPartition, match=r"no topic matches the pattern 'order'; there are .*orders"
    ):
        async with warmlog.Consumer(filled.address, pattern="order"):
            pass


READ = {
    "records": "async for record in consumer: pass",
    "table": "await consumer.to_arrow(10**9)",
    "record": "await anext(consumer.records())",
}


@pytest.mark.parametrize("fault", [None, signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("what", sorted(READ))
def test_ctrl_c_ends_a_consumer_beside_any_broker(tmp_path: Path, what: str, fault: signal.Signals | None) -> None:
    with BrokerProcess(tmp_path) as broker:
        succeeded(CommandLine(broker.address)("topic", "create", "t"))
        program = f"""
import asyncio, warmlog
async def main():
    async with warmlog.Consumer("{broker.address}", topics=["t"]) as consumer:
        print("ready", flush=True)
        {READ[what]}
asyncio.run(main())
"""
        with subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            if fault:
                os.kill(broker.pid, fault)
            time.sleep(0.3)
            process.send_signal(signal.SIGINT)
            interrupted_s = time.monotonic()
            try:
                _, stderr = process.communicate(timeout=180)
            finally:
                process.kill()
                if fault is signal.SIGSTOP:
                    os.kill(broker.pid, signal.SIGCONT)
        assert time.monotonic() - interrupted_s < 20, "a broker would be waited for for 30 s"
        assert stderr.decode().rstrip().endswith("KeyboardInterrupt")
