"""Blocking calls of a loop in a thread: how they end, whatever ends them, and that the next one works."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

import pytest

from warmlog.errors import ClientClosed
from warmlog_transport.loop_thread import LoopThread, bulk_loop

TIMEOUT_S = 25
LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop, "uvloop": bulk_loop}


@pytest.fixture(params=LOOPS)
def thread(request: pytest.FixtureRequest) -> Iterator[LoopThread]:
    with LoopThread("called", LOOPS[request.param]) as thread:
        yield thread


async def value() -> str:
    await asyncio.sleep(0)
    return "value"


class Failure(Exception):
    pass


async def failing() -> None:
    raise Failure


def interrupt_after(events: int) -> Callable[[FrameType, str, object], None]:
    """Return a profile function that raises KeyboardInterrupt where Python handles a signal.

    That is where a function begins, and after one that is written in C.
    """
    coming = count()

    def profile(_frame: FrameType, event: str, _argument: object) -> None:
        if event in ("call", "c_return") and next(coming) == events:
            raise KeyboardInterrupt

    return profile


@pytest.mark.parametrize("work", [value, failing])
def test_a_call_that_is_interrupted_anywhere_leaves_the_loop_to_the_next(thread: LoopThread, work: Any) -> None:
    interrupted, is_interrupted = 0, True
    while is_interrupted:
        is_interrupted = False
        sys.setprofile(interrupt_after(interrupted))
        try:
            thread.call(work, TIMEOUT_S)
        except KeyboardInterrupt:
            is_interrupted = True
            interrupted += 1
        except Failure:
            assert work is failing
        finally:
            sys.setprofile(None)
        assert thread.call(value, TIMEOUT_S) == "value"
    assert interrupted > 10


def test_an_interruption_cancels_the_work_and_waits_for_its_end(thread: LoopThread) -> None:
    ended: list[str] = []
    main = threading.main_thread().ident
    assert main is not None

    async def work() -> None:
        thread.loop.call_later(0.01, signal.pthread_kill, main, signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("in order")

    with pytest.raises(KeyboardInterrupt):
        thread.call(work)
    assert ended == ["in order"]


def test_a_timeout_cancels_the_work(thread: LoopThread) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("cancelled")

    for timeout_s in (0.01, 1e-6, 0, -1):
        with pytest.raises(TimeoutError):
            thread.call(work, timeout_s)
        assert thread.call(value) == "value"
    assert "cancelled" in ended


def test_the_error_says_whether_the_loop_has_ended_or_what_the_work_waited_for_was_cancelled(
    thread: LoopThread,
) -> None:
    async def work() -> None:
        cancelled = asyncio.get_running_loop().create_future()
        cancelled.cancel()
        await cancelled

    with pytest.raises(ClientClosed, match="something that it waited for was cancelled"):
        thread.call(work)
    waiting = thread.begin(lambda: asyncio.sleep(60))
    thread.call(value)  # it has begun
    thread.stop()
    with pytest.raises(ClientClosed, match="closed by another thread"):
        waiting.result(TIMEOUT_S)


def test_an_error_is_raised_as_it_is_and_nothing_refers_to_it_afterwards(thread: LoopThread) -> None:
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(Failure) as raised:
            thread.call(failing)
        error = weakref.ref(raised.value)
        del raised
        thread.call(value)  # the loop has left the turn of the call before
        assert error() is None
    finally:
        gc.enable()


def test_a_signals_handler_may_call_while_its_thread_waits(thread: LoopThread) -> None:
    called: list[str] = []
    main = threading.main_thread().ident
    assert main is not None

    async def work() -> str:
        for _ in range(20):
            signal.pthread_kill(main, signal.SIGALRM)
            await asyncio.sleep(0.001)
        return "over"

    before = signal.signal(signal.SIGALRM, lambda *_: called.append(thread.call(value)))
    try:
        assert thread.call(work) == "over"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert set(called) == {"value"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("is_exit", [False, True])
def test_calls_that_wait_end_with_the_loop(thread: LoopThread, *, is_exit: bool) -> None:
    """As it is stopped, or as a callback raises what ends its thread."""
    errors: list[BaseException] = []
    waiting = threading.Semaphore(0)

    async def work() -> None:
        waiting.release()
        await asyncio.sleep(60)

    def call() -> None:
        try:
            thread.call(work)
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
        assert waiting.acquire(timeout=TIMEOUT_S)
    if is_exit:
        thread.soon(sys.exit)
    else:
        thread.stop()
    for caller in callers:
        caller.join(TIMEOUT_S)
    assert [type(error) for error in errors] == [ClientClosed] * 3
    thread.stop()
    with pytest.raises(ClientClosed):
        thread.call(value)


def test_a_fork_cannot_call(thread: LoopThread) -> None:
    assert thread.call(value) == "value"
    child = os.fork()
    if child == 0:
        try:
            thread.call(value)
        except ClientClosed:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert thread.call(value) == "value"


AT_EXIT = """
import asyncio, atexit, threading
from warmlog_transport.loop_thread import LoopThread

async def value():
    await asyncio.sleep(0.01)
    return "value"

thread = LoopThread("called")
atexit.register(lambda: print(thread.call(value)))
threading.Thread(target=thread.call, args=[lambda: asyncio.sleep(60)], daemon=True).start()
"""


def test_a_call_works_as_the_program_ends_and_one_of_a_daemon_thread_keeps_it_from_nothing() -> None:
    ended = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, timeout=180)
    assert (ended.returncode, ended.stdout) == (0, "value\n"), ended.stderr


def test_another_stop_while_it_ends_does_not_interrupt_that() -> None:
    thread = LoopThread("stopped")
    (running,) = [each for each in threading.enumerate() if each.name == "stopped"]
    ended: list[str] = []

    async def task() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("in order")

    def stop_twice() -> None:
        thread.stop()
        thread.loop.call_soon(thread.stop)  # in the turn in which the loop stops: its own stop comes a turn later

    tasks: list[asyncio.Task[None]] = []
    thread.soon(lambda: tasks.append(thread.loop.create_task(task())))
    thread.soon(stop_twice)
    running.join(25)
    assert ended == ["in order"]
