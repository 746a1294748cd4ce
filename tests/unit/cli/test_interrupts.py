"""SIGTERM, where a command ends by it as by Ctrl-C."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from warmlog.cli.terminal.options import run_client, take_sigterm_as_ctrl_c


@pytest.fixture
def sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
def test_sigterm_interrupts_the_command_and_none_of_its_other_tasks() -> None:
    ended: list[bool] = []

    async def background() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        ended.append(True)

    async def main() -> None:
        await asyncio.wait([asyncio.create_task(background())])
        await asyncio.sleep(10)

    take_sigterm_as_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        run_client(main, is_bulk=True)
    assert ended == [True]
