"""The error of a record that was lost is told once: to a caller that awaited the record and received it, or by
`drain`, `flush` or `close`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker, Fault
from warmlog.producer.bulk_records import BulkRecords
from warmlog.producer.producer_batch import ProducerBatch

pytestmark = pytest.mark.usefixtures("quick_clock")

TOPIC = "t"
End = Callable[[warmlog.Producer], Awaitable[None]]


def producer(broker: FakeBroker, **options: Any) -> warmlog.Producer:
    return warmlog.Producer(broker.address, **{"retry_backoff_ms": 5, "linger_ms": 2, **options})


@asynccontextmanager
async def silent(broker: FakeBroker) -> AsyncIterator[None]:
    """Nothing is answered within; after it the batches that were sent are refused for good."""
    broker.is_silent = True
    yield
    broker.is_silent = False
    broker.faults.extend([Fault.TOO_LARGE] * 10)
    broker.disconnect()


async def drain(client: warmlog.Producer) -> None:
    for _ in range(100):
        await client.drain()
        await asyncio.sleep(0.01)


async def leave(client: warmlog.Producer) -> None:
    await client.__aexit__(None, None, None)


@asynccontextmanager
async def started(broker: FakeBroker, **options: Any) -> AsyncIterator[warmlog.Producer]:
    """A producer that has sent to the topic before. What `close` would raise in the end is for the test to ask."""
    client = await producer(broker, **options).start()
    try:
        await client.send(TOPIC, b"first")
        yield client
    finally:
        with suppress(warmlog.WarmlogError):
            await client.close()


async def give_up_waiting(waiting: Awaitable[object]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiting, 0.05)


async def assert_nothing_to_tell(client: warmlog.Producer) -> None:
    await client.drain()
    await client.flush()
    await client.close()


@pytest.mark.parametrize("is_awaited", [True, False], ids=["given up", "never awaited"])
@pytest.mark.parametrize("end", [drain, warmlog.Producer.flush, warmlog.Producer.close, leave])
async def test_an_error_that_no_caller_received_is_raised_by(end: End, is_awaited: bool) -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        async with silent(broker):
            sent = client.send(TOPIC, b"lost")
            await (give_up_waiting(sent) if is_awaited else asyncio.sleep(0.05))
        with pytest.raises(warmlog.MessageTooLarge):
            await end(client)
        await client.close()


async def test_a_wait_that_timed_out_is_no_error_of_the_record() -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        broker.is_silent = True
        await give_up_waiting(client.send(TOPIC, b"late"))
        broker.is_silent = False
        broker.disconnect()
        await client.flush()
        assert broker.topics[TOPIC][0].values() == [b"first", b"late"]
        await assert_nothing_to_tell(client)


async def test_an_error_that_a_caller_received_is_not_raised_again() -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        async with silent(broker):
            waiting = asyncio.ensure_future(client.send(TOPIC, b"lost"))
            await asyncio.sleep(0.05)
        with pytest.raises(warmlog.MessageTooLarge):
            await waiting
        await assert_nothing_to_tell(client)


async def test_a_wait_after_one_that_timed_out_receives_the_error() -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        sent = client.send(TOPIC, b"lost")
        async with silent(broker):
            await give_up_waiting(sent)
        with pytest.raises(warmlog.MessageTooLarge):
            await sent
        await assert_nothing_to_tell(client)


@pytest.mark.parametrize("are_all_cancelled", [True, False])
async def test_of_several_who_await_one_record_one_is_enough_to_receive_its_error(are_all_cancelled: bool) -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        async with silent(broker):
            sent = client.send(TOPIC, b"lost")
            waiting = [asyncio.ensure_future(sent) for _ in range(3)]
            await asyncio.sleep(0.05)
            for one in waiting if are_all_cancelled else waiting[:2]:
                one.cancel()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        if are_all_cancelled:
            assert {type(outcome) for outcome in outcomes} == {asyncio.CancelledError}
            with pytest.raises(warmlog.MessageTooLarge):
                await client.flush()
        else:
            assert isinstance(outcomes[2], warmlog.MessageTooLarge)
        await assert_nothing_to_tell(client)


async def test_of_several_records_one_that_is_cancelled_leaves_its_error_to_flush() -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        async with silent(broker):
            waiting = [asyncio.ensure_future(client.send(TOPIC, b"%d" % index)) for index in range(3)]
            gathered = asyncio.gather(*waiting, return_exceptions=True)
            await asyncio.sleep(0.05)
            waiting[1].cancel()
        kinds = [type(outcome) for outcome in await gathered]
        assert kinds == [warmlog.MessageTooLarge, asyncio.CancelledError, warmlog.MessageTooLarge]
        with pytest.raises(warmlog.MessageTooLarge):
            await client.flush()
        await assert_nothing_to_tell(client)


async def test_a_gather_that_timed_out_leaves_its_errors_to_flush() -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        async with silent(broker):
            await give_up_waiting(asyncio.gather(*[client.send(TOPIC, b"%d" % index) for index in range(3)]))
        with pytest.raises(warmlog.MessageTooLarge):
            await client.flush()
        await assert_nothing_to_tell(client)


@pytest.mark.parametrize("is_flush_first", [True, False])
async def test_a_flush_meanwhile_leaves_the_error_to_the_caller_that_awaits_it(is_flush_first: bool) -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        async with silent(broker):
            sent = client.send(TOPIC, b"lost")
            flushing = asyncio.ensure_future(client.flush())
            if is_flush_first:
                await asyncio.sleep(0.05)
            waiting = asyncio.ensure_future(sent)
            await asyncio.sleep(0.05)
        with pytest.raises(warmlog.MessageTooLarge):
            await waiting
        await flushing
        await assert_nothing_to_tell(client)


async def test_a_wait_cancelled_as_the_error_comes_leaves_it_to_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        waiting: asyncio.Future[Any]
        fail = ProducerBatch.fail

        def fail_and_cancel(batch: ProducerBatch, error: warmlog.WarmlogError) -> None:
            fail(batch, error)
            waiting.cancel()

        monkeypatch.setattr(ProducerBatch, "fail", fail_and_cancel)
        async with silent(broker):
            sent = client.send(TOPIC, b"lost")
            flushing = asyncio.ensure_future(client.flush())
            await asyncio.sleep(0.05)
            waiting = asyncio.ensure_future(sent)
            await asyncio.sleep(0.05)
        with pytest.raises(warmlog.MessageTooLarge):
            await flushing
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await assert_nothing_to_tell(client)


@pytest.mark.parametrize("is_awaited", [True, False])
async def test_the_error_of_a_topic_that_does_not_exist_is_told_once(is_awaited: bool) -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        broker.is_silent = True
        waiting = asyncio.ensure_future(client.send("nowhere", b"lost"))
        await asyncio.sleep(0.05)
        if not is_awaited:
            waiting.cancel()
        broker.is_silent = False
        broker.disconnect()
        with pytest.raises(warmlog.UnknownTopicOrPartition):
            await (waiting if is_awaited else client.flush())
        await assert_nothing_to_tell(client)


async def test_errors_that_callers_received_are_not_kept() -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        broker.faults.extend([Fault.TOO_LARGE] * 20)
        for _ in range(20):
            with pytest.raises(warmlog.MessageTooLarge):
                await client.send(TOPIC, b"lost")
            with pytest.raises(warmlog.UnknownTopicOrPartition):
                await client.send("nowhere", b"lost")
        assert client._running is not None
        assert not client._running.accumulator.failed


# --- send_many ------------------------------------------------------------------------------------------------------


async def test_the_error_of_a_send_many_that_is_awaited_is_raised_there_alone() -> None:
    async with FakeBroker(t=2) as broker, started(broker) as client:
        broker.faults.extend([Fault.TOO_LARGE, Fault.HOLD])
        many = asyncio.ensure_future(client.send_many(TOPIC, [b"x"] * 2, partition=0))
        await asyncio.sleep(0.05)
        held = asyncio.ensure_future(client.send_many(TOPIC, [b"x"] * 2, partition=0))
        with pytest.raises(warmlog.MessageTooLarge):
            await many
        await asyncio.sleep(0.05)
        broker.release()
        await held
        await assert_nothing_to_tell(client)


async def test_while_a_send_many_waits_for_its_other_batches_the_error_of_one_is_not_raised_elsewhere() -> None:
    async with FakeBroker(t=2) as broker, started(broker, linger_ms=0) as client:
        await client.send(TOPIC, b"", partition=0)
        await client.send(TOPIC, b"", partition=1)
        broker.faults.append(Fault.HOLD)
        held = asyncio.ensure_future(client.send(TOPIC, b"held", partition=0))
        await asyncio.sleep(0.05)
        broker.faults.append(Fault.TOO_LARGE)
        keys = [b"%d" % number for number in range(10)]
        broker.faults.extend([Fault.HOLD] * 5)
        many = asyncio.ensure_future(client.send_many(TOPIC, [b"x" * 100] * 10, keys=keys))
        await asyncio.sleep(0.05)
        await drain(client)
        broker.release()
        with pytest.raises(warmlog.MessageTooLarge):
            await many
        await held
        await assert_nothing_to_tell(client)


@pytest.mark.parametrize("is_refused_before", [True, False])
async def test_the_error_of_a_send_many_that_was_cancelled_is_left_to_flush(is_refused_before: bool) -> None:
    async with FakeBroker(t=1) as broker, started(broker, batch_bytes=1000) as client:
        broker.faults.extend([Fault.TOO_LARGE] if is_refused_before else [])
        broker.faults.extend([Fault.HOLD, Fault.HOLD, Fault.HOLD, Fault.HOLD])
        many = asyncio.ensure_future(client.send_many(TOPIC, [b"x" * 900] * 4))
        await asyncio.sleep(0.1)
        await give_up_waiting(many)
        broker.faults.clear()
        if not is_refused_before:
            broker.faults.extend([Fault.TOO_LARGE] * 10)
            broker.disconnect()
        broker.release()
        with pytest.raises(warmlog.WarmlogError):
            await client.flush()
        await assert_nothing_to_tell(client)


async def test_the_error_of_a_send_many_that_was_cancelled_while_it_waited_for_room_is_left_to_flush() -> None:
    async with FakeBroker(t=1) as broker, started(broker, batch_bytes=1000, high_water_bytes=4000) as client:
        async with silent(broker):
            await give_up_waiting(client.send_many(TOPIC, [b"x" * 900] * 20))
        with pytest.raises(warmlog.MessageTooLarge):
            await client.flush()
        await assert_nothing_to_tell(client)


async def test_a_send_many_refused_half_way_leaves_earlier_errors_to_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    by_partition = BulkRecords.by_partition
    monkeypatch.setattr(BulkRecords, "by_partition", lambda records, count: sorted(by_partition(records, count)))
    async with FakeBroker(t=2) as broker:
        broker.configs[TOPIC] = {"max.message.bytes": "5000"}
        async with started(broker) as client:
            async with silent(broker):
                with pytest.raises(warmlog.MessageTooLarge, match="a record of 6"):
                    await client.send_many(TOPIC, [b"x", b"x" * 6000], keys=[b"123456789", b"a"])
            with pytest.raises(warmlog.MessageTooLarge, match="as ordered"):
                await client.flush()
            await assert_nothing_to_tell(client)


# --- close ----------------------------------------------------------------------------------------------------------


async def test_a_close_that_was_given_up_is_ended_by_the_next_which_tells_what_was_lost() -> None:
    async with FakeBroker(t=1) as broker, started(broker) as client:
        broker.is_silent = True
        client.send(TOPIC, b"lost")
        await give_up_waiting(client.close())
        with pytest.raises(warmlog.ClientClosed, match="before this was acknowledged"):
            await client.close()
        await client.close()
        with pytest.raises(warmlog.ClientClosed, match="the producer is closed"):
            client.send(TOPIC, b"too late")


async def test_an_error_in_the_users_block_has_the_one_that_came_after_a_timeout_in_a_note() -> None:
    async with FakeBroker(t=1) as broker:

        async def fail() -> None:
            async with producer(broker) as client:
                await client.send(TOPIC, b"first")
                async with silent(broker):
                    await give_up_waiting(client.send(TOPIC, b"lost"))
                raise KeyError("mine")

        with pytest.raises(KeyError) as caught:
            await fail()
        assert "as ordered" in caught.value.__notes__[0]
