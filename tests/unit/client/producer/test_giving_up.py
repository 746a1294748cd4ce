"""A broker that stays away for longer than the delivery timeout: what is given up, and what is sent after that."""

import asyncio
import random
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker, Fault

pytestmark = pytest.mark.usefixtures("quick_clock")

TOPIC = "t"
TIMEOUT_MS = 250


def producer(broker: FakeBroker, **options: Any) -> warmlog.Producer:
    defaults = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20, "linger_ms": 0, "batch_bytes": 300}
    return warmlog.Producer(broker.address, **{**defaults, "delivery_timeout_ms": TIMEOUT_MS, **options})


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
                await asyncio.wait_for(one, 20)
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
    async with FakeBroker(t=1) as broker, producer(broker) as client:
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
    async with FakeBroker(t=1) as broker, producer(broker, request_timeout_ms=100) as client:
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
