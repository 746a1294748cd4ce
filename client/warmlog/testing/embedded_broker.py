"""A broker that a test starts, stops and kills in its own process."""

import asyncio
import os
import shutil
import socket
import weakref
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

from warmlog.admin.arguments import SettingGiven, setting_texts
from warmlog_broker import Broker, BrokerConfig, start_broker
from warmlog_protocol.errors import InvalidConfig
from warmlog_transport.loop_thread import LoopThread, bulk_loop

HOST = "127.0.0.1"
DEFAULTS = {"crash.loop.limit": "0"}
"""A broker that a test kills often may start again."""

KAFKA_LISTEN = "kafka.listen"
ANY_PORT = 9
"""To check the settings before there is a port."""
RESERVED = {"data.dir", "data.dirs", "listen", "listeners", "advertised.listeners"}


def embedded(data_dir: str | PathLike[str] | None = None, **settings: SettingGiven) -> "EmbeddedBroker":
    """Return a broker for tests, to be used as a context manager or as an async one: it runs within.

    It keeps its data in `data_dir`, or in a temporary directory that is removed at the end. It is a whole broker, with
    real files and syncs. Settings of the broker, and defaults of its topics, have underscores for dots:
    `retention_ms="7d"`. With `tls_cert_file` it has TLS, for clients with `ssl=True`. With
    `kafka_listen="127.0.0.1:0"` clients of Kafka can use it, at its `kafka_address`. Raises InvalidConfig for a setting
    that does not exist or has a value that is not allowed, and TypeError for a value of another type.
    """
    return EmbeddedBroker(data_dir, setting_texts({name.replace("_", "."): each for name, each in settings.items()}))


class EmbeddedBroker:
    """A broker in a thread of this process, with the same addresses from its first start on. Use `embedded`.

    One thread at a time may start and stop it. Clients may use it from any thread, event loop or process. In a fork of
    the process, `stop` and `close` have no effect on it.
    """

    def __init__(self, data_dir: str | PathLike[str] | None, settings: dict[str, str]) -> None:
        if reserved := RESERVED & settings.keys():
            raise InvalidConfig(
                f"{', '.join(sorted(reserved))}: not allowed here: give embedded() the directory as its argument; "
                f"it listens at a free port of {HOST}"
            )
        listeners = _listeners(settings, f"{HOST}:0", _kafka_address(settings, ANY_PORT))
        BrokerConfig.from_settings(settings | {"data.dir": "/"} | listeners)
        self._settings = settings
        self._kafka_address = ""
        self._data_dir = None if data_dir is None else Path(data_dir)
        self._held = ExitStack()
        """Releases the port, and removes the temporary directory."""
        self._port = 0
        self._thread: LoopThread | None = None
        self._broker: Broker | None = None
        """What runs in the thread, once it has started."""
        self._changing: asyncio.Lock
        """Held while it starts or ends, in its loop."""

    @property
    def address(self) -> str:
        """HOST:PORT, the same after a stop and another start. RuntimeError before the first start."""
        if not self._port:
            raise RuntimeError("the broker has no address yet: enter embedded(), or call start()")
        return f"{HOST}:{self._port}"

    @property
    def kafka_address(self) -> str:
        """HOST:PORT for clients of Kafka. RuntimeError before the first start, and without `kafka_listen`."""
        if not self._kafka_address:
            raise RuntimeError("the broker has no address for Kafka's clients: give it kafka_listen, and start it")
        return self._kafka_address

    @property
    def data_dir(self) -> Path:
        """Where it keeps its data. RuntimeError before the first start, unless `embedded` was given the directory."""
        if self._data_dir is None:
            raise RuntimeError("the broker has no directory yet: enter embedded(), or call start()")
        return self._data_dir

    def start(self) -> None:
        """Start, and return when connections are accepted. Entering it as a context manager does so, too.

        After `stop` or `kill` it has the same address and data. Raises RuntimeError if it runs, and the errors of the
        broker's start, such as DirectoryLocked if another broker uses the directory.
        """
        thread, start = self._prepare()
        try:
            thread.begin(start).result()
        except BaseException:
            self._end(is_clean=False)
            raise

    def stop(self) -> None:
        """Stop in order, as on SIGTERM; the data stays. No-op if it does not run."""
        self._end(is_clean=True)

    def kill(self) -> None:
        """End as after SIGKILL: requests get no response, nothing is flushed, and the next start checks the logs.

        What the broker has written stays, acknowledged or not, as a crash of the process leaves it. No-op if it does
        not run.
        """
        self._end(is_clean=False)

    def close(self) -> None:
        """Stop, release the address and remove the temporary directory. Leaving the context does so, too."""
        with self._held:
            self._port, self._kafka_address = 0, ""
            self.stop()

    async def __aenter__(self) -> Self:
        try:
            thread, start = self._prepare()
            await asyncio.shield(asyncio.wrap_future(thread.submit(start)))
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._thread is not None and not self._thread.is_foreign:  # other tasks of this loop run on meanwhile
                ended = self._thread.submit(partial(self._end_in_loop, is_clean=True))
                await asyncio.shield(asyncio.wrap_future(ended))
        finally:
            self.close()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self) -> tuple[LoopThread, Callable[[], Coroutine[Any, Any, None]]]:
        """Return the thread for the broker, and what starts it there."""
        if self._thread is not None:
            raise RuntimeError(f"the broker at {self.address} runs already: stop() or kill() it first")
        if not self._port:
            self._port = self._held.enter_context(_held_port()).getsockname()[1]
            if KAFKA_LISTEN in self._settings:
                port = self._held.enter_context(_held_port()).getsockname()[1]
                self._kafka_address = _kafka_address(self._settings, port)
        if self._data_dir is None:
            self._data_dir = Path(mkdtemp(prefix="warmlog-"))
            self._held.callback(self._forget_directory)
            self._held.callback(weakref.finalize(self, _remove, self._data_dir, os.getpid()))
        own = {"data.dir": str(self._data_dir)} | _listeners(self._settings, self.address, self._kafka_address)
        config = BrokerConfig.from_settings(DEFAULTS | self._settings | own)
        self._broker, self._changing = None, asyncio.Lock()
        self._thread = LoopThread("warmlog-broker", bulk_loop)
        return self._thread, partial(self._start_in_loop, config)

    def _end(self, *, is_clean: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is None or thread.is_foreign:
            return
        with thread:
            thread.begin(partial(self._end_in_loop, is_clean=is_clean)).result()

    async def _start_in_loop(self, config: BrokerConfig) -> None:
        async with self._changing:
            self._broker = await start_broker(config)

    async def _end_in_loop(self, *, is_clean: bool) -> None:
        async with self._changing:
            broker, self._broker = self._broker, None
            if broker is not None:
                await (broker.stop() if is_clean else broker.abort())

    def _forget_directory(self) -> None:
        self._data_dir = None


def _listeners(settings: dict[str, str], address: str, kafka_address: str) -> dict[str, str]:
    """Return the settings for the listeners, with TLS if there is a certificate for it."""
    has_kafka = KAFKA_LISTEN in settings
    if "tls.cert.file" not in settings:
        return {"listen": address} | ({KAFKA_LISTEN: kafka_address} if has_kafka else {})
    own = {"listeners": f"default=ssl://{address}"}
    if has_kafka:
        own["listeners"] += f",kafka=kafka+ssl://{kafka_address}"
        own |= {"advertised.listeners": f"kafka={kafka_address}", KAFKA_LISTEN: ""}
    return own


def _kafka_address(settings: dict[str, str], free_port: int) -> str:
    """Return where clients of Kafka connect: as `kafka.listen` says, with a port for port 0."""
    host, colon, port = settings.get(KAFKA_LISTEN, "").rpartition(":")
    return f"{host}{colon}{free_port if port == '0' else port}"


def _remove(directory: Path, owner: int) -> None:
    """Remove a temporary directory, unless this process is a fork of its `owner`, which may still use it."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)


def _held_port() -> socket.socket:
    """Return a socket that holds a free port: while the broker is down, the system gives it to no other program.

    The broker can listen there, as this socket does not listen and both allow the reuse of the address.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((HOST, 0))
    return holder
