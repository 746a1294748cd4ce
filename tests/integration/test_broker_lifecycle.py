"""A broker in this process, started and stopped at any time: nothing that it held is held when it is over."""

import asyncio
import os
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from warmlog import Admin, Producer
from warmlog_broker import Broker, BrokerConfig
from warmlog_broker.data_dirs import loader as startup
from warmlog_broker.data_dirs.directory_set import refuse_if_locked
from warmlog_broker.data_dirs.loader import StartGivenUp
from warmlog_broker.maintenance import log_cleaner
from warmlog_broker.runtime.systemd import ServiceManager
from warmlog_broker.runtime.threads import CannotStartThreads
from warmlog_broker.server import broker as server
from warmlog_broker.server import engine
from warmlog_broker.server.crash_count import FILE_NAME
from warmlog_broker.storage.directory.data_dir import CLEAN_MARKER_NAME
from warmlog_broker.storage.directory.dir_lock import DirectoryLocked
from warmlog_broker.storage.log.log import Log
from warmlog_protocol.errors import StorageError

DEADLINE_S = 40
PARTITIONS = 8
NAMES = ("one", "two")


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def broker_threads() -> list[str]:
    return sorted(each.name for each in threading.enumerate() if not each.name.startswith(("Main", "asyncio")))


def is_locked(path: Path) -> bool:
    try:
        refuse_if_locked([path])
    except DirectoryLocked:
        return True
    return False


class Room:
    """Two data directories and a port, and what this process held before a broker came."""

    def __init__(self, directory: Path) -> None:
        self.paths = [directory / name for name in NAMES]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._descriptors, self._threads = open_descriptors(), broker_threads()

    def broker(self) -> Broker:
        names = ",".join(map(str, self.paths))
        settings = {"data.dirs": names, "listen": f"127.0.0.1:{self.port}", "num.recovery.threads": "1"}
        return Broker(BrokerConfig.from_settings(settings), ServiceManager({}))

    @property
    def is_served(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    async def check_released(self) -> None:
        """Locks, threads, sockets and files."""
        await asyncio.sleep(0)
        assert not any(map(is_locked, self.paths))
        assert broker_threads() == self._threads
        assert not self.is_served
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", self.port))
        async with asyncio.timeout(DEADLINE_S):
            while open_descriptors() > self._descriptors:  # noqa: ASYNC110 - transports close in the loop's next turns
                await asyncio.sleep(0.01)

    async def check_serves(self) -> None:
        """A new broker starts on the directories, with all that was there, and is stopped."""
        async with self.broker() as broker:
            await broker.start()
            async with Producer(broker.address) as producer:
                for partition in range(PARTITIONS):
                    await producer.send("t", b"again", partition=partition)
        await self.check_released()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Partitions that the next start has to check."""
    directory = tmp_path_factory.mktemp("filled")

    async def fill(made: Room) -> None:
        async with made.broker() as broker:
            await broker.start()
            async with Admin(broker.address) as admin:
                await admin.create_topic("t", partitions=PARTITIONS)
            async with Producer(broker.address) as producer:
                for partition in range(PARTITIONS):
                    await producer.send("t", b"x", partition=partition)

    asyncio.run(fill(Room(directory)))
    for name in NAMES:
        (directory / name / CLEAN_MARKER_NAME).unlink()
    return directory


@pytest.fixture
async def room(tmp_path: Path, filled: Path) -> AsyncIterator[Room]:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    made = Room(tmp_path)
    yield made
    await made.check_released()


class HeldLoad:
    """Lets the loading of the first partition wait until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.opened = 0
        opened = Log.open
        held = self

        def load(*arguments: Any, **known: Any) -> Any:
            held.opened += 1
            held.begun.set()
            assert held.may_go_on.wait(DEADLINE_S)
            return opened(*arguments, **known)

        monkeypatch.setattr(Log, "open", load)

    async def wait(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, DEADLINE_S)


async def test_a_broker_that_was_never_started_can_be_stopped(room: Room) -> None:
    broker = room.broker()
    assert await broker.stop()
    await room.check_released()
    assert await broker.stop()
    async with room.broker():
        pass
    await room.check_serves()


async def test_a_stop_while_partitions_are_opened_ends_the_start(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        held = HeldLoad(patch)
        broker = room.broker()
        starting = asyncio.create_task(broker.start())
        await held.wait()
        stopping = asyncio.create_task(broker.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        assert all(map(is_locked, room.paths)), "a thread still writes there"
        held.may_go_on.set()
        assert await stopping
        with pytest.raises(StartGivenUp):
            await starting
        assert held.opened <= len(room.paths), "one in each directory was under way"
    await room.check_released()
    assert not (room.paths[0] / FILE_NAME).exists(), "it has not crashed"
    await room.check_serves()


@pytest.mark.parametrize("times", [1, 3])
async def test_a_start_that_is_cancelled_holds_nothing(room: Room, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    with monkeypatch.context() as patch:
        held = HeldLoad(patch)
        broker = room.broker()
        starting = asyncio.create_task(broker.start())
        await held.wait()
        for _ in range(times):
            starting.cancel()
            await asyncio.sleep(0.01)
            assert not starting.done()
            assert all(map(is_locked, room.paths)), "a thread still writes there"
        held.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert held.opened <= len(room.paths)
    await room.check_released()
    assert await broker.stop()
    assert not (room.paths[0] / FILE_NAME).exists()
    await room.check_serves()


async def test_a_stop_with_all_partitions_open_lets_the_start_end(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = room.broker()
    listening, may_listen = asyncio.Event(), asyncio.Event()
    listen = broker._listen

    async def held(sockets: list[socket.socket]) -> None:
        listening.set()
        await may_listen.wait()
        await listen(sockets)

    monkeypatch.setattr(broker, "_listen", held)
    starting = asyncio.create_task(broker.start())
    await listening.wait()
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    may_listen.set()
    await starting
    assert await stopping
    assert all((path / CLEAN_MARKER_NAME).exists() for path in room.paths)
    await room.check_released()


async def test_a_start_cancelled_as_it_begins_to_listen_cuts_peers(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = room.broker()
    listen = broker._listen
    listening = asyncio.Event()

    async def listen_and_wait(sockets: list[socket.socket]) -> None:
        await listen(sockets)
        listening.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(broker, "_listen", listen_and_wait)
    starting = asyncio.create_task(broker.start())
    await listening.wait()
    reader, writer = await asyncio.open_connection("127.0.0.1", room.port)
    await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    await room.check_released()
    await room.check_serves()


async def test_a_second_stop_waits_for_the_first_and_returns_the_same(room: Room) -> None:
    broker = room.broker()
    await broker.start()
    broker.topics.partition("t", 0).take_offline("the disk is broken")
    first, second = asyncio.create_task(broker.stop()), asyncio.create_task(broker.stop())
    await asyncio.wait([first, second], return_when=asyncio.FIRST_COMPLETED)
    assert not any(map(is_locked, room.paths))
    assert (await first, await second, await broker.stop()) == (False, False, False)


async def test_a_caller_who_gives_up_waiting_does_not_call_off_the_stop(room: Room) -> None:
    broker = room.broker()
    await broker.start()
    caller = asyncio.create_task(broker.stop())
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await broker.stop()


async def test_a_broker_starts_once(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        held = HeldLoad(patch)
        broker = room.broker()
        starting = asyncio.create_task(broker.start())
        await held.wait()
        with pytest.raises(RuntimeError, match="started only once"):
            await broker.start()
        held.may_go_on.set()
        await starting
    with pytest.raises(RuntimeError, match="started only once"):
        await broker.start()
    assert room.is_served
    assert await broker.stop()
    with pytest.raises(RuntimeError, match="started only once"):
        await broker.start()
    await room.check_serves()


async def test_a_broker_that_was_stopped_before_it_started_does_not_start(room: Room) -> None:
    broker = room.broker()
    await broker.stop()
    with pytest.raises(RuntimeError, match="started only once"):
        await broker.start()


async def test_a_start_that_is_refused_holds_nothing_and_costs_the_other_broker_nothing(room: Room) -> None:
    async with room.broker() as first:
        await first.start()
        second = room.broker()
        with pytest.raises(DirectoryLocked):
            await second.start()
        assert await second.stop()
        with pytest.raises(RuntimeError, match="started only once"):
            await second.start()
        assert room.is_served


def failing(error: Exception) -> Callable[..., NoReturn]:
    def raise_it(*_: object, **__: object) -> NoReturn:
        raise error

    return raise_it


class SecondFails:
    """Calls `honest` once, and fails from then on."""

    def __init__(self, honest: Callable[..., Any], error: Exception) -> None:
        self._honest, self._error = honest, error
        self._calls = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._calls += 1
        if self._calls > 1:
            raise self._error
        return self._honest(*arguments, **named)


IN_WORDS, NO_THREADS, RAW = StorageError("in words"), CannotStartThreads("none left"), OSError("raw")


@pytest.mark.parametrize(
    ("module", "name", "error"),
    [
        (server, "raise_file_limit", RAW),
        (server, "bind_all", IN_WORDS),
        (server, "lock_and_read", IN_WORDS),
        (startup, "find_assignments", RAW),
        (startup, "_reserve_adopted_producers", IN_WORDS),
        (server, "NodeStore", RAW),
        (log_cleaner, "LogCleaner", NO_THREADS),
        (engine, "ProducerIds", RAW),
        (server, "bind_endpoints", NO_THREADS),
    ],
)
async def test_whatever_fails_in_a_start_it_holds_nothing_then(
    room: Room, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, error: Exception
) -> None:
    broker = room.broker()
    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing(error))
        with pytest.raises(type(error)) as caught:
            await broker.start()
    assert caught.value is error
    await room.check_released()
    assert await broker.stop()


async def test_a_failure_in_the_second_directory_leaves_the_first(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(engine, "ServedDirectory", SecondFails(engine.ServedDirectory, NO_THREADS))
        with pytest.raises(CannotStartThreads):
            await room.broker().start()
    await room.check_released()
    await room.check_serves()


async def test_a_partition_that_fails_to_open_ends_the_start_last(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    error = ZeroDivisionError("a bug")
    with monkeypatch.context() as patch:
        patch.setattr(Log, "open", failing(error))
        with pytest.raises(ZeroDivisionError):
            await room.broker().start()
    await room.check_released()
    assert (room.paths[0] / FILE_NAME).exists(), "it counts as a crash"
    await room.check_serves()


async def test_a_stop_that_fails_gives_back_threads_and_locks(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = room.broker()
    await broker.start()
    error = ZeroDivisionError("a bug")
    monkeypatch.setattr(broker._engine, "close_logs", failing(error))
    with pytest.raises(ZeroDivisionError):
        await broker.stop()
    await room.check_released()
    assert not (room.paths[0] / CLEAN_MARKER_NAME).exists()
    await room.check_serves()
