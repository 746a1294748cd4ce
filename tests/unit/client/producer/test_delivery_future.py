"""What asyncio's functions do with what `send` returns, for topics that are known and topics that are not."""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker

TOPIC = "t"


@pytest.fixture(params=[True, False])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[warmlog.Producer]:
    async with FakeBroker(t=1) as broker, warmlog.Producer(broker.address) as producer:
        if request.param:
            await producer.send(TOPIC, b"known from now on")
        yield producer


async def in_task_group(sent: Any) -> Any:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(sent)
    return await task


async def threadsafe(sent: Any) -> Any:
    loop = asyncio.get_running_loop()
    return await asyncio.to_thread(lambda: asyncio.run_coroutine_threadsafe(sent, loop).result(25))


async def waited(sent: Any) -> Any:
    done, _ = await asyncio.wait([asyncio.ensure_future(sent)])
    return done.pop().result()


async def gathered(sent: Any) -> Any:
    first, second, third = await asyncio.gather(sent, sent, asyncio.wait_for(sent, 25))
    assert first == second == third
    return first


async def completed(sent: Any) -> Any:
    (only,) = [await one for one in asyncio.as_completed([sent])]
    return only


async def called_back(sent: Any) -> Any:
    called: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    sent.add_done_callback(called.set_result)
    assert await called is sent
    assert sent.done()
    assert sent.exception() is None
    return sent.result()


async def two_tasks(sent: Any) -> Any:
    first, second = asyncio.create_task(sent), asyncio.create_task(sent)
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    return await second


USES: list[Callable[[Any], Awaitable[Any]]] = [
    asyncio.create_task,
    in_task_group,
    threadsafe,
    waited,
    gathered,
    completed,
    called_back,
    two_tasks,
    asyncio.shield,
    lambda sent: asyncio.wait_for(sent, 25),
]


@pytest.mark.parametrize("use", USES)
async def test_asyncio_takes_a_delivery_future(client: warmlog.Producer, use: Callable[[Any], Awaitable[Any]]) -> None:
    sent = client.send(TOPIC, b"x")
    with pytest.raises(asyncio.InvalidStateError):
        sent.result()
    metadata = await use(sent)
    assert (metadata.topic, metadata.partition) == (TOPIC, 0)
    assert await sent == metadata


async def test_the_error_of_a_record_is_an_exception_of_its_future() -> None:
    async with FakeBroker(t=1) as broker, warmlog.Producer(broker.address) as producer:
        sent = producer.send("missing", b"x")
        with pytest.raises(warmlog.UnknownTopicOrPartition):
            await asyncio.create_task(sent)
        assert isinstance(sent.exception(), warmlog.UnknownTopicOrPartition)


async def test_a_delivery_future_need_not_be_awaited(client: warmlog.Producer) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.send(TOPIC, b"x")
        gc.collect()
    await client.flush()
