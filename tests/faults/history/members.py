"""The members of the group in a run: processes that are killed and stopped, and the journals that they leave."""

import asyncio
import json
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Self

from forked import Forked
from warmlog import Admin
from warmlog.errors import WarmlogError

SESSION_TIMEOUT_MS = 2000
STATIC = "static"
PROGRAM = "faults.history.member"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a member's journal."""

    member: str
    at: float
    """By time.monotonic."""
    kind: str
    partition: int
    """-1 for one that concerns no partition. An event of several partitions is several events."""
    first: int = -1
    next: int = -1


@dataclass(slots=True)
class GroupNotes:
    """What is known of the group."""

    events: list[Event] = field(default_factory=list)
    committed: list[dict[int, int]] = field(default_factory=list)
    """The committed offsets by partition, as an observer saw them one after the other."""


class Members:
    """Processes that share a topic as one group; one of them has an instance id, and its successors have it too."""

    program = PROGRAM

    def __init__(self, address: str, group: str, topic: str, directory: Path, count: int) -> None:
        self.topic = topic
        self.group = group
        self.address = address
        self.directory = directory
        self._count = count
        self._started = 0
        self.running: dict[str, Forked] = {}

    def __enter__(self) -> Self:
        self.directory.mkdir()
        self.start(STATIC)
        for _ in range(self._count - 1):
            self.start("dynamic")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
        self.running.clear()

    def start(self, kind: str) -> None:
        """Start another process of this kind."""
        name = f"{kind}-{self._started}"
        self._started += 1
        with open(os.devnull) as nothing:
            arguments = self.arguments(name, kind)
            self.running[name] = Forked("clients", [self.program, *arguments], (nothing.fileno(), 1, 2), {**os.environ})

    def arguments(self, name: str, kind: str) -> list[str]:
        """Return the arguments of the program for a new process."""
        arguments = [self.address, self.group, self.topic]
        arguments += [str(self.directory / name), f"--session-timeout-ms={SESSION_TIMEOUT_MS}"]
        return [*arguments, "--instance-id=the-static-one"] if kind == STATIC else arguments

    async def kill_one(self, luck: Random) -> None:
        """SIGKILL, and after a while another in its place."""
        name = luck.choice(sorted(self.running))
        process = self.running.pop(name)
        process.kill()
        process.wait()
        await asyncio.sleep(luck.uniform(0, 1))
        self.start(name.split("-")[0])

    async def stop_one(self, luck: Random, name: str = "") -> None:
        """SIGSTOP of this process, or of any, for longer than its session, so that it goes on as a zombie."""
        process = self.running[name or luck.choice(sorted(self.running))]
        os.kill(process.pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(SESSION_TIMEOUT_MS / 1000 + luck.uniform(0.3, 2))
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def events(self) -> list[Event]:
        """Return what the journals say, by time."""
        found = []
        for path in self.directory.iterdir():
            for line in path.read_text().splitlines():
                noted = json.loads(line)
                for partition in noted.get("partitions", [noted.get("partition", -1)]):
                    place = (noted.get("first", -1), noted.get("next", -1))
                    found.append(Event(path.name, noted["at"], noted["event"], partition, *place))
        return sorted(found, key=lambda event: event.at)

    def check(self) -> None:
        """RuntimeError for a member that has ended by itself."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} has ended with exit code {process.returncode}")

    async def observe(self, address: str, notes: GroupNotes) -> None:
        """Note the committed offsets again and again, until cancelled. `address`: for warmlog's clients."""
        while True:
            try:
                async with Admin(address) as admin:
                    while True:
                        notes.committed.append(await self._committed(admin))
                        await asyncio.sleep(0.05)
            except WarmlogError:  # while the broker is down
                await asyncio.sleep(0.05)

    async def wait_until_done(
        self, address: str, ends: dict[int, int], notes: GroupNotes, *, patience_s: float
    ) -> None:
        """Return once everything below `ends` is committed. TimeoutError if no commit comes for `patience_s`."""
        now_s = asyncio.get_running_loop().time
        before: dict[int, int] = {}
        async with asyncio.timeout(patience_s) as waiting, Admin(address) as admin:
            while (committed := await self._committed(admin)) != ends:
                self.check()
                if committed != before:
                    waiting.reschedule(now_s() + patience_s)
                before = committed
                await asyncio.sleep(0.1)
        notes.committed.append(committed)

    async def _committed(self, admin: Admin) -> dict[int, int]:
        offsets = await admin.committed_offsets(self.group)
        return {partition: at.offset for (_, partition), at in offsets.items()}
