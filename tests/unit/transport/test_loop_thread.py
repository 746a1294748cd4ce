"""The thread of a blocking client."""

import asyncio
import threading

from warmlog_transport.loop_thread import LoopThread


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
    running.join(10)
    assert ended == ["in order"]
