"""Random sessions of one member of a group against a model in lists: what is delivered, and what is committed."""

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator, owned
from group_consumer import consumer, fill
from waiting import until

PARTITIONS = (0, 1, 2)
STEPS = 25


@dataclass
class Model:
    """Three partitions whose records are their offsets, and how far the member and the group have come."""

    commits_automatically: bool
    ends: dict[int, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    positions: dict[int, int] = field(default_factory=dict)
    """Of the partitions that are assigned."""
    begun: dict[int, int] = field(default_factory=dict)
    """The lowest offset from which each was to be read since it was assigned."""
    handled: dict[int, int] = field(default_factory=dict)
    """Where what the user is handling began."""
    committed: dict[int, int] = field(default_factory=dict)

    def deliver(self, partition: int, offsets: list[int], *, further: bool = False) -> None:
        """With `further`, together with what was delivered last."""
        position = self.positions[partition]
        assert offsets == list(range(position, position + len(offsets)))
        if not further:
            self.handled.clear()
        self.handled[partition] = position
        self.positions[partition] = position + len(offsets)

    def seek(self, partition: int, offset: int) -> None:
        self.positions[partition] = offset
        self.begun[partition] = min(self.begun[partition], offset)
        self.handled.pop(partition, None)

    def rewind(self) -> None:
        for partition in self.positions:
            self.seek(partition, self.committed.get(partition, self.begun[partition]))

    def commit_finished(self, partitions: set[int]) -> None:
        if self.commits_automatically:
            for partition in partitions:
                finished = self.handled.get(partition, self.positions[partition])
                self.committed[partition] = max(finished, self.committed.get(partition, -1))

    def follow(self, assigned: set[int]) -> None:
        """What the next read does first."""
        self.handled.clear()
        given_up = self.positions.keys() - assigned
        self.commit_finished(given_up)
        for partition in given_up:
            del self.positions[partition]
        for partition in assigned - self.positions.keys():
            self.positions[partition] = self.begun[partition] = self.committed.get(partition, 0)


@dataclass
class Session:
    client: warmlog.Consumer
    broker: FakeBroker
    coordinator: FakeCoordinator
    model: Model
    dice: random.Random
    assigned: set[int] = field(default_factory=lambda: set(PARTITIONS))
    last: Any = None
    """The batch or record that was delivered last."""

    async def step(self) -> None:
        read, *others = (self.read, self.table, self.fill, self.seek, self.commit, self.rewind, self.assign, self.pause)
        await self.dice.choice([read] * 8 + others)()
        positions = {f"t-{partition}": at for partition, at in self.model.positions.items()}
        assert self.client.positions() == positions

    async def read(self) -> None:
        """Take some items of a loop, and leave it; or all."""
        self.model.follow(self.assigned)
        left = self.dice.randint(1, 7)
        is_left = False
        match self.dice.choice(["batches", "records", "arrow"]):
            case "batches":
                async for batch in self.client.batches("latest"):
                    self.last = batch
                    self.model.deliver(batch.partition, batch.offsets)
                    if is_left := (left := left - 1) == 0:
                        break
            case "records":
                async for record in self.client.records("latest"):
                    self.last = record
                    self.model.deliver(record.partition, [record.offset])
                    if is_left := (left := left - 1) == 0:
                        break
            case "arrow":
                async for part in self.client.arrow("latest"):
                    self.last = None
                    self.model.deliver(part["partition"][0].as_py(), part["offset"].to_pylist())
                    if is_left := (left := left - 1) == 0:
                        break
        if not is_left:
            self.model.handled.clear()
            assert self.model.positions == {partition: self.model.ends[partition] for partition in self.assigned}

    async def table(self) -> None:
        self.model.follow(self.assigned)
        table = await self.client.to_arrow(columns=["partition", "offset"])
        rows = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
        for partition in self.assigned:
            self.model.deliver(partition, [offset for number, offset in rows if number == partition], further=True)
            assert self.model.positions[partition] == self.model.ends[partition]
        self.last = None

    async def fill(self) -> None:
        partition = self.dice.choice(PARTITIONS)
        counts = [self.dice.randint(1, 6) for _ in range(self.dice.randint(1, 4))]
        fill(self.broker, partition, *counts)
        self.model.ends[partition] += sum(counts)

    async def seek(self) -> None:
        for partition in self.dice.sample(sorted(self.model.positions), min(1, len(self.model.positions))):
            offset = self.dice.randint(0, self.model.ends[partition])
            self.client.seek("t", partition, offset)
            self.model.seek(partition, offset)

    async def commit(self) -> None:
        if self.last is not None and self.last.partition in self.model.positions and self.dice.random() < 0.5:
            end = self.last.next_offset if isinstance(self.last, warmlog.Batch) else self.last.offset + 1
            if end < self.model.begun[self.last.partition]:
                with pytest.raises(warmlog.StaleMemberEpoch):
                    await self.client.commit(self.last)
            else:
                await self.client.commit(self.last)
                self.model.committed[self.last.partition] = end
        else:
            await self.client.commit()
            self.model.committed |= self.model.positions
        assert {number: at for (_, number), at in self.coordinator.committed.items()} == self.model.committed

    async def rewind(self) -> None:
        await self.client.seek_to_committed()
        self.model.rewind()

    async def assign(self) -> None:
        """The coordinator changes its mind, and the next read does what it says."""
        self.assigned = {partition for partition in PARTITIONS if self.dice.random() < 0.7}
        self.coordinator.assign(owned(*[("t", partition) for partition in self.assigned]))
        epoch = self.coordinator.member.epoch
        await until(lambda: self.client.group_metadata().member_epoch == epoch)
        await self.read()
        await until(lambda: {each.partition for each in self.coordinator.member.owned} == self.assigned)

    async def pause(self) -> None:
        """What was fetched ahead is dropped, and what is left of a batch read again."""
        for partition in self.dice.sample(sorted(self.model.positions), min(1, len(self.model.positions))):
            self.client.pause([f"t-{partition}"])
            self.client.resume([f"t-{partition}"])


@pytest.mark.parametrize("commit", ["auto", "manual"])
@pytest.mark.parametrize("seed", range(25))
async def test_a_session_delivers_and_commits_as_the_model_says(seed: int, commit: str) -> None:
    pytest.importorskip("pyarrow")
    async with FakeBroker(t=len(PARTITIONS)) as broker:
        coordinator = FakeCoordinator(broker, owned(*[("t", partition) for partition in PARTITIONS]))
        model = Model(commit == "auto")
        async with consumer(broker, commit=commit) as client:
            session = Session(client, broker, coordinator, model, random.Random(seed))
            for _ in PARTITIONS:
                await session.fill()
            await session.read()
            for _ in range(STEPS):
                await session.step()
            model.commit_finished(set(model.positions))
        assert {number: at for (_, number), at in coordinator.committed.items()} == model.committed
