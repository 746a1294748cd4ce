"""Jobs in a run: processes that write versions of many tasks, and what must be there of them."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random

from faults.history.members import Members
from faults.history.transactional.checking import COMMITTED, UNCOMMITTED, check_reader
from faults.history.transactional.notes import Record, Views

LOADS = "loads"
PARTITIONS = 3
DRIVERS = 2
MAX_ROWS = 40
STOPPING = "stopping"

Row = tuple[int, bytes]
"""Partition and value."""


def rows_of(transactional_id: str, version: int) -> list[Row]:
    """Return the rows of a version, at times none: the same for each run of it."""
    luck = Random(f"{transactional_id}: {version}")
    return [
        (luck.randrange(PARTITIONS), f"{transactional_id}:{version}:{number}:".encode() + luck.randbytes(100))
        for number in range(luck.randrange(MAX_ROWS))
    ]


def next_version(log: Path) -> int:
    """Return the version after the last one of a driver's log, which has a file for each version."""
    return 1 + max((int(path.name) for path in log.iterdir()), default=-1)


class Jobs(Members):
    """Drivers with their tasks. The successors of one go on with its job, after the last version of its log."""

    program = "faults.history.transactional.job"

    def arguments(self, name: str, kind: str) -> list[str]:
        log = self._log(kind)
        log.mkdir(exist_ok=True)
        return [self.address, self.topic, kind, str(log), str(self.directory / STOPPING), name]

    async def rival_one(self, luck: Random) -> None:
        """Stop a driver while another runs the same job, and let it go on beside that for a while."""
        name = luck.choice(sorted(self.running))
        self.start(name.split("-")[0])
        await self.stop_one(luck, name)
        await asyncio.sleep(luck.uniform(0, 2))
        first = self.running.pop(name)
        first.kill()
        first.wait()

    async def finish(self) -> None:
        """Wait until each driver has committed what it was at."""
        (self.directory / STOPPING).touch()
        await asyncio.gather(*(asyncio.to_thread(process.wait) for process in self.running.values()))

    def logged(self) -> dict[str, int]:
        """Return how many versions of each job are in its driver's log."""
        kinds = {name.split("-")[0] for name in self.running}
        return {kind: next_version(self._log(kind)) for kind in kinds}

    def _log(self, kind: str) -> Path:
        return self.directory / f"log-{kind}"


def check_jobs(logged: Mapping[str, int], views: Views, seen: Sequence[Record]) -> Iterable[tuple[str, str]]:
    """Yield kind and text of each finding. `seen`: what a reader of committed records got that lived through all.

    Each row of a version in the log is there once. The version behind may be there, as a whole: its driver was killed
    between the commit and the log.
    """
    found = Counter((record.partition, record.value) for record in views[COMMITTED])
    expected = Counter[Row]()
    for job, versions in logged.items():
        for version in range(versions):
            expected.update(rows_of(job, version))
        behind = rows_of(job, versions)
        if all(row in found for row in behind):
            expected.update(behind)
    for kind, difference in (("lost commit", expected - found), ("doubled or torn", found - expected)):
        if difference:
            yield kind, f"{difference.total()} rows of jobs, such as {min(difference)!r}"
    if not set(views[COMMITTED]) <= set(views[UNCOMMITTED]):
        yield "isolation", f"{LOADS}: committed records that a reader of all records does not get"
    yield from check_reader(COMMITTED, seen, views[COMMITTED])
