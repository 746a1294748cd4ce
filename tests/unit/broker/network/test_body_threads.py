"""Opening bodies in threads: large ones one at a time, in memory that is borrowed, and small ones beside them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from warmlog_broker.network.body_threads import SMALL_BODY_BYTES, BodyThreads
from warmlog_broker.network.memory_pool import Claim, MemoryPool
from warmlog_protocol.batch import NeedsMemory
from warmlog_protocol.errors import CorruptBatch

MIB = 2**20
LIMIT_BYTES = 100 * MIB
LARGE_BYTES = 60 * MIB


class Body:
    """Work that takes `size_bytes`, and ends when the test says so."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.allowed: list[int] = []

    def open(self, memory_bytes: int) -> str:
        self.allowed.append(memory_bytes)
        if memory_bytes < self.size_bytes:
            raise NeedsMemory(self.size_bytes)
        self.began.set()
        assert self.may_end.wait(25)
        return threading.current_thread().name


async def until_begun(body: Body) -> None:
    assert await asyncio.to_thread(body.began.wait, 10)


@pytest.fixture
def memory() -> MemoryPool:
    return MemoryPool(LIMIT_BYTES, 10 * MIB)


@pytest.fixture
async def bodies(memory: MemoryPool) -> AsyncIterator[BodyThreads]:
    with ThreadPoolExecutor(2, "body") as threads:
        yield BodyThreads(threads, memory)


async def test_a_small_body_is_opened_in_a_thread_at_once(bodies: BodyThreads, memory: MemoryPool) -> None:
    body = Body(SMALL_BODY_BYTES)
    body.may_end.set()
    assert (await bodies.run(body.open)).startswith("body")
    assert body.allowed == [SMALL_BODY_BYTES]
    assert memory.claimed_bytes == 0


async def test_a_large_one_borrows_what_it_takes_and_gives_it_back(bodies: BodyThreads, memory: MemoryPool) -> None:
    body = Body(LARGE_BYTES)
    opening = asyncio.ensure_future(bodies.run(body.open))
    await until_begun(body)
    assert memory.claimed_bytes == LARGE_BYTES
    body.may_end.set()
    assert (await opening).startswith("body")
    assert body.allowed == [SMALL_BODY_BYTES, LARGE_BYTES]
    assert memory.claimed_bytes == 0


async def test_large_ones_are_opened_one_at_a_time_and_small_ones_beside_them(
    bodies: BodyThreads, memory: MemoryPool
) -> None:
    first, others, small = Body(LARGE_BYTES), [Body(LARGE_BYTES) for _ in range(10)], Body(1)
    small.may_end.set()
    opening = [asyncio.ensure_future(bodies.run(first.open))]
    await until_begun(first)
    opening += [asyncio.ensure_future(bodies.run(body.open)) for body in others]
    for _ in range(20):
        await bodies.run(small.open)
    assert memory.claimed_bytes == LARGE_BYTES
    assert not any(body.began.is_set() for body in others)
    first.may_end.set()
    for body in others:
        await until_begun(body)
        assert memory.claimed_bytes == LARGE_BYTES
        body.may_end.set()
    await asyncio.gather(*opening)
    assert memory.claimed_bytes == 0


async def test_one_that_finds_out_that_it_needs_still_more_gets_it(bodies: BodyThreads, memory: MemoryPool) -> None:
    allowed: list[int] = []

    def work(memory_bytes: int) -> int:
        allowed.append(memory_bytes)
        if memory_bytes < 90 * MIB:
            raise NeedsMemory(memory_bytes + 40 * MIB)
        return memory.claimed_bytes

    assert await bodies.run(work) == SMALL_BODY_BYTES + 120 * MIB, "beyond the limit, if it must be"
    assert allowed == [SMALL_BODY_BYTES + each * 40 * MIB for each in range(4)]
    assert memory.claimed_bytes == 0


async def test_what_fails_gives_back_its_memory_and_the_next_one_is_opened(
    bodies: BodyThreads, memory: MemoryPool
) -> None:
    def damaged(memory_bytes: int) -> None:
        if memory_bytes < LARGE_BYTES:
            raise NeedsMemory(LARGE_BYTES)
        raise CorruptBatch("it is")

    with pytest.raises(CorruptBatch):
        await bodies.run(damaged)
    assert memory.claimed_bytes == 0
    body = Body(LARGE_BYTES)
    body.may_end.set()
    await bodies.run(body.open)


async def test_requests_wait_for_memory_that_is_borrowed_but_never_it_for_them(memory: MemoryPool) -> None:
    holder, waiter, served = Claim(), Claim(), list[int]()
    assert memory.try_claim(holder, 60 * MIB)
    with memory.borrowed(60 * MIB):
        assert memory.claimed_bytes == 120 * MIB
        oldest = Claim()
        memory.claim(oldest, 30 * MIB, frame_bytes=30 * MIB, on_granted=lambda: None)
        assert not oldest.is_waiting, "it has the reserved frame"
        memory.claim(waiter, 7 * MIB, frame_bytes=7 * MIB, on_granted=lambda: served.append(1))
        assert waiter.is_waiting
    assert served == [1]
    assert memory.claimed_bytes == (60 + 30 + 7) * MIB
