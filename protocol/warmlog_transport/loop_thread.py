"""An event loop in a thread: the one bridge from threads to asyncio, for blocking clients and for Spark's tasks."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, Self, TypeVar

from warmlog_transport.errors import ClientClosed

P = ParamSpec("P")
R = TypeVar("R")

_CLOSED = "the client was closed by another thread before this was done"
_CANCELLED = "this was given up, as something that it waited for was cancelled"
INTERRUPTED_WAIT_S = 1.0
"""How long an interrupted call waits for its work to end."""


class _Threads(ThreadPoolExecutor):
    """One thread for pieces of work, and further ones while it is busy.

    A pool takes no work as the program ends, when an `atexit` function may close a client, and Python 3.12 starts no
    thread then: what finds the one busy is done at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        """What the kept thread is to do; None ends it."""
        self._idle = threading.Lock()
        """Held while that thread is busy."""
        self._thread = self._start(self._keep)

    def submit(self, work: Callable[P, R], /, *args: P.args, **keywords: P.kwargs) -> Future[R]:
        done: Future[R] = Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(work(*args, **keywords))
                except BaseException as error:
                    done.set_exception(error)

        if self._idle.acquire(blocking=False):
            self._kept.put(run)
        else:
            try:
                self._start(run)
            except RuntimeError:  # as the program ends
                run()
        return done

    def shutdown(self, *_: bool, **__: bool) -> None:
        self._kept.put(None)
        if self._idle.acquire(blocking=False):
            self._thread.join()

    def _keep(self) -> None:
        while (run := self._kept.get()) is not None:
            run()
            del run  # which refers to the client
            self._idle.release()

    def _start(self, run: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=run, name="warmlog work", daemon=True)
        thread.start()
        return thread


class LoopCall(Generic[R]):
    """Work that a loop is to run, and that one thread waits for.

    The thread waits for a plain lock, and takes no other that the loop takes as well: Ctrl-C in the methods of
    `threading.Condition`, on which `Future` and `Event` are built, may leave their lock held for ever. The `get` of
    a `SimpleQueue` is no better: up to Python 3.12, it waits for ever if its timeout has passed as it begins to wait.
    """

    def __init__(
        self, soon: Callable[[Callable[[], object]], object], work: Callable[[], Coroutine[Any, Any, R]]
    ) -> None:
        self.is_over = False
        self._soon = soon
        """Has the loop call something; raises if it has ended."""
        self._work = work
        self._task: asyncio.Task[None] | None = None
        """What runs the work, until it is over."""
        self._result: R
        self._errors: list[BaseException] = []
        """What it has failed with, if it has, until that is raised: its traceback refers to this call."""
        self._running = threading.Lock()
        """Held until it is over."""
        self._running.acquire()

    def begin(self) -> None:
        """Have the loop run the work. Raises as `soon`."""
        self._soon(self._create_task)

    def cancel(self) -> None:
        """Have the loop cancel the work, unless it is over. Raises as `soon`."""
        if not self.is_over:
            self._soon(self._cancel_task)

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether it is over at last."""
        if not self.is_over:
            self._running.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0))
        return self.is_over

    def result(self, timeout_s: float | None = None) -> R:
        """Wait, and return what the work has returned, or raise its error, once. TimeoutError after `timeout_s`.

        ClientClosed if it was cancelled, as by the end of the loop, or what it waited for was.
        """
        if not self.wait(timeout_s):
            raise TimeoutError
        if self._errors:
            raise self._errors.pop()
        return self._result

    def _create_task(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._cancelled)

    def _cancel_task(self) -> None:
        if self._task is None:
            self._cancelled()
        else:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            self._result = await self._work()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            self._errors.append(ClientClosed(_CLOSED if task is not None and task.cancelling() else _CANCELLED))
        except BaseException as error:
            self._errors.append(error)
        self._end()

    def _cancelled(self, _: object = None) -> None:
        """End it if it was cancelled before it had begun to run."""
        if not self.is_over:
            self._errors.append(ClientClosed(_CLOSED))
            self._end()

    def _end(self) -> None:
        self._task = None  # destroyed in the loop: Ctrl-C during that would be lost in the thread that waits
        self.is_over = True
        self._running.release()


def bulk_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop for much data: uvloop sends and receives large messages with less work than asyncio."""
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """Runs coroutines for any thread of the process that created it. A context manager that stops it."""

    def __init__(self, name: str, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> None:
        self.loop = new_loop()
        self.loop.set_default_executor(_Threads())
        self._process_id = os.getpid()
        self._ending = threading.RLock()
        """Held for each callback that comes from outside, and as the loop ends: none comes after that.

        A signal's handler may call while its thread holds it.
        """
        self._is_stopping = False
        self.has_ended = False
        """Whether the loop runs no longer."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

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

        An interruption, such as Ctrl-C, or a timeout cancels the work. ClientClosed if the loop ends first.
        """
        self.check()
        called = LoopCall(self.soon, work)
        try:
            called.begin()
            return called.result(timeout_s)
        except BaseException:
            with suppress(ClientClosed):
                called.cancel()
                called.wait(INTERRUPTED_WAIT_S)
            raise

    def begin(self, work: Callable[[], Coroutine[Any, Any, R]]) -> LoopCall[R]:
        """Have the loop run `work`, and return what waits for it. ClientClosed if the loop has ended."""
        self.check()
        called = LoopCall(self.soon, work)
        called.begin()
        return called

    def submit(self, work: Callable[[], Coroutine[Any, Any, R]]) -> "Future[R]":
        """Have the loop run `work`; return its Future, which is cancelled if the loop ends first.

        For `asyncio.wrap_future`: Ctrl-C while a thread waits for a Future may block the loop.
        """
        self.check()
        with self._ending:
            self._check_running()
            return asyncio.run_coroutine_threadsafe(work(), self.loop)

    @contextmanager
    def entered(self, make: Callable[[], AbstractAsyncContextManager[R]]) -> Iterator[R]:
        """A context manager that enters, and leaves, in the loop the asynchronous one that `make` returns there.

        If the loop has ended before, as at the end of the program, there is nothing to leave.
        """
        stack = AsyncExitStack()

        async def enter() -> R:
            return await stack.enter_async_context(make())

        entered = self.call(enter)
        try:
            yield entered
        except BaseException as error:
            with suppress(ClientClosed):
                if self.call(partial(stack.__aexit__, type(error), error, error.__traceback__)):
                    return
            raise
        else:
            self.call(stack.aclose)

    def soon(self, callback: Callable[[], object]) -> None:
        """Have the loop call `callback`. Raises ClientClosed if it has ended."""
        with self._ending:
            self._check_running()
            self.loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """End the loop and the thread. No-op in a forked process. Calls of other threads that wait get ClientClosed."""
        if self.is_foreign or sys.is_finalizing():
            return
        with suppress(ClientClosed):
            self.soon(self._stop_loop)
        if not self.is_current:
            self._thread.join()

    def _check_running(self) -> None:
        if self.has_ended or sys.is_finalizing():
            raise ClientClosed(_CLOSED)

    def _stop_loop(self) -> None:
        """Stop the loop once: another stop would interrupt what it does at its end."""
        if not self._is_stopping:
            self._is_stopping = True
            self.loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            with self._ending:
                self.has_ended = True
            self.loop.run_until_complete(_end_tasks())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()


async def _end_tasks() -> None:
    """Cancel all other tasks of the loop, those included that callbacks are about to create."""
    await asyncio.sleep(0)
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
