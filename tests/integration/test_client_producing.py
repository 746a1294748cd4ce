"""The producer against a real broker in its own process, killed and started again while records are sent."""

import asyncio
import random
from contextlib import suppress

import numpy as np
import pytest

import warmlog
from broker_process import BrokerProcess


async def create(broker: BrokerProcess, name: str, partitions: int = 1, **configs: str) -> None:
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(name, partitions=partitions, configs=configs)


async def read_all(broker: BrokerProcess, topic: str) -> dict[int, list[warmlog.Record]]:
    found: dict[int, list[warmlog.Record]] = {}
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        async for record in consumer.records(until="latest"):
            found.setdefault(record.partition, []).append(record)
    return found


async def test_what_was_sent_is_read(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, partitions=3, **{"retention.ms": "-1"})
    async with warmlog.Producer(broker.address, batch_bytes=4000) as producer:
        keys = [b"k%d" % (i % 11) for i in range(2000)]
        placed = await producer.send_many(topic, [b"%d" % i for i in range(2000)], keys=keys, timestamps_ms=5)
        single = await producer.send(topic, b"one more", key=b"k0", headers=[("h", b"x")])
    records = [record for partition in (await read_all(broker, topic)).values() for record in partition]
    assert placed.count == 2000
    assert sorted(int(record.value or b"") for record in records if record.value != b"one more") == list(range(2000))
    (last,) = [record for record in records if record.value == b"one more"]
    assert (last.partition, last.offset, last.timestamp_ms) == single[1:]
    assert (last.key, list(map(tuple, last.headers))) == (b"k0", [("h", b"x")])


async def test_a_broker_that_is_killed_often_loses_and_repeats_nothing(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, partitions=2)
    acknowledged: dict[tuple[int, int], bytes] = {}
    dice = random.Random(1)
    is_over = False

    async def produce(producer: warmlog.Producer, partition: int) -> int:
        number = 0
        while not is_over:
            sent = []
            for _ in range(dice.randrange(1, 400)):
                value = b"%d" % number
                sent.append((value, producer.send(topic, value, partition=partition)))
                number += 1
                await producer.drain()
            for value, one in sent:
                placed = await one
                acknowledged[partition, placed.offset] = value
        return number

    async with warmlog.Producer(broker.address, batch_bytes=2000, retry_backoff_max_ms=200) as producer:
        producing = [asyncio.create_task(produce(producer, partition)) for partition in (0, 1)]
        for _ in range(4):
            await asyncio.sleep(0.2 + dice.random() * 0.4)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
        is_over = True
        counts = await asyncio.wait_for(asyncio.gather(*producing), 60)
    found = await read_all(broker, topic)
    for partition, count in enumerate(counts):
        assert [int(record.value or b"") for record in found[partition]] == list(range(count))
        for record in found[partition]:
            assert acknowledged.get((partition, record.offset), record.value) == record.value
    assert sum(counts) > 100


async def test_send_many_survives_a_kill(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic)
    values = [b"%06d" % i for i in range(200_000)]
    async with warmlog.Producer(broker.address, batch_bytes=8000, buffer_bytes=1_000_000) as producer:
        await producer.send(topic, b"first")
        sending = asyncio.create_task(producer.send_many(topic, values))
        await asyncio.sleep(0.15)
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(broker.start)
        placed = await asyncio.wait_for(sending, 60)
    (records,) = (await read_all(broker, topic)).values()
    assert [record.value for record in records] == [b"first", *values]
    assert sum(len(part) for part in placed.ranges[0]) <= 200_000


async def test_a_clean_restart_goes_unnoticed_by_producer_and_consumer(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic)
    async with (
        warmlog.Producer(broker.address) as producer,
        warmlog.Consumer(broker.address, topics=[topic]) as consumer,
    ):
        records = consumer.records()
        await producer.send(topic, b"before")
        assert (await asyncio.wait_for(anext(records), 40)).value == b"before"
        waiting = asyncio.ensure_future(anext(records))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(broker.restart)
        await asyncio.wait_for(producer.send(topic, b"after"), 40)
        assert (await asyncio.wait_for(waiting, 40)).value == b"after"


@pytest.mark.parametrize("acks", ["all", 1, 0])
async def test_every_kind_of_acknowledgement(broker: BrokerProcess, topic: str, acks: str | int) -> None:
    await create(broker, topic)
    async with warmlog.Producer(broker.address, acks=acks) as producer:
        for i in range(1000):
            producer.send(topic, b"%d" % i)
            await producer.drain()
        placed = await producer.send(topic, b"last")
    assert placed.offset == (-1 if acks == 0 else 1000)
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        seen = 0
        async for record in consumer:
            seen += 1
            if record.value == b"last":
                break
    assert seen == 1001


async def test_a_record_over_the_topics_limit_is_refused_and_harms_nobody(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, **{"max.message.bytes": "2000"})
    async with warmlog.Producer(broker.address) as producer:
        await producer.send(topic, b"x" * 1500)
        with pytest.raises(warmlog.MessageTooLarge, match=r"5016 bytes.*max.message.bytes=2000"):
            producer.send(topic, b"x" * 5000)
        assert (await producer.send_many(topic, [b"x" * 500] * 10)).ranges == {0: [range(1, 11)]}


async def test_names_may_be_of_numpy(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic)
    name = np.str_(topic)
    async with asyncio.timeout(40), warmlog.Producer(broker.address) as producer:
        sent = [producer.send(name, b"1", headers=[(np.str_("h"), b"x")]), producer.send(topic, b"2")]
        await asyncio.gather(*sent)
    async with warmlog.Consumer(broker.address, topics=[name], group=np.str_("names")) as consumer:
        records = [record async for record in consumer.records(until="latest")]
    assert [(record.value, record.headers) for record in records] == [(b"1", (("h", b"x"),)), (b"2", ())]


@pytest.mark.parametrize("linger_ms", [5, 600_000])
@pytest.mark.parametrize(("partitions", "size_bytes", "count"), [(100, 100, 20_000), (2, 600_000, 6), (500, 0, 20_000)])
async def test_a_drain_between_sends_makes_room(
    broker: BrokerProcess, topic: str, partitions: int, size_bytes: int, count: int, linger_ms: int
) -> None:
    async with asyncio.timeout(60):
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic(topic, partitions=partitions)
        async with warmlog.Producer(broker.address, buffer_bytes=1 << 20, linger_ms=linger_ms) as producer:
            await producer.send(topic, b"first", partition=0)
            for number in range(count):
                producer.send(topic, bytes(size_bytes), key=b"%d" % number)
                await producer.drain()
        records = await read_all(broker, topic)
    assert sum(map(len, records.values())) == 1 + count


async def test_a_drain_after_a_full_buffer_makes_room(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, partitions=2)
    async with warmlog.Producer(broker.address, buffer_bytes=1 << 20, linger_ms=600_000) as producer:
        await producer.send(topic, b"first", partition=0)
        await producer.drain()
        producer.send(topic, bytes(400_000), partition=0)
        with pytest.raises(warmlog.BufferFull):
            producer.send(topic, bytes(800_000), partition=1)
        await producer.drain()
        producer.send(topic, bytes(800_000), partition=1)
    assert sum(map(len, (await read_all(broker, topic)).values())) == 3


@pytest.mark.parametrize("timeout_s", [0, 0.005, None])
async def test_a_send_many_beside_a_close_ends(broker: BrokerProcess, topic: str, timeout_s: float | None) -> None:
    await create(broker, topic)

    async def send(producer: warmlog.Producer) -> None:
        while True:
            await producer.send_many(topic, [b"x" * 100] * 100)

    for number in range(20):
        producer = await warmlog.Producer(broker.address, buffer_bytes=50_000, high_water_bytes=5000).start()
        sending = [asyncio.create_task(send(producer)) for _ in range(4)]
        await asyncio.sleep(number / 1000)
        with suppress(warmlog.ClientClosed):
            await producer.close(timeout_s=timeout_s)
        _, pending = await asyncio.wait(sending, timeout=40)
        assert not pending
        assert {type(each.exception()) for each in sending} == {warmlog.ClientClosed}


async def test_batches_fit_into_small_segments(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, **{"segment.bytes": "2KiB"})
    async with warmlog.Producer(broker.address) as producer:
        assert (await producer.send_many(topic, [b"x" * 500] * 20)).count == 20
        for _ in range(20):
            producer.send(topic, b"x" * 500)
        await producer.flush()
        with pytest.raises(warmlog.WarmlogError, match=r"does not fit into segment\.bytes=2048"):
            await producer.send(topic, b"x" * 3000)
    (records,) = (await read_all(broker, topic)).values()
    assert len(records) == 40


async def test_the_times_of_a_log_append_time_topic_are_the_brokers(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, **{"message.timestamp.type": "LogAppendTime"})
    async with warmlog.Producer(broker.address) as producer:
        placed = await producer.send(topic, b"x", timestamp_ms=5)
    assert placed.timestamp_ms > 1_700_000_000_000
    (records,) = (await read_all(broker, topic)).values()
    assert records[0].timestamp_ms == placed.timestamp_ms
