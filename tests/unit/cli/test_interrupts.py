"""SIGTERM, where a command ends by it as by Ctrl-C."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from warmlog.cli.terminal.options import run_client, take_sigterm_as_ctrl_c


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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


def test_sigterm_interrupts_also_a_command_that_a_shell_started_in_the_background() -> None:
    async def main() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(10)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_sigterm_as_ctrl_c()
    with pytest.raises(KeyboardInterrupt):
        run_client(main, is_bulk=True)
