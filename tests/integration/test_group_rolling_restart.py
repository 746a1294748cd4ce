"""Members without instance ids that are restarted one after another, with the broker's own settings."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import warmlog
from broker_process import BrokerProcess

MEMBERS = 5
PARTITIONS = 20
PATIENCE_S = 20


class Ownership:
    """When each partition had no owner; and that none has two."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.without_s: defaultdict[int, float] = defaultdict(float)
        self.taken = 0
        self._given_up_at: dict[int, float] = {}

    def member(self, address: str, name: str) -> warmlog.Consumer:
        def assigned(partitions: list[tuple[str, int]]) -> None:
            for _, partition in partitions:
                assert self.owners.setdefault(partition, name) == name
                self.without_s[partition] += time.monotonic() - self._given_up_at.get(partition, time.monotonic())
                self.taken += 1

        def revoked(partitions: list[tuple[str, int]]) -> None:
            for _, partition in partitions:
                assert self.owners.pop(partition) == name
                self._given_up_at[partition] = time.monotonic()

        return warmlog.Consumer(address, topics=["t"], group="etl", on_assigned=assigned, on_revoked=revoked)

    async def until_balanced(self, members: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.owners) < PARTITIONS or len({*self.owners.values()}) < members:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_each_partition_is_without_an_owner_for_a_moment_only(
    tmp_path: Path, tell: Callable[[str], None]
) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic("t", partitions=PARTITIONS)
        ownership = Ownership()

        async def live(name: str, ends: asyncio.Event) -> None:
            async with ownership.member(broker.address, name) as member:
                reading = asyncio.ensure_future(anext(member.batches()))
                await ends.wait()
                reading.cancel()

        async with AsyncExitStack() as stack, asyncio.TaskGroup() as lives:
            ends = [asyncio.Event() for _ in range(MEMBERS)]
            stack.callback(lambda: [end.set() for end in ends])
            running = [lives.create_task(live(f"{number}", end)) for number, end in enumerate(ends)]
            await ownership.until_balanced(MEMBERS)
            at_first = ownership.taken
            for number in range(MEMBERS):
                ends[number].set()
                await running[number]
                await ownership.until_balanced(MEMBERS - 1)
                ends[number] = asyncio.Event()
                running[number] = lives.create_task(live(f"{number} again", ends[number]))
                await ownership.until_balanced(MEMBERS)
            moves, longest_s = ownership.taken - at_first, max(ownership.without_s.values())
            for end in ends:
                end.set()
        broker.terminate()
    tell(
        f"{MEMBERS} restarts moved {moves} partitions; none was without an owner for more than {longest_s:.2f} s in all"
    )
    assert moves >= PARTITIONS
