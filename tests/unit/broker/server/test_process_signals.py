"""Signals around the start of a broker: until it serves they end the process, later they stop it in order."""

import asyncio
import os
import signal

import pytest

from warmlog_broker.server.process import STOP_SIGNALS, _ended_by_signals

DEADLINE_S = 10


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_right_behind_loading_is_a_stop_and_no_crash(number: signal.Signals) -> None:
    async def load_and_be_told_to_stop() -> None:
        loop = asyncio.get_running_loop()
        told_to_stop = asyncio.Event()
        with _ended_by_signals(loop, lambda: None, then=told_to_stop.set):
            await asyncio.sleep(0)
        try:
            os.kill(os.getpid(), number)
            async with asyncio.timeout(DEADLINE_S):
                await told_to_stop.wait()
        finally:
            for each in STOP_SIGNALS:
                loop.remove_signal_handler(each)

    asyncio.run(load_and_be_told_to_stop())
