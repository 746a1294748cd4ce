"""Clients that are not closed, or whose closing is cut short: what is sent, what is said, how soon it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from threading import Timer

import pytest

import warmlog
import warmlog.blocking
from broker_process import BrokerProcess

UNCLOSED = """
import asyncio, sys, warmlog

async def main():
    producer = await warmlog.Producer(sys.argv[1]).start()
    for _ in range(100):
        producer.send(sys.argv[2], b"x")

asyncio.run(main())
"""

INTERRUPTED = """
import asyncio, sys, time, warmlog

async def main():
    async with warmlog.Producer(sys.argv[1]) as producer:
        await producer.send(sys.argv[2], b"first")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        sent = [producer.send(sys.argv[2], b"x") for _ in range(7)]
        print("sent", flush=True)
        if sys.argv[3] == "body":
            await sent[0]

try:
    asyncio.run(main())
finally:
    print(time.monotonic(), flush=True)
"""


async def create(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(topic, partitions=1)


async def test_records_of_an_unclosed_producer_are_sent_as_asyncio_run_ends(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic)
    command = [sys.executable, "-W", "always", "-c", UNCLOSED, broker.address, topic]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)  # noqa: ASYNC221
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        assert len([record async for record in consumer.records(until="latest")]) == 100
    assert "ResourceWarning: unclosed <warmlog.producer.producer.Producer" in ended.stderr
    assert f"100 records were not acknowledged: 100 of {topic}" in ended.stderr
    assert "never retrieved" not in ended.stderr
    assert "destroyed" not in ended.stderr


@pytest.mark.parametrize("where", ["body", "closing"])
async def test_ctrl_c_ends_a_producer_within_a_second_when_the_broker_is_away(tmp_path: Path, where: str) -> None:
    with BrokerProcess(tmp_path) as broker:
        await create(broker, "t")
        errors = interrupted(broker, where)
    assert "7 records were not acknowledged: 7 of t" in errors
    assert "KeyboardInterrupt" in errors


def interrupted(own_broker: BrokerProcess, where: str) -> str:
    """What the process wrote to stderr; it has not waited for a response."""
    command = [sys.executable, "-c", INTERRUPTED, own_broker.address, "t", where]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        own_broker.kill()
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "sent\n"
        time.sleep(0.3)  # the producer is waiting for its broker then
        began_s = time.monotonic()
        process.send_signal(signal.SIGINT)
        ended_s, errors = process.communicate(timeout=180)
    assert float(ended_s) - began_s < 20, errors
    assert process.returncode != 0
    return errors


def pause(broker: BrokerProcess) -> None:
    """Let the broker stand still for longer than an interrupted producer waits for it."""
    os.kill(broker.pid, signal.SIGSTOP)
    Timer(1.5, os.kill, (broker.pid, signal.SIGCONT)).start()


async def sending(broker: BrokerProcess) -> AsyncGenerator[None]:
    async with warmlog.Producer(broker.address) as producer:
        pause(broker)
        for _ in range(100):
            producer.send("t", b"x")
        yield
        sys.exit()


def sending_and_blocking(broker: BrokerProcess) -> Generator[None]:
    with warmlog.blocking.Producer(broker.address) as producer:
        pause(broker)
        for _ in range(100):
            producer.send("t", b"x")
        yield
        sys.exit()


@pytest.mark.parametrize("ends_by_exit", [True, False], ids=["exit", "closed generator"])
async def test_a_block_left_by_sys_exit_or_a_closed_generator_loses_nothing(tmp_path: Path, ends_by_exit: bool) -> None:
    with BrokerProcess(tmp_path) as broker:
        await create(broker, "t")
        left = sending(broker)
        await anext(left)
        if ends_by_exit:
            with pytest.raises(SystemExit):
                await anext(left)
        else:
            await left.aclose()
        left_blocking = sending_and_blocking(broker)
        next(left_blocking)
        if ends_by_exit:
            with pytest.raises(SystemExit):
                next(left_blocking)
        else:
            left_blocking.close()
        async with warmlog.Consumer(broker.address, topics=["t"]) as consumer:
            assert len([record async for record in consumer.records(until="latest")]) == 200


PATIENCE_S = 40
Client = warmlog.Producer | warmlog.Consumer | warmlog.Admin

CLIENTS: dict[str, Callable[[str, str], Client]] = {
    "producer": lambda address, _: warmlog.Producer(address),
    "consumer": lambda address, topic: warmlog.Consumer(address, topics=[topic]),
    "member": lambda address, topic: warmlog.Consumer(address, topics=[topic], group=topic),
    "admin": lambda address, _: warmlog.Admin(address),
}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("name", CLIENTS)
async def test_a_cancelled_close_disconnects_all_the_same(broker: BrokerProcess, topic: str, name: str) -> None:
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(topic)
    before = open_files()
    for turns in range(1, 9):
        client = await CLIENTS[name](broker.address, topic).start()
        closing = asyncio.create_task(client.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        async with asyncio.timeout(PATIENCE_S):
            while open_files() > before:  # noqa: ASYNC110 - what is waited for is in the kernel
                await asyncio.sleep(0.01)
