"""Fetches that wait: when they are woken, and when they are not."""

import asyncio
from collections.abc import Callable
from errno import EIO
from typing import cast

import pytest

from warmlog_broker.replica.delayed_fetch import ENDS_A_TURN, DelayedFetches, WantedRead, readable_bytes
from warmlog_broker.replica.partition import Partition, ReadWaiter
from warmlog_broker.storage.log.local_log import ReadBound
from warmlog_broker.storage.segment.segments import LogOffsetMetadata
from warmlog_protocol.errors import ApiError, StorageError, UnknownTopicOrPartition


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ((5, 0, 100), (5, 0, 100), 0),
        ((9, 0, 300), (5, 0, 100), 0),
        ((5, 0, 100), (9, 0, 160), 60),
        ((5, 0, 100), (9, 0, 5000), 1000),
        ((5, 0, 100), (9, 8, 10), 1000),
        ((5, -1, -1), (9, 0, 160), 1000),
        ((5, 0, 100), (9, -1, -1), 1000),
    ],
)
def test_readable_bytes(start: tuple[int, int, int], end: tuple[int, int, int], expected: int) -> None:
    assert readable_bytes(LogOffsetMetadata(*start), LogOffsetMetadata(*end), 1000) == expected


class FakePartition:
    """The part of a Partition that waits see, with a bound that the test moves."""

    def __init__(self) -> None:
        self.end = LogOffsetMetadata(0, 0, 0)
        self.failure: ApiError | OSError | None = None
        self.readers: set[ReadWaiter] = set()

    def add_reader(self, reader: ReadWaiter, bound: ReadBound) -> None:
        self.readers.add(reader)

    def remove_reader(self, reader: ReadWaiter) -> None:
        self.readers.discard(reader)

    @property
    def log(self) -> "FakePartition":
        if self.failure is not None:
            raise self.failure
        return self

    @property
    def bounds(self) -> "FakePartition":
        return self

    def end_of(self, bound: ReadBound) -> LogOffsetMetadata:
        return self.end

    def move(self, size_bytes: int) -> None:
        self.end = LogOffsetMetadata(self.end.offset + 1, 0, self.end.position + size_bytes)
        self.wake()

    def wake(self) -> None:
        for reader in list(self.readers):
            reader.partition_moved(cast("Partition", self))


def wanted(*partitions: FakePartition) -> dict[Partition, WantedRead]:
    start = LogOffsetMetadata(0, 0, 0)
    return {cast("Partition", partition): WantedRead(start, 1000, "high_watermark") for partition in partitions}


def add(
    waits: DelayedFetches,
    partitions: dict[Partition, WantedRead],
    on_done: Callable[[], None],
    *,
    owner: object = None,
    min_bytes: int = 1,
    max_wait_ms: int = 60_000,
) -> bool:
    return waits.add(owner, partitions, min_bytes=min_bytes, max_wait_ms=max_wait_ms, on_done=on_done)


async def turn() -> None:
    """Lets the event loop do what is due."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_wait_ends_once_the_bytes_of_all_partitions_add_up() -> None:
    waits, done = DelayedFetches(10, 10_000), []
    one, two = FakePartition(), FakePartition()
    assert add(waits, wanted(one, two), lambda: done.append(1), min_bytes=100)
    one.move(40)
    one.move(20)
    two.move(30)
    await turn()
    assert done == []
    two.move(10)
    one.move(100)
    await turn()
    assert done == [1]
    one.move(100)
    await turn()
    assert done == [1]
    assert len(waits) == 0
    assert not one.readers
    assert not two.readers


async def test_a_wait_that_is_satisfied_from_the_start_ends_at_once() -> None:
    waits, done = DelayedFetches(10, 10_000), []
    partition = FakePartition()
    partition.move(10)
    assert add(waits, wanted(partition), lambda: done.append(1))
    await turn()
    assert done == [1]


async def test_a_wait_ends_when_its_time_is_over() -> None:
    waits = DelayedFetches(10, 10_000)
    partition, over = FakePartition(), asyncio.Event()
    assert add(waits, wanted(partition), over.set, max_wait_ms=5)
    await asyncio.wait_for(over.wait(), 25)
    assert not partition.readers


@pytest.mark.parametrize(
    "failure", [StorageError("offline"), UnknownTopicOrPartition("deleted"), OSError(EIO, "the end is not to be found")]
)
async def test_a_wait_ends_when_a_partition_goes_away(failure: ApiError | OSError) -> None:
    waits, done = DelayedFetches(10, 10_000), []
    partition = FakePartition()
    assert add(waits, wanted(partition, FakePartition()), lambda: done.append(1), min_bytes=10_000)
    partition.failure = failure
    partition.wake()
    await turn()
    assert done == [1]


async def test_the_waits_of_who_is_gone_end_without_a_word() -> None:
    waits, done = DelayedFetches(10, 10_000), []
    partition = FakePartition()
    assert add(waits, wanted(partition), lambda: done.append("a"), owner="a")
    assert add(waits, wanted(partition), lambda: done.append("a"), owner="a")
    assert add(waits, wanted(partition), lambda: done.append("b"), owner="b")
    assert waits.forget("a") == 2
    assert waits.forget("a") == 0
    partition.move(10)
    await turn()
    assert done == ["b"]


async def test_no_more_may_wait_than_the_limit_says() -> None:
    waits, done = DelayedFetches(1, 10_000), []
    partition = FakePartition()
    assert add(waits, wanted(partition), lambda: done.append(1))
    assert not add(waits, wanted(partition), lambda: done.append(2))
    partition.move(1)
    await turn()
    assert done == [1]
    assert add(waits, wanted(FakePartition()), lambda: done.append(3))
    waits.finish_all()
    assert done == [1, 3]


async def test_thousands_who_are_woken_at_once_leave_turns_to_others() -> None:
    waits, done = DelayedFetches(10_000, 10_000), []
    partition = FakePartition()
    for number in range(10 * ENDS_A_TURN):
        assert add(waits, wanted(partition), lambda number=number: done.append(number))  # type: ignore[misc]
    partition.move(1)
    seen = set()
    while len(done) < 10 * ENDS_A_TURN:
        await asyncio.sleep(0)
        seen.add(len(done))
    assert len(seen) >= 10
    assert sorted(done) == list(range(10 * ENDS_A_TURN))
    assert len(waits) == 0
