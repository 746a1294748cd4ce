"""What the blocking clients have in common: a life, and methods of an asyncio client that wait for their result."""

import asyncio
import functools
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from warmlog.admin.admin import Admin
from warmlog.consumer.consumer import Consumer
from warmlog.errors import ClientClosed
from warmlog.producer.producer import Producer
from warmlog_transport.loop_thread import LoopThread

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Admin | Consumer | Producer[Any, Any])

ABANDONED_CLOSE_S = 5.0
"""How long a client that was not closed may take to send the rest, when it is collected or the program ends."""


class BlockingClient(Generic[C]):
    """Runs the methods of an asyncio client in a thread."""

    def __init__(self, client: C) -> None:
        self._client = client
        self._thread: LoopThread | None = None
        self._is_started = False
        self._detach: Callable[[], object] | None = None

    def start(self) -> Self:
        """Connect; `with` calls it. Raises what the asyncio client's `start` raises."""
        if self._is_started:
            raise ClientClosed("a client can be started once: create another one")
        self._is_started = True
        thread = LoopThread(f"warmlog {type(self).__name__.lower()}")
        try:
            thread.call(self._client.start)
        except BaseException:
            thread.stop()
            raise
        self._thread = thread
        abandoned = weakref.finalize(self, _abandoned, type(self).__name__, thread, self._closing())
        self._detach = abandoned.detach
        return self

    def close(self) -> None:
        """Do what the asyncio client's `close` does, and end the thread. No-op if it is closed."""
        if self._thread is not None:
            self._end(self._thread, self._closing())

    @property
    def throttled_ms(self) -> int:
        """For how long brokers have delayed it because of quotas."""
        return self._client.throttled_ms

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        if self._thread is not None:
            self._end(self._thread, self._exiting(error))

    def _end(self, thread: LoopThread, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if thread.is_current:
            thread.check()  # raises
        if self._detach is not None:
            self._detach()
        try:
            if not thread.is_foreign and not thread.has_ended:
                thread.call(work)
        finally:
            self._thread = None
            thread.stop()

    def _call(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        return self._running().call(work)

    def _running(self) -> LoopThread:
        thread = self._thread
        if thread is None:
            state = "closed" if self._is_started else "not started: use `with`, or call start() first"
            raise ClientClosed(f"the {type(self).__name__.lower()} is {state}")
        return thread

    def _closing(self) -> Callable[[], Coroutine[Any, Any, None]]:
        """What closes the client. It does not refer to `self`, so that a client that was not closed is collected."""
        return self._client.close

    def _exiting(self, error: BaseException | None) -> Callable[[], Coroutine[Any, Any, None]]:
        """What ends a `with` block."""
        return lambda: self._client.__aexit__(None, error, None)


def _abandoned(name: str, thread: LoopThread, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close a client that was collected, or that is open when the program ends."""
    if thread.is_foreign:
        return
    warnings.warn(f"unclosed warmlog.blocking.{name}: use `with`, or call close()", ResourceWarning, stacklevel=2)

    def end() -> None:
        try:
            thread.call(work, ABANDONED_CLOSE_S)
        finally:
            thread.stop()

    if thread.is_current or _is_in_loop():
        threading.Thread(target=end, name="warmlog closing").start()
    else:
        end()


def _is_in_loop() -> bool:
    """Whether this thread runs an event loop, which must not wait here: it may be that of the broker."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def options_of(client: Callable[P, Any]) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Give a constructor the signature of an asyncio client's."""
    return functools.wraps(client.__init__)


def waiting(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that runs an asyncio client's coroutine method, and returns its result."""

    @functools.wraps(method)
    def blocking(self: BlockingClient[Any], /, *args: P.args, **keywords: P.kwargs) -> R:
        return self._call(lambda: method(self._client, *args, **keywords))

    return blocking


def in_loop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return a method that runs an asyncio client's plain method in its thread."""

    @functools.wraps(method)
    def blocking(self: BlockingClient[Any], /, *args: P.args, **keywords: P.kwargs) -> R:
        async def run() -> R:
            return method(self._client, *args, **keywords)

        return self._call(run)

    return blocking
