"""`make bench-footprint`: the memory and the descriptors that a broker takes, and how they grow with what it holds.

Everything is on disk when it is measured, and nothing is in flight: what requests take beside is bounded by settings.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from broker_process import BrokerProcess
from faults.process_use import Use, use_of
from warmlog import Admin, Producer
from wire_client import WireClient

COUNT = 1000
PRODUCERS = 10
SETTLED_S = 2.0
"""After so long what was needed to get there is given back, as far as it ever is."""


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.footprint", description=__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help="how many of each (default: 1000)")
    count = parser.parse_args().count
    table = Table("", "memory", "descriptors", "memory of each", "descriptors of each")
    with tempfile.TemporaryDirectory(prefix="warmlog-footprint-") as directory:
        measure(Path(directory), count, table)
    Console(width=100).print(table)
    return 0


def measure(directory: Path, count: int, table: Table) -> None:
    """Add a row for each thing that a broker gets more of."""
    with BrokerProcess(directory / "data") as broker, ExitStack() as stack:
        before = _settled(broker)
        table.add_row("an empty broker", *_columns(before))

        def add(what: str) -> None:
            nonlocal before
            after = _settled(broker)
            table.add_row(f"{count:,} {what}", *_columns(after), *_share(before, after, count))
            before = after

        with WireClient(broker.address) as client:
            client.create_topic("some", partitions=count)
        add("partitions")
        asyncio.run(_fill(broker.address, count))
        add("first records of these")
        for _ in range(count):
            stack.enter_context(WireClient(broker.address))
        add("connections")
        asyncio.run(_commit(broker.address, count))
        add("committed offsets of a group")


def _settled(broker: BrokerProcess) -> Use:
    time.sleep(SETTLED_S)
    return use_of(broker.pid)


async def _fill(address: str, count: int) -> None:
    async with Producer(address) as producer:
        for partition in range(count):
            producer.send("some", b"x" * 1000, partition=partition)


async def _commit(address: str, count: int) -> None:
    async with Admin(address) as admin:
        await admin.reset_offsets("some readers", {("some", partition): 0 for partition in range(count)}, dry_run=False)


def _columns(use: Use) -> tuple[str, str]:
    return f"{use.memory_bytes / 2**20:.1f} MiB", str(use.descriptors)


def _share(before: Use, after: Use, count: int) -> tuple[str, str]:
    memory_bytes = (after.memory_bytes - before.memory_bytes) / count
    return f"{memory_bytes / 1024:.1f} KiB", f"{(after.descriptors - before.descriptors) / count:.1f}"


if __name__ == "__main__":
    sys.exit(main())
