"""Lost answers, lost requests, refused batches, restarts: each record is there once, and in order."""

import asyncio
import random
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker, Fault

pytestmark = pytest.mark.usefixtures("quick_clock")

TOPIC = "t"


def producer(broker: FakeBroker, **options: Any) -> warmlog.Producer:
    defaults = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "linger_ms": 0, "batch_bytes": 300}
    return warmlog.Producer(broker.address, **{**defaults, **options})


async def send_numbers(client: warmlog.Producer, count: int) -> list[warmlog.RecordMetadata]:
    sent = []
    for index in range(count):
        sent.append(client.send(TOPIC, b"%d" % index))
        await client.drain()
        if index % 10 == 0:
            await asyncio.sleep(0)
    return [await one for one in sent]


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.STORAGE_ERROR])
@pytest.mark.parametrize("position", [0, 1, 3])
async def test_one_fault_loses_nothing_and_repeats_nothing(fault: Fault, position: int) -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        broker.faults.extend([Fault.NONE] * position + [fault])
        placed = await asyncio.wait_for(send_numbers(client, 300), 25)
        assert broker.topics[TOPIC][0].values() == [b"%d" % index for index in range(300)]
        assert [p.offset for p in placed] == list(range(300))


@pytest.mark.parametrize("seed", range(8))
async def test_many_faults_lose_nothing_and_repeat_nothing(seed: int) -> None:
    dice = random.Random(seed)
    choices = [Fault.NONE] * 4 + [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.STORAGE_ERROR]
    async with FakeBroker(t=3) as broker, producer(broker) as client:
        broker.faults.extend(dice.choice(choices) for _ in range(40))
        sent: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
        for index in range(600):
            partition = dice.randrange(3)
            sent[partition].append(b"%d" % index)
            client.send(TOPIC, b"%d" % index, partition=partition)
            await client.drain()
            if dice.random() < 0.05:
                await asyncio.sleep(0.001)
        await asyncio.wait_for(client.flush(), 25)
        assert {i: partition.values() for i, partition in enumerate(broker.topics[TOPIC])} == sent


async def test_answers_in_another_order_are_told_apart() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        await client.send(TOPIC, b"first")
        broker.faults.extend([Fault.HOLD] * 5)
        waiting = []
        for index in range(5):
            waiting.append(asyncio.ensure_future(client.send(TOPIC, b"%d" % index)))
            await asyncio.sleep(0.01)
        broker.release(is_reversed=True)
        assert [(await one).offset for one in waiting] == [1, 2, 3, 4, 5]


async def test_a_batch_that_is_given_up_does_not_stop_those_behind_it() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        await client.send(TOPIC, b"first")
        broker.faults.extend([Fault.HOLD, Fault.TOO_LARGE])
        waiting = []
        for index in range(6):
            waiting.append(asyncio.ensure_future(client.send(TOPIC, b"%d" % index)))
            await asyncio.sleep(0.01)
        broker.release()
        results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 25)
        assert isinstance(results[1], warmlog.MessageTooLarge)
        offsets = [result.offset for result in results if isinstance(result, warmlog.RecordMetadata)]
        assert offsets == [1, 2, 3, 4, 5]
        assert broker.topics[TOPIC][0].values() == [b"first", b"0", b"2", b"3", b"4", b"5"]
        epochs = [batch.header.producer_epoch for batch in broker.topics[TOPIC][0].read_all()]
        assert epochs[:2] == [0, 0]
        assert set(epochs[2:]) == {1}


async def test_a_request_that_is_not_answered_in_time_is_sent_again_on_a_new_connection() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, request_timeout_ms=100) as client:
        await client.send(TOPIC, b"first")
        broker.faults.append(Fault.IGNORE)
        assert (await asyncio.wait_for(client.send(TOPIC, b"second"), 25)).offset == 1
        assert broker.topics[TOPIC][0].values() == [b"first", b"second"]
        assert len(broker.handshakes) == 2


async def test_the_delivery_timeout_bounds_everything_and_names_the_reason() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, delivery_timeout_ms=800) as client:
        await client.send(TOPIC, b"first")
        await broker.stop()
        with pytest.raises(warmlog.DeliveryTimeout, match=r"1 records for t-0.*delivery_timeout_ms=800.*connection"):
            await asyncio.wait_for(client.send(TOPIC, b"lost"), 25)
        await broker.start()
        assert (await asyncio.wait_for(client.send(TOPIC, b"later"), 25)).offset == 1


async def test_a_broker_that_shakes_hands_and_breaks_off_at_each_batch_is_tried_again_after_growing_pauses() -> None:
    options = {"delivery_timeout_ms": 2_000, "retry_backoff_ms": 50, "retry_backoff_max_ms": 1_000}
    async with FakeBroker(t=1) as broker, producer(broker, **options) as client:
        broker.faults.extend([Fault.LOSE_REQUEST] * 10_000)
        with pytest.raises(warmlog.DeliveryTimeout):
            await asyncio.wait_for(client.send(TOPIC, b"lost"), 25)
        assert 4 <= len(broker.handshakes) <= 9


async def test_what_expires_in_flight_is_settled_before_a_new_epoch_begins() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, delivery_timeout_ms=800) as client:
        await client.send(TOPIC, b"first")
        broker.faults.append(Fault.IGNORE)
        with pytest.raises(warmlog.DeliveryTimeout):
            await asyncio.wait_for(client.send(TOPIC, b"in the log, but nobody said so"), 25)
        await client.send(TOPIC, b"next")
        assert [b.header.producer_epoch for b in broker.topics[TOPIC][0].read_all()] == [0, 0, 1]


async def test_a_broker_that_forgot_everything_gets_a_new_producer() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        for _ in range(3):
            await client.send(TOPIC, b"x")
        broker.topics[TOPIC][0].producers.clear()
        await client.send(TOPIC, b"y")
        assert broker.topics[TOPIC][0].values() == [b"x", b"x", b"x", b"y"]


async def test_without_idempotence_a_lost_answer_may_repeat_but_never_loses() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, acks=1) as client:
        broker.faults.append(Fault.LOSE_ANSWER)
        await asyncio.wait_for(client.send(TOPIC, b"x"), 25)
        assert broker.topics[TOPIC][0].values() == [b"x", b"x"]


async def test_nothing_is_left_behind_when_a_producer_closes_without_its_broker() -> None:
    async with FakeBroker(t=1) as broker:
        client = producer(broker, delivery_timeout_ms=200)
        await client.start()
        await client.send(TOPIC, b"x")
        await broker.stop()
        client.send(TOPIC, b"y")
        with pytest.raises(warmlog.DeliveryTimeout):
            await asyncio.wait_for(client.close(), 25)
        assert [task for task in asyncio.all_tasks() if "warmlog" in task.get_name()] == []
        await broker.start()


async def test_refusals_are_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("warmlog_transport.retries.GRACE_S", 0.0)
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        broker.faults.extend([Fault.STORAGE_ERROR] * 5)
        await asyncio.wait_for(client.send(TOPIC, b"x"), 25)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{TOPIC}-0" in warning
    assert warning.endswith("; trying again")


TIMEOUT_MS = 250


class Writer:
    """Sends numbers, each once, and notes what became of them."""

    def __init__(self, client: warmlog.Producer) -> None:
        self.acknowledged: list[int] = []
        self.given_up: list[warmlog.WarmlogError] = []
        self._client = client
        self._count = 0

    async def send(self, count: int) -> None:
        """Sends so many and waits for the end of all of them."""
        numbers = range(self._count, self._count + count)
        self._count += count
        sent = [(number, self._client.send(TOPIC, b"%d" % number)) for number in numbers]
        for number, one in sent:
            try:
                await asyncio.wait_for(one, 25)
            except warmlog.WarmlogError as error:
                self.given_up.append(error)
            else:
                self.acknowledged.append(number)


def assert_once_and_in_order(broker: FakeBroker, acknowledged: list[int]) -> None:
    """Whatever was given up may be in the log; nothing is there twice or behind what was sent later."""
    found = [int(value) for value in broker.topics[TOPIC][0].values()]
    assert found == sorted(set(found))
    assert set(acknowledged) <= set(found)


@pytest.mark.parametrize("fault", [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.IGNORE, Fault.STORAGE_ERROR])
@pytest.mark.parametrize("position", [0, 2])
async def test_what_is_sent_after_a_delivery_timeout_is_acknowledged(fault: Fault, position: int) -> None:
    """Batches in flight, of which the broker has some and not the others, are given up while it is away."""
    async with FakeBroker(t=1) as broker, producer(broker, delivery_timeout_ms=TIMEOUT_MS) as client:
        writer = Writer(client)
        await writer.send(1)
        broker.faults.extend([Fault.IGNORE] * position + [fault] * 10_000)
        sending = asyncio.create_task(writer.send(300))
        await asyncio.sleep(0.02)
        await broker.stop()
        await sending
        assert writer.given_up
        assert all(isinstance(error, warmlog.DeliveryTimeout) for error in writer.given_up)
        broker.faults.clear()
        await broker.start()
        given_up = len(writer.given_up)
        await writer.send(300)
        assert len(writer.given_up) == given_up
        assert_once_and_in_order(broker, writer.acknowledged)


@pytest.mark.parametrize("seed", range(6))
async def test_a_broker_that_comes_and_goes_gets_everything_once_and_in_order(seed: int) -> None:
    dice = random.Random(seed)
    faults = [Fault.NONE] * 8 + [Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.STORAGE_ERROR, Fault.IGNORE]
    async with (
        FakeBroker(t=1) as broker,
        producer(broker, delivery_timeout_ms=TIMEOUT_MS, request_timeout_ms=100) as client,
    ):
        writer = Writer(client)
        for _ in range(4):
            broker.faults.extend(dice.choice(faults) for _ in range(20))
            sending = [asyncio.create_task(writer.send(dice.randrange(1, 400))) for _ in range(3)]
            await asyncio.sleep(dice.uniform(0, 0.1))
            await broker.stop()
            await asyncio.sleep(dice.uniform(0, 2 * TIMEOUT_MS / 1000))
            await broker.start()
            await asyncio.gather(*sending)
        broker.faults.clear()
        given_up = len(writer.given_up)
        await writer.send(100)
        assert len(writer.given_up) == given_up
        assert_once_and_in_order(broker, writer.acknowledged)
