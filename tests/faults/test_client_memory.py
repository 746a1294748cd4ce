"""Clients that come, work and go leave no memory in use behind them."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from faults.client_memory import PASSING_RECORDS, bytes_in_use
from warmlog import Admin, Producer

TESTS = Path(__file__).parents[1]
ROUNDS, WARM_UP_ROUNDS = 30, 5
RECORDS = 120_000
ALLOWED_GARBAGE_BYTES = 32 * 1024
"""What only the garbage collector frees, of a round's four clients: no buffer of any of them."""
ALLOWED_BYTES, ALLOWED_BLOCKS = 64 * 1024, 8 * ROUNDS
"""The figures of each round are kept, and tables of the interpreter grow now and then: one buffer would be more."""


async def fill(address: str) -> None:
    async with Admin(address) as admin, Producer(address) as producer:
        await admin.create_topic("t", partitions=12)
        for _ in range(RECORDS // 1000):
            await producer.send_many("t", [bytes(200)] * 1000)


@pytest.mark.skipif(bytes_in_use() is None, reason="the C library does not say what is in use")
def test_what_clients_have_used_is_given_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        asyncio.run(fill(broker.address))
        done = subprocess.run(
            [sys.executable, "-m", "faults.client_memory", broker.address, "t", str(ROUNDS)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
            capture_output=True,
            text=True,
            check=True,
            timeout=180,
        )
    rounds = json.loads(done.stdout)
    assert [count for count, *_ in rounds] == [RECORDS + PASSING_RECORDS] * ROUNDS
    garbage = [uncollected - in_use for _, uncollected, in_use, _ in rounds]
    assert max(garbage) < ALLOWED_GARBAGE_BYTES, garbage
    in_use, blocks = zip(*[row[2:] for row in rounds[WARM_UP_ROUNDS:]], strict=True)
    assert max(in_use) - min(in_use) < ALLOWED_BYTES, in_use
    assert max(blocks) - min(blocks) < ALLOWED_BLOCKS, blocks
