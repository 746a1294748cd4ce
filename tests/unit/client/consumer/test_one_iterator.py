"""A consumer has one iterator at a time: when a second one may begin, and what it delivers."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any

import pytest

import warmlog
import warmlog.blocking
from fake_broker import FakeBroker
from group_consumer import PATIENCE_S, consumer, fill


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 4, 4)
        yield broker


@pytest.fixture
async def client(broker: FakeBroker) -> AsyncIterator[warmlog.Consumer]:
    async with consumer(broker, group=None) as client, asyncio.timeout(PATIENCE_S):
        yield client


@pytest.mark.parametrize("kind", ["records", "batches", "arrow", "to_arrow"])
async def test_a_second_one_is_refused_and_the_first_one_goes_on(client: warmlog.Consumer, kind: str) -> None:
    pytest.importorskip("pyarrow")
    records = client.records()
    assert (await anext(records)).offset == 0
    for _ in range(2):
        with pytest.raises(warmlog.ConsumerBusy, match=r"leave its loop, or end it by aclose\(\)"):
            await (client.to_arrow() if kind == "to_arrow" else anext(getattr(client, kind)()))
    assert (await anext(records)).offset == 1


async def test_iterators_may_be_made_ahead(client: warmlog.Consumer) -> None:
    records, batches = client.records(until=2), client.batches(until="latest")
    assert [record.offset async for record in records] == [0, 1]
    assert [batch.offsets async for batch in batches] == [[2, 3], [4, 5, 6, 7]]


async def test_leaving_the_loop_lets_the_next_one_begin_where_it_was_left(client: warmlog.Consumer) -> None:
    async for record in client.records():
        if record.offset == 1:
            break
    async for batch in client.batches():
        assert batch.offsets == [2, 3]
        break
    assert (await anext(client.records())).offset == 4


async def test_leaving_a_loop_over_a_named_iterator_does_too_and_it_goes_on_later(client: warmlog.Consumer) -> None:
    records = client.records()
    assert (await anext(records)).offset == 0
    async for record in records:
        assert record.offset == 1
        assert (await anext(records)).offset == 2
        break
    assert (await anext(client.batches())).offsets == [3]
    async for record in records:
        assert record.offset == 4
        break
    assert (await anext(records)).offset == 5


async def test_an_error_in_the_loop_lets_the_next_begin_with_its_traceback_kept(client: warmlog.Consumer) -> None:
    errors = []
    try:
        async for _ in client.records():
            raise RuntimeError("in the handler")
    except RuntimeError as error:
        errors.append(error)
    assert (await anext(client.batches())).offsets == [1, 2, 3]
    assert errors[0].__traceback__ is not None


async def test_an_iterator_that_raised_goes_on_after_the_next(broker: FakeBroker, client: warmlog.Consumer) -> None:
    records = client.records(until="latest")
    broker.topics["t"][0].log_start_offset = 2
    with pytest.raises(warmlog.OffsetOutOfRange) as raised:
        await anext(records)
    client.seek("t", 0, 5)
    batches = client.batches()
    assert (await anext(batches)).offsets == [5, 6, 7]
    with pytest.raises(warmlog.ConsumerBusy):
        await anext(records)
    await batches.aclose()
    fill(broker, 0, 2)
    assert [record.offset async for record in records] == [8, 9], "its end is looked up again"
    assert raised.traceback


async def test_a_task_cancelled_while_it_waits_or_handles_lets_the_next_begin(client: warmlog.Consumer) -> None:
    async def handle() -> None:
        async for record in client.records():
            if record.offset == 3:
                handles.set()
                await asyncio.Event().wait()

    async def wait() -> None:
        async for _ in client.records():
            pass

    handles = asyncio.Event()
    for work in (handle, wait):
        task = asyncio.create_task(work())
        await (handles.wait() if work is handle else asyncio.sleep(0.05))
        task.cancel()
        await asyncio.wait([task])
        if work is handle:
            assert (await anext(client.batches())).offsets == [4, 5, 6, 7]
    client.seek("t", 0, 0)
    assert (await anext(client.batches())).offsets == [0, 1, 2, 3]


async def test_a_generator_around_a_loop_that_is_left_lets_the_next_one_begin(client: warmlog.Consumer) -> None:
    async def offsets() -> AsyncIterator[int]:
        async for record in client.records():
            yield record.offset

    async for offset in offsets():
        if offset == 2:
            break
    assert (await anext(client.batches())).offsets == [3]


async def test_an_iterator_that_is_closed_or_at_its_end_stays_so(broker: FakeBroker, client: warmlog.Consumer) -> None:
    async with aclosing(client.records()) as records:
        assert (await anext(records)).offset == 0
    assert [record async for record in records] == []
    batches = client.batches(until="latest")
    assert [batch.offsets async for batch in batches] == [[1, 2, 3], [4, 5, 6, 7]]
    fill(broker, 0, 1)
    assert [batch async for batch in batches] == []
    assert (await anext(client.records())).offset == 8


async def test_a_second_task_is_refused_and_the_first_goes_on(broker: FakeBroker, client: warmlog.Consumer) -> None:
    records = client.records()
    assert [(await anext(records)).offset for _ in range(8)] == list(range(8))
    waiting = asyncio.ensure_future(anext(records))
    await asyncio.sleep(0.05)
    for step in (records, client.batches()):
        with pytest.raises(warmlog.ConsumerBusy, match="read from one task or thread at a time"):
            await anext(step)
    fill(broker, 0, 1)
    assert (await waiting).offset == 8


async def test_the_blocking_consumer_has_the_same_rules(broker: FakeBroker) -> None:
    def read() -> None:
        with warmlog.blocking.Consumer(broker.address, topics=["t"], max_wait_ms=20) as client:
            records = client.records()
            assert next(records).offset == 0
            with pytest.raises(warmlog.ConsumerBusy, match=r"close\(\)"):
                next(client.batches())
            for record in records:
                assert record.offset == 1
                break
            assert next(client.batches()).offsets == [2, 3]
            assert next(records).offset == 4
            records.close()
            assert list(records) == []
            assert [record.offset for record in client.records(until="latest")] == [5, 6, 7]

    await asyncio.to_thread(read)


@pytest.mark.parametrize("steps", [next, list])
async def test_a_blocking_step_that_was_interrupted_lets_the_next_one_begin_while_its_traceback_is_kept(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, steps: Callable[[Iterator[warmlog.Record]], object]
) -> None:
    """As a notebook keeps it. The interruption comes after the step is done and before its record is delivered."""

    def read() -> None:
        with warmlog.blocking.Consumer(broker.address, topics=["t"], max_wait_ms=20) as client:
            records, call = client.records(until="latest"), client._call

            def interrupted(work: Callable[[], object]) -> None:
                call(work)  # type: ignore[arg-type]
                raise KeyboardInterrupt

            monkeypatch.setattr(client, "_call", interrupted)
            with pytest.raises(KeyboardInterrupt) as raised:
                steps(records)
            monkeypatch.undo()
            assert client.positions() == {"t-0": 0}
            assert next(client.batches()).offsets == [0, 1, 2, 3]
            assert next(client.records()).offset == 4
            sys.stdout.write(str(raised.traceback[-1]))

    await asyncio.to_thread(read)


async def test_an_orphaned_step_is_ended_by_the_next_one(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()

    def read() -> None:
        with warmlog.blocking.Consumer(broker.address, topics=["t"], max_wait_ms=20) as client:
            records, thread = client.records(), client._running()
            assert [next(records).offset for _ in range(8)] == list(range(8))

            def orphaned(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
                asyncio.run_coroutine_threadsafe(work(), thread.loop)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(client, "_call", orphaned)
                with pytest.raises(KeyboardInterrupt):
                    next(records)
            loop.call_soon_threadsafe(fill, broker, 0, 1, 1)
            assert next(client.batches()).offsets == [8]
            assert next(records).offset == 9

    await asyncio.to_thread(read)
