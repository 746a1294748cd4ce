"""One consumer of a group that is read by one task and closed, or asked, by another or by its own callbacks."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

import warmlog
import warmlog.blocking
from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator, owned
from group_consumer import Calls, consumer, fill, place
from warmlog.consumer import starting as group_start
from warmlog.consumer.starting import look_up_points


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(t=2) as broker:
        for partition in (0, 1):
            fill(broker, partition, 4, 4)
        FakeCoordinator(broker, owned(("t", 0), ("t", 1)))
        yield broker


async def test_a_callback_that_reads_is_told_that_it_cannot(broker: FakeBroker) -> None:
    async def assigned(_: list[tuple[str, int]]) -> None:
        await anext(client.batches())

    async with consumer(broker, on_assigned=assigned) as client, asyncio.timeout(10):
        with pytest.raises(warmlog.ConsumerBusy, match="on_assigned, on_revoked and on_lost cannot read"):
            await anext(client.batches())
        assert place(await anext(client.batches())) in {(0, 4), (1, 4)}


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.11 has no eager tasks")
async def test_a_loop_whose_tasks_begin_at_once_commits_and_closes(broker: FakeBroker) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]

    async def close(_: list[tuple[str, int]]) -> None:
        await client.close()

    async with consumer(broker, commit="manual", on_revoked=close) as client, asyncio.timeout(10):
        batch = await anext(client.batches())
        await client.commit(batch)
        assert (await client.committed())[batch.topic, batch.partition] == 4


async def test_a_callback_that_waits_for_a_task_or_a_thread_that_reads_is_told_so(broker: FakeBroker) -> None:
    async def assigned(_: list[tuple[str, int]]) -> None:
        await asyncio.create_task(anext(client.batches()))  # type: ignore[arg-type]

    async with consumer(broker, on_assigned=assigned) as client, asyncio.timeout(10):
        with pytest.raises(warmlog.ConsumerBusy, match="cannot read"):
            await anext(client.batches())

    def read_blocking() -> None:
        options = {"topics": ["t"], "group": "etl", "on_assigned": lambda _: next(client.batches())}
        with warmlog.blocking.Consumer(broker.address, **options) as client:
            next(client.batches())

    with pytest.raises(warmlog.ConsumerBusy, match="cannot read"):
        await asyncio.to_thread(read_blocking)


@pytest.mark.parametrize("options", [{}, {"group": None}], ids=["with a group", "without"])
async def test_a_reader_that_waits_is_told_that_another_task_has_closed_the_consumer(
    broker: FakeBroker, options: dict[str, None]
) -> None:
    async with consumer(broker, **options, start="latest") as client, asyncio.timeout(10):
        reading = asyncio.ensure_future(anext(client.batches()))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(warmlog.ClientClosed, match="the consumer is closed"):
            await reading


async def test_a_consumer_that_is_closed_while_it_looks_where_to_start_takes_nothing(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, may_go_on, calls = asyncio.Event(), asyncio.Event(), Calls()

    async def look_up_slowly(*given: Any) -> Any:
        looks.set()
        await may_go_on.wait()
        return await look_up_points(*given)

    monkeypatch.setattr(group_start, "look_up_points", look_up_slowly)
    client = await consumer(broker, **calls.options).start()
    async with asyncio.timeout(10):
        reading = asyncio.create_task(anext(client.batches()))
        await looks.wait()
        closing = asyncio.create_task(client.close())
        may_go_on.set()
        await closing
        with pytest.raises(warmlog.ClientClosed):
            await reading
    assert calls.all == []


@pytest.mark.parametrize("turns", range(1, 9))
@pytest.mark.parametrize("options", [{}, {"group": None}], ids=["with a group", "without"])
async def test_a_close_that_is_cancelled_ends_all_the_same_and_another_waits_for_it(
    broker: FakeBroker, options: dict[str, None], turns: int
) -> None:
    threads = threading.enumerate()
    client = await consumer(broker, **options).start()
    async with asyncio.timeout(10):
        await anext(client.batches())
        closing = asyncio.create_task(client.close())
        for _ in range(turns):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await client.close()
    assert threading.enumerate() == threads
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "warmlog close"]
