"""Copies of topics: `consume --format json | produce --format json`, and `topic copy`, between real brokers."""

import asyncio
import json
import re
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from broker_process import BrokerProcess
from integration.command_line import CommandLine, error_line, succeeded
from warmlog import Admin, Consumer, Producer

Row = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
"""Partition, key, value, headers, timestamp."""

NOW_MS = time.time_ns() // 1_000_000
CELLS = (None, b"", b"text", "Zürich".encode(), b"\xff\x00\n", b'"quoted"\\', "\u2028".encode(), b"base64")
HEADERS = ((), (("a", None), ("a", b""), ("b", b"\xfe"), ("a", b"1")), (("", b"x"), ("é", b"\n")))
ROWS: list[Row] = [
    (number % 3, key, value, HEADERS[number % len(HEADERS)], NOW_MS + number)
    for number, (key, value) in enumerate((key, value) for key in CELLS for value in CELLS)
]


def fill(address: str, topic: str, rows: Sequence[Row]) -> None:
    async def send() -> None:
        async with Producer(address) as producer:
            for partition, key, value, headers, timestamp_ms in rows:
                producer.send(topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition)

    asyncio.run(send())


def content(address: str, topic: str) -> list[Row]:
    """Every record, partition by partition in the order of offsets."""

    async def read() -> list[Row]:
        async with Consumer(address, topics=[topic]) as consumer:
            records = [record async for record in consumer.records(until="latest")]
        records.sort(key=lambda record: (record.partition, record.offset))
        return [(each.partition, each.key, each.value, tuple(each.headers), each.timestamp_ms) for each in records]

    return asyncio.run(read())


def in_order(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row[0])


def created(warmlog: CommandLine, name: str, partitions: int, *arguments: str) -> str:
    succeeded(warmlog("topic", "create", name, "--partitions", partitions, *arguments))
    return name


BROKER_SETTINGS = {"log_retention_check_interval_ms": 100}
"""What is past its time is deleted at once: copies have the timestamps of their sources."""


@pytest.fixture(scope="module")
def source(broker: BrokerProcess) -> str:
    """A topic of three partitions with every kind of record."""
    name = created(CommandLine(broker.address), "source", 3, "--config", "max.message.bytes=2000000")
    fill(broker.address, name, ROWS)
    return name


def test_copy_creates_a_whole_and_equal_target(warmlog: CommandLine, broker: BrokerProcess, source: str) -> None:
    copied = warmlog("topic", "copy", source, "made")
    assert succeeded(copied) == b""
    assert f"{len(ROWS)} records".encode() in copied.stderr
    assert b"a new topic" in copied.stderr
    assert content(broker.address, "made") == in_order(ROWS)
    described = json.loads(succeeded(warmlog("topic", "describe", "made", "--json")))
    own = {name: config["value"] for name, config in described["configs"].items() if not config["is_default"]}
    assert own == {"max.message.bytes": "2000000"}


def test_copy_reaches_another_broker_and_summarises_for_scripts(
    warmlog: CommandLine, source: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("other")) as other:
        command = ("topic", "copy", source, source, "--to-broker", other.address, "--compression", "zstd", "--json")
        summary = json.loads(succeeded(warmlog(*command)))
        assert (summary["source"], summary["target"], summary["records"]) == (source, source, len(ROWS))
        assert summary["is_created"] is True
        assert content(other.address, source) == in_order(ROWS)
        again = json.loads(succeeded(warmlog(*command)))
        assert again["is_created"] is False
        assert content(other.address, source) == in_order([*in_order(ROWS), *in_order(ROWS)])


def test_copy_of_a_part_and_of_many_rounds_keeps_the_order(warmlog: CommandLine, broker: BrokerProcess) -> None:
    created(warmlog, "long", 1)
    lines = b"".join(b"%d %s\n" % (number, b"x" * 200) for number in range(60_000))
    succeeded(warmlog("produce", "long", given=lines))
    succeeded(warmlog("topic", "copy", "long", "long-2"))
    assert succeeded(warmlog("consume", "long-2", "--to", "latest")) == lines
    succeeded(warmlog("topic", "copy", "long", "part", "--from", "10", "--to", "12"))
    assert [row[2][:3] for row in content(broker.address, "part") if row[2]] == [b"10 ", b"11 "]


def test_copy_waits_for_no_records_that_are_not_there(warmlog: CommandLine, broker: BrokerProcess, source: str) -> None:
    succeeded(warmlog("topic", "copy", source, "all", "--to", "1000000"))
    assert content(broker.address, "all") == in_order(ROWS)


def test_keys_choose_if_partitions_differ(warmlog: CommandLine, broker: BrokerProcess, source: str) -> None:
    created(warmlog, "wide", 5)
    created(warmlog, "keyed", 5)
    copied = warmlog("topic", "copy", source, "wide")
    succeeded(copied)
    assert b"5 partitions: keys choose" in copied.stderr
    lines = succeeded(warmlog("consume", source, "--to", "latest", "--json"))
    succeeded(warmlog("produce", "keyed", "--format", "json", "--by-key", given=lines))
    for target in ("wide", "keyed"):
        rows = content(broker.address, target)
        assert sorted(map(repr, (row[1:] for row in rows))) == sorted(map(repr, (row[1:] for row in ROWS)))
        places = {(row[0], row[1]) for row in rows if row[1]}
        assert len(places) == len({key for _, key in places})


def test_a_line_with_a_partition_that_is_not_there_names_the_way_out(warmlog: CommandLine, source: str) -> None:
    created(warmlog, "narrow", 1)
    lines = succeeded(warmlog("consume", source, "--partition", "2", "--count", "1", "--json"))
    line = error_line(warmlog("produce", "narrow", "--format", "json", given=lines))
    assert "has partition 0, not 2 (--by-key lets keys choose); 0 records were acknowledged" in line
    succeeded(warmlog("produce", "narrow", "--format", "json", "--partition", "0", given=lines))


def test_a_topic_is_not_copied_into_itself(warmlog: CommandLine, broker: BrokerProcess, source: str) -> None:
    before = content(broker.address, source)
    assert "into itself" in error_line(warmlog("topic", "copy", source, source))
    assert content(broker.address, source) == before
    assert "nowhere" in error_line(warmlog("topic", "copy", "nowhere", "target"))


def test_append_time_is_named_because_timestamps_are_lost(warmlog: CommandLine) -> None:
    created(warmlog, "stamped", 1, "--config", "message.timestamp.type=LogAppendTime")
    succeeded(warmlog("produce", "stamped", "--value", "x"))
    (line,) = succeeded(warmlog("consume", "stamped", "--to", "latest", "--json")).splitlines()
    assert json.loads(line)["timestamp_type"] == "LogAppendTime"
    copied = warmlog("topic", "copy", "stamped", "stamped-2")
    succeeded(copied)
    assert b"timestamps are those of the copy" in copied.stderr


def test_a_copy_warns_of_records_that_the_target_deletes_soon(warmlog: CommandLine) -> None:
    created(warmlog, "kept", 1, "--config", "retention.ms=-1")
    created(warmlog, "brief", 1)
    succeeded(warmlog("produce", "kept", "--value", "x", "--timestamp", "2014-05-13T16:53:20Z"))
    copied = warmlog("topic", "copy", "kept", "brief")
    succeeded(copied)
    assert b"topic 'brief': a record with the timestamp 2014-05-13" in copied.stderr
    assert b"it will be deleted soon" in copied.stderr
    assert b"deleted soon" not in warmlog("topic", "copy", "kept", "kept-2").stderr


def test_a_copy_that_a_transaction_holds_back_says_so_and_fails(warmlog: CommandLine, broker: BrokerProcess) -> None:
    created(warmlog, "open", 1)
    succeeded(warmlog("produce", "open", "--value", "before"))

    async def copies() -> tuple[subprocess.CompletedProcess[bytes], ...]:
        async with Producer(broker.address, transactional_id="slow") as slow, slow.transaction():
            await slow.send("open", b"open")
            succeeded(await asyncio.to_thread(warmlog, "produce", "open", "--value", "after"))
            whole = await asyncio.to_thread(warmlog, "topic", "copy", "open", "open-2")
            return whole, await asyncio.to_thread(warmlog, "topic", "copy", "open", "open-3", "--to", "0")

    held, empty = asyncio.run(copies())
    assert held.returncode == 1
    assert b"not read, as transactions are open: open-0 from offset 1 on: slow" in held.stderr
    assert b"1 record," in held.stderr
    assert b"open was not copied to its end" in held.stderr
    assert b"transactions" not in empty.stderr
    succeeded(empty)
    succeeded(warmlog("topic", "copy", "open", "open-4"))
    assert [row[2] for row in content(broker.address, "open-4")] == [b"before", b"open", b"after"]


@asynccontextmanager
async def slow_copies(admin: Admin) -> AsyncIterator[None]:
    """Within, 40 MB take seconds to be written, so that a copy of them is still under way when a test looks."""
    await admin.alter_quotas({"producer_byte_rate": 4_000_000}, user="ANONYMOUS")
    try:
        yield
    finally:
        await admin.alter_quotas({"producer_byte_rate": None}, user="ANONYMOUS")


async def has_begun(admin: Admin, topic: str) -> None:
    while not (await admin.list_offsets(topic, "latest"))[0].offset:  # noqa: ASYNC110 - nothing says so
        await asyncio.sleep(0.002)


def test_a_copy_has_what_follows_a_transaction_that_ends_meanwhile(warmlog: CommandLine, broker: BrokerProcess) -> None:
    created(warmlog, "ended", 2)
    created(warmlog, "ended-2", 2)

    async def copy() -> "subprocess.Popen[bytes]":
        async with (
            Admin(broker.address) as admin,
            Producer(broker.address, compression="lz4") as plain,
            Producer(broker.address, transactional_id="ending") as ending,
        ):
            await plain.send_many("ended", [bytes(100_000)] * 400, partition=0)
            async with ending.transaction():
                await ending.send("ended", b"open", partition=1)
                await plain.send("ended", b"after", partition=1)
                async with slow_copies(admin):
                    copying = warmlog.start("topic", "copy", "ended", "ended-2")
                    await has_begun(admin, "ended-2")
                    copying.send_signal(signal.SIGSTOP)
            copying.send_signal(signal.SIGCONT)
            return copying

    copying = asyncio.run(copy())
    _, stderr = copying.communicate(timeout=180)
    assert copying.returncode == 0, stderr.decode()
    copied = [row[2] for row in content(broker.address, "ended-2")]
    assert (len(copied), copied[-2:]) == (402, [b"open", b"after"])


def test_the_pipe_of_two_commands_copies(warmlog: CommandLine, broker: BrokerProcess, source: str) -> None:
    target = created(warmlog, "joined", 3)
    consumer = warmlog.start("consume", source, "--to", "latest", "--format", "json")
    producer = subprocess.Popen(
        [*consumer.args[:3], "produce", target, "--format", "json"],  # type: ignore[index]
        stdin=consumer.stdout,
        stderr=subprocess.PIPE,
        env=warmlog.environment,
    )
    _, stderr = producer.communicate(timeout=180)
    consumer.communicate(timeout=180)
    assert (consumer.returncode, producer.returncode) == (0, 0), stderr.decode()
    assert content(broker.address, target) == in_order(ROWS)


def test_damage_is_skipped_and_told_and_the_rest_is_copied(tmp_path_factory: pytest.TempPathFactory) -> None:
    with BrokerProcess(tmp_path_factory.mktemp("damaged")) as broker:
        warmlog = CommandLine(broker.address)
        created(warmlog, "hurt", 1)
        for value in ("before", "damaged", "after"):
            succeeded(warmlog("produce", "hurt", "--value", value))
        (log,) = (broker.data_dir / "hurt-0").glob("*.log")
        content_before = log.read_bytes()
        with log.open("r+b") as file:
            file.seek(content_before.index(b"damaged"))
            file.write(b"D")
        copied = warmlog("topic", "copy", "hurt", "healed")
        assert "hurt: 1 range of offsets cannot be read" in error_line(copied)
        assert b"skipped: " in copied.stderr
        assert [row[2] for row in content(broker.address, "healed")] == [b"before", b"after"]


def test_ctrl_c_ends_a_copy_and_tells_what_is_not_acknowledged(warmlog: CommandLine, broker: BrokerProcess) -> None:
    created(warmlog, "much", 1)
    created(warmlog, "unfinished", 1)

    async def interrupt() -> "subprocess.Popen[bytes]":
        async with Admin(broker.address) as admin, Producer(broker.address, compression="lz4") as producer:
            await producer.send_many("much", [bytes(100_000)] * 400)
            async with slow_copies(admin):
                copying = warmlog.start("topic", "copy", "much", "unfinished")
                await has_begun(admin, "unfinished")
                copying.send_signal(signal.SIGINT)
            return copying

    copying = asyncio.run(interrupt())
    stdout, stderr = copying.communicate(timeout=180)
    assert (copying.returncode, stdout) == (130, b""), stderr.decode()
    assert re.fullmatch(rb"(warmlog: .*: \d+ records were not acknowledged: \d+ of unfinished\n)?", stderr)
