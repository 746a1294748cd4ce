"""The broker for users' tests: started, used, stopped and killed in this process; nothing of it is left."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import _base as futures
from pathlib import Path
from statistics import median
from types import FrameType

import pytest

from processor_time import slowness
from warmlog import Admin, Consumer, Producer
from warmlog.testing import embedded, embedded_broker
from warmlog_broker import Broker, BrokerConfig, start_broker
from warmlog_broker.storage.directory.data_dir import CLEAN_MARKER_NAME
from warmlog_broker.storage.directory.dir_lock import DirectoryLocked
from warmlog_protocol.errors import InvalidConfig
from wire_client import WireClient

STARTS = 20
MOST_MS = 100
RECORDS = 10


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.fixture(autouse=True)
def _leaves_nothing() -> Iterator[None]:
    """Each test ends with the threads and descriptors it began with; uvloop keeps a pipe from its first loop on."""
    with embedded():
        pass
    before = sorted(each.name for each in threading.enumerate()), descriptors()
    yield
    assert (sorted(each.name for each in threading.enumerate()), descriptors()) == before


async def write(address: str, count: int = RECORDS) -> None:
    async with Admin(address) as admin:
        await admin.create_topic("t", exist_ok=True)
    async with Producer(address) as producer:
        for number in range(count):
            await producer.send("t", str(number).encode())


async def read(address: str) -> list[bytes | None]:
    async with Consumer(address, topics=["t"]) as consumer:
        return [record.value async for batch in consumer.batches(until="latest") for record in batch]


VALUES = [str(number).encode() for number in range(RECORDS)]


def test_it_serves_within_a_context_and_its_temporary_directory_goes_with_it() -> None:
    with embedded() as broker:
        asyncio.run(write(broker.address))
        assert asyncio.run(read(broker.address)) == VALUES
        data_dir = broker.data_dir
        assert (data_dir / "t-0").is_dir()
        address = broker.address
    assert not data_dir.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address.split(":"))


async def test_it_serves_within_an_async_context() -> None:
    async with embedded() as broker:
        await write(broker.address)
        assert await read(broker.address) == VALUES
        data_dir = broker.data_dir
    assert not data_dir.exists()


async def test_the_loop_of_the_test_runs_on_while_it_starts_and_stops() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(turn())
    async with embedded():
        assert turns > 1
        turns = 0
    assert turns > 1
    task.cancel()


async def test_a_cancelled_start_leaves_nothing() -> None:
    broker = embedded()
    entering = asyncio.create_task(broker.__aenter__())
    await asyncio.sleep(0)
    data_dir = broker.data_dir
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert not data_dir.exists()


def test_to_start_and_stop_waits_for_no_future() -> None:
    """Ctrl-C while a thread waits for one may leave its lock held."""
    waits: list[str] = []

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == futures.__file__:
            waits.append(frame.f_code.co_name)

    broker = embedded()
    sys.setprofile(profile)
    try:
        broker.start()
        broker.kill()
        broker.start()
        broker.close()
    finally:
        sys.setprofile(None)
    assert waits == []


def test_a_start_that_is_interrupted_leaves_the_broker_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupting(config: BrokerConfig) -> Broker:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return await start_broker(config)

    with embedded() as broker:
        broker.stop()
        with monkeypatch.context() as patched:
            patched.setattr(embedded_broker, "start_broker", interrupting)
            with pytest.raises(KeyboardInterrupt):
                broker.start()
        broker.start()
        asyncio.run(write(broker.address))


def test_a_directory_that_is_given_stays_and_can_be_served_again(tmp_path: Path) -> None:
    with embedded(tmp_path / "data") as broker:
        asyncio.run(write(broker.address))
        assert broker.data_dir == tmp_path / "data"
    assert (tmp_path / "data" / CLEAN_MARKER_NAME).exists()
    with embedded(str(tmp_path / "data")) as broker:
        assert asyncio.run(read(broker.address)) == VALUES


def test_settings_have_underscores_for_dots_and_values_of_python() -> None:
    async def check(address: str) -> None:
        async with Admin(address) as admin:
            await admin.create_topic("t")
            configs = (await admin.describe_topic("t")).configs
            broker = await admin.describe_broker()
        assert configs["retention.ms"].value == "1000"
        assert configs["segment.bytes"].value == str(1 << 20)
        assert broker["fetch.sendfile.enable"].value == "false"

    with embedded(retention_ms=1000, segment_bytes="1MiB", fetch_sendfile_enable=False) as broker:
        asyncio.run(check(broker.address))


@pytest.mark.parametrize("is_clean", [True, False])
def test_after_a_stop_or_a_kill_it_starts_again_with_its_address_and_data(is_clean: bool) -> None:
    with embedded() as broker:
        address = broker.address
        for times in range(1, 4):
            asyncio.run(write(address))
            if is_clean:
                broker.stop()
            else:
                broker.kill()
            assert (broker.data_dir / CLEAN_MARKER_NAME).exists() is is_clean
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address.split(":"))
            broker.start()
            assert broker.address == address
            assert asyncio.run(read(address)) == VALUES * times


def test_a_kill_cuts_connections_and_a_broker_that_was_killed_often_accepts_records() -> None:
    with embedded() as broker:
        for _ in range(8):
            with WireClient(broker.address):
                before_s = time.perf_counter()
                broker.kill()
                assert time.perf_counter() - before_s < 20
            broker.start()
        asyncio.run(write(broker.address))


def test_stop_kill_and_close_have_no_effect_when_it_does_not_run() -> None:
    broker = embedded()
    broker.stop()
    broker.kill()
    broker.close()
    with broker:
        broker.kill()
        broker.stop()
    broker.close()
    with broker:
        asyncio.run(write(broker.address))


def test_two_run_side_by_side() -> None:
    with embedded() as one, embedded() as other:
        assert one.address != other.address
        assert one.data_dir != other.data_dir
        asyncio.run(write(one.address))
        asyncio.run(write(other.address, 1))
        assert asyncio.run(read(one.address)) == VALUES


def test_misuse_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"'retention\.mss' is not a setting .* did you mean retention\.ms\?"):
        embedded(retention_mss=1)
    with pytest.raises(TypeError, match=r"retention\.ms: None is a NoneType; a setting is a str such as '7d'"):
        embedded(retention_ms=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match=r"data\.dirs.*listen.*: give embedded\(\) the directory"):
        embedded(listen="127.0.0.1:7400", data_dirs="/a,/b")
    with pytest.raises(RuntimeError, match=r"no address yet: enter embedded\(\), or call start\(\)"):
        _ = embedded().address
    with pytest.raises(RuntimeError, match="no directory yet"):
        _ = embedded().data_dir
    with embedded(tmp_path) as broker:
        with pytest.raises(RuntimeError, match=rf"the broker at {broker.address} runs already: stop\(\) or kill\(\)"):
            broker.start()
        with pytest.raises(DirectoryLocked), embedded(tmp_path):
            pass
        asyncio.run(write(broker.address))


async def test_an_error_of_an_async_start_is_raised_to_the_caller(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Exception, match=str(tmp_path / "file")):
        await embedded(tmp_path / "file").__aenter__()


def test_it_is_ready_in_less_than_a_tenth_of_a_second(tell: Callable[[str], None]) -> None:
    durations_ms, worked_ms = [], []
    for _ in range(STARTS):
        before_s, before_work_s = time.perf_counter(), time.process_time()
        with embedded():
            durations_ms.append(1000 * (time.perf_counter() - before_s))
            worked_ms.append(1000 * (time.process_time() - before_work_s))
    tell(f"embedded() is ready in {median(durations_ms):.1f} ms (median of {STARTS})")
    assert median(worked_ms) < MOST_MS * slowness(), "of the processor's time, as other work may delay it"
    assert min(durations_ms) < 2 * MOST_MS * slowness()


def test_a_start_that_failed_can_be_tried_again(tmp_path: Path) -> None:
    second = embedded(tmp_path)
    with embedded(tmp_path), pytest.raises(DirectoryLocked):
        second.start()
    with second:
        asyncio.run(write(second.address))


@pytest.mark.parametrize("closes", [False, True])
def test_a_fork_that_ends_leaves_the_broker_and_its_directory(closes: bool) -> None:
    code = (
        "import os, sys, warmlog.testing\n"
        "broker = warmlog.testing.embedded()\n"
        "broker.start()\n"
        "if not os.fork():\n"
        f"    {'broker.close()' if closes else 'pass'}\n"
        "    sys.exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.wait()[1]), (broker.data_dir / 'metadata.log').exists())\n"
        "broker.close()\n"
        "print('closed')\n"
    )
    warnings = "ignore:This process:DeprecationWarning"  # Python 3.12 warns of a fork with threads
    command = [sys.executable, "-W", warnings, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert (ended.stdout, ended.stderr) == ("7 True\nclosed\n", "")
