"""`make walk`: which functions one produced and one fetched record go through, client to disk and back.

A broker and a client run in this process, and every call of a function of warmlog is traced while one record is sent
until it is acknowledged, and then while one record is read that is on disk. The producer has sent records before, so
that what is done once for a connection or a topic does not count. Printed are the functions in the order of their first
call, by file; comprehensions, lambdas and what libraries do are left out, and properties and dunder methods are counted
apart.
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

from broker_thread import BrokerThread
from warmlog import Admin, Consumer, Producer

ROOT = Path(__file__).parents[1]
PRODUCT = tuple(str(ROOT / folder) + "/" for folder in ("client", "protocol", "broker"))
QUIET_S = 0.3
"""Longer than a connection is idle between two timers, shorter than housekeeping's interval."""


class Walk:
    """Functions in the order of their first call, while it is recording."""

    def __init__(self) -> None:
        self.functions: dict[CodeType, None] = {}
        self._is_recording = False

    @contextmanager
    def recorded(self) -> Iterator[dict[CodeType, None]]:
        self.functions = {}
        self._is_recording = True
        yield self.functions
        self._is_recording = False

    def profile(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if self._is_recording and event == "call" and code.co_filename.startswith(PRODUCT) and code.co_name[0] != "<":
            self.functions.setdefault(code)


async def produce_and_fetch(address: str, walk: Walk) -> None:
    async with Admin(address) as admin:
        await admin.create_topic("walk", partitions=1)
    async with Producer(address, linger_ms=0) as producer:
        for _ in range(3):
            sent = await producer.send("walk", b"value", key=b"key")
        await asyncio.sleep(QUIET_S)
        with walk.recorded() as functions:
            sent = await producer.send("walk", b"value", key=b"key")
            await asyncio.sleep(0)
        show("a produced record", functions)
    async with Consumer(address, topics=["walk"], start={("walk", 0): sent.offset}) as consumer:
        with walk.recorded() as functions:
            await anext(consumer.records())
        show("a fetched record", functions)


def show(title: str, functions: dict[CodeType, None]) -> None:
    files: dict[str, list[str]] = {}
    for code in functions:
        files.setdefault(str(Path(code.co_filename).relative_to(ROOT)), []).append(code.co_qualname)
    steps = [code for code in functions if not is_accessor(code)]
    print(
        f"\n{title}: {len(files)} files, {len(steps)} functions, {len(functions) - len(steps)} properties and dunders\n"
    )
    for file, names in files.items():
        print(f"{file}: {', '.join(names)}")


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
    walk = Walk()
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    with tempfile.TemporaryDirectory() as directory, BrokerThread(Path(directory), num_partitions=1) as broker:
        asyncio.run(produce_and_fetch(broker.address, walk))
    sys.setprofile(None)


if __name__ == "__main__":
    main()
