"""`make walk`: which functions a produced batch, a fetched batch and a commit of offsets go through, client to disk.

A broker and a client run in this process, and every call of a function of warmlog is traced while one record is sent
until it is acknowledged, while one record is read that is on disk, and while a consumer commits its position. Each has
been done before, so that what is done once for a connection, a topic or a group does not count. A timer may fire
meanwhile: of RUNS runs, the one with the fewest files counts. Printed are the functions in the order of their first
call, by file; comprehensions, lambdas and what libraries do are left out, and properties and dunder methods are counted
apart. A test keeps each way within its LIMITS.
"""

import asyncio
import inspect
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from broker_thread import BrokerThread
from warmlog import Admin, Consumer, Producer

ROOT = Path(__file__).parents[1]
PRODUCT = tuple(str(ROOT / folder) + "/" for folder in ("client", "protocol", "broker"))
QUIET_S = 0.3
"""Longer than a connection is idle between two timers, shorter than housekeeping's interval."""
RUNS = 5
PRODUCED, FETCHED, COMMITTED = "a produced batch", "a fetched batch", "a commit of offsets"


class Entered(NamedTuple):
    """How many files a way enters, and in how many folders these are."""

    files: int
    folders: int


LIMITS = {PRODUCED: Entered(44, 13), FETCHED: Entered(36, 14), COMMITTED: Entered(47, 17)}
"""What a way may enter at most: a change that shortens a way lowers its limit.

Once they rose, by one file: what decides when a batch is committed is apart from the partition since this has replicas.
"""


class Way:
    """The functions of one run, in the order of their first call."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, None] = {}

    @property
    def files(self) -> dict[Path, list[str]]:
        """The names of the functions, by file."""
        files: dict[Path, list[str]] = {}
        for code in self.functions:
            files.setdefault(Path(code.co_filename).relative_to(ROOT), []).append(code.co_qualname)
        return files

    @property
    def entered(self) -> Entered:
        files = self.files
        return Entered(len(files), len({file.parent for file in files}))


class Tracer:
    """Collects the calls in all threads that start while it is installed."""

    def __init__(self) -> None:
        self.ways: dict[str, list[Way]] = {}
        self._recording: Way | None = None

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    @contextmanager
    def recorded(self, name: str) -> Iterator[None]:
        """Record one run of the way `name`."""
        self._recording = Way()
        self.ways.setdefault(name, []).append(self._recording)
        yield
        self._recording = None

    def _profile(self, frame: FrameType, event: str, _argument: object) -> None:
        way, code = self._recording, frame.f_code
        if way is not None and event == "call" and code.co_filename.startswith(PRODUCT) and code.co_name[0] != "<":
            way.functions.setdefault(code)


def shortest_ways() -> dict[str, Way]:
    """Return, for each of the three ways, the run with the fewest files."""
    tracer = Tracer()
    with (
        tracer.installed(),
        tempfile.TemporaryDirectory() as directory,
        BrokerThread(Path(directory), num_partitions=1) as broker,
    ):
        asyncio.run(_record(broker.address, tracer))
    return {name: min(runs, key=lambda way: way.entered) for name, runs in tracer.ways.items()}


async def _record(address: str, tracer: Tracer) -> None:
    async with Admin(address) as admin:
        await admin.create_topic("walk", partitions=1)
    async with Producer(address, linger_ms=0) as producer:
        for _ in range(3):
            await producer.send("walk", b"value", key=b"key")
        for _ in range(RUNS):
            await asyncio.sleep(QUIET_S)
            with tracer.recorded(PRODUCED):
                sent = await producer.send("walk", b"value", key=b"key")
                await asyncio.sleep(0)
    for _ in range(RUNS):
        async with Consumer(address, topics=["walk"], start={("walk", 0): sent.offset}) as consumer:
            await asyncio.sleep(QUIET_S)
            with tracer.recorded(FETCHED):
                await anext(consumer.records())
    async with Consumer(address, topics=["walk"], group="walk", commit="manual") as consumer:
        records = consumer.records()
        await anext(records)
        await consumer.commit()
        for _ in range(RUNS):
            await anext(records)
            await asyncio.sleep(QUIET_S)
            with tracer.recorded(COMMITTED):
                await consumer.commit()


def is_accessor(code: CodeType) -> bool:
    """Whether `code` is a property or a method such as `__len__`."""
    if code.co_name.startswith("__"):
        return True
    module = next(each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == code.co_filename)
    found: object = module
    for name in code.co_qualname.split("."):
        found = inspect.getattr_static(found, name, None)
    return isinstance(found, property)


def main() -> None:
    ways = shortest_ways()
    for name, way in ways.items():
        print(f"\n{name}\n")
        for file, functions in way.files.items():
            print(f"{file}: {', '.join(functions)}")
    print()
    for name, way in ways.items():
        accessors = sum(map(is_accessor, way.functions))
        files, folders = way.entered
        print(
            f"{name}: {files} files, {folders} folders, {len(way.functions) - accessors} functions, "
            f"{accessors} properties and dunders"
        )


if __name__ == "__main__":
    main()
