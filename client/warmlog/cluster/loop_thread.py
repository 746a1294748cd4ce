"""An event loop in a thread: for a blocking client, and for the heartbeats of a member of a group."""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from warmlog.errors import ClientClosed

R = TypeVar("R")

_CLOSED = "the client was closed by another thread before this was done"
INTERRUPTED_WAIT_S = 1.0
"""How long an interrupted call waits for its work to end."""


class LoopThread:
    """Runs coroutines of one client for any thread of the process that created it."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._process_id = os.getpid()
        self._lock = threading.Lock()
        self._calls: set[Future[Any]] = set()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that the thread runs in."""
        return os.getpid() != self._process_id

    @property
    def is_current(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def check(self) -> None:
        """Raise ClientClosed in a forked process, RuntimeError in the thread itself, which would wait for itself."""
        self.check_process()
        if self.is_current:
            raise RuntimeError("a callback of a blocking client must not call the client: hand over to another thread")

    def check_process(self) -> None:
        """Raise ClientClosed in a forked process."""
        if self.is_foreign:
            raise ClientClosed(
                f"this client was started in process {self._process_id}, and process {os.getpid()} is a fork of it: "
                f"create a client in each process"
            )

    def call(self, work: Callable[[], Coroutine[Any, Any, R]], timeout_s: float | None = None) -> R:
        """Return the result of `work`, which runs in the loop. TimeoutError after `timeout_s`.

        An interruption, such as Ctrl-C, or a timeout cancels the work.
        """
        self.check()
        done: Future[R] = Future()
        tasks: list[asyncio.Task[None]] = []

        async def run() -> None:
            try:
                done.set_result(await work())
            except asyncio.CancelledError:
                done.set_exception(ClientClosed(_CLOSED))
            except BaseException as error:
                done.set_exception(error)

        def begin() -> None:
            tasks.append(self.loop.create_task(run()))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        self._calls.add(done)
        try:
            self.soon(begin)
            return done.result(timeout_s)
        except BaseException:
            if not done.done():
                with suppress(BaseException):
                    self.soon(cancel)
                    done.exception(INTERRUPTED_WAIT_S)
            raise
        finally:
            self._calls.discard(done)

    def soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call `callback`. Raises ClientClosed if it has ended."""
        with self._lock:
            if self._has_ended:
                raise ClientClosed(_CLOSED)
            self.loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """End the loop and the thread. No-op in a forked process. Calls of other threads that wait get ClientClosed."""
        if self.is_foreign:
            return
        with suppress(ClientClosed):
            self.soon(self.loop.stop)
        if not self.is_current:
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        finally:
            with self._lock:
                self._has_ended = True
                self.loop.close()
            for done in list(self._calls):
                with suppress(InvalidStateError):  # it has just got its result
                    done.set_exception(ClientClosed(_CLOSED))
