"""What clients do when a topic is deleted under them, and made anew."""

import asyncio
import logging
from uuid import UUID

import pytest

import warmlog
from broker_process import BrokerProcess

VALUES = [b"%d" % number for number in range(50)]
WAIT_S = 40


async def create(broker: BrokerProcess, topic: str, values: list[bytes], partitions: int = 1) -> UUID:
    """A topic with these values in each partition."""
    async with warmlog.Admin(broker.address) as admin:
        topic_id = await admin.create_topic(topic, partitions=partitions)
    async with warmlog.Producer(broker.address) as producer:
        for partition in range(partitions):
            await producer.send_many(topic, values, partition=partition)
    return topic_id


async def delete(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Admin(broker.address) as admin:
        await admin.delete_topic(topic)


async def take(consumer: warmlog.Consumer, count: int) -> list[bytes | None]:
    """The values of the next so many records."""
    records = consumer.records()
    return [(await asyncio.wait_for(anext(records), WAIT_S)).value for _ in range(count)]


async def test_a_consumer_goes_on_in_the_new_topic_and_says_so(
    broker: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    old_id = await create(broker, topic, VALUES)
    async with warmlog.Consumer(broker.address, topics=[topic], on_out_of_range="earliest") as consumer:
        assert await take(consumer, 50) == VALUES
        waiting = asyncio.ensure_future(take(consumer, 3))
        await asyncio.sleep(0.1)
        with caplog.at_level(logging.WARNING, logger="warmlog"):
            await delete(broker, topic)
            new_id = await create(broker, topic, [b"a", b"b", b"c"])
            assert await waiting == [b"a", b"b", b"c"]
        warnings = [text for text in caplog.messages if "deleted and recreated" in text]
        assert len(warnings) == 1
        for part in (f"{topic}-0", str(old_id), str(new_id), "position 50", "continuing at its earliest offset, 0"):
            assert part in warnings[0]


async def test_a_consumer_waits_for_it(broker: BrokerProcess, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    await create(broker, topic, VALUES)
    async with warmlog.Consumer(broker.address, topics=[topic], on_out_of_range="earliest") as consumer:
        assert await take(consumer, 50) == VALUES
        await delete(broker, topic)
        waiting = asyncio.ensure_future(take(consumer, 2))
        with caplog.at_level(logging.WARNING, logger="warmlog"):
            while not any("trying again" in text for text in caplog.messages):
                assert not waiting.done(), waiting.result()
                await asyncio.sleep(0.05)
        await create(broker, topic, [b"a", b"b"])
        assert await waiting == [b"a", b"b"]


async def test_it_waits_no_longer_than_for_any_other_partition(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, VALUES)
    async with warmlog.Consumer(
        broker.address, topics=[topic], start="latest", on_out_of_range="latest", unavailable_timeout_ms=300
    ) as consumer:
        await delete(broker, topic)
        with pytest.raises((warmlog.UnknownTopicOrPartition, warmlog.UnknownTopicId), match=topic):
            await take(consumer, 1)


async def test_a_consumer_not_told_where_to_go_on_raises_and_names_both_ids(broker: BrokerProcess, topic: str) -> None:
    old_id = await create(broker, topic, VALUES)
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        assert await take(consumer, 50) == VALUES
        await delete(broker, topic)
        with pytest.raises((warmlog.UnknownTopicOrPartition, warmlog.UnknownTopicId), match=topic):
            await take(consumer, 1)
        new_id = await create(broker, topic, [b"a", b"b", b"c"])
        with pytest.raises((warmlog.UnknownTopicOrPartition, warmlog.UnknownTopicId, warmlog.InconsistentTopicId)):
            await take(consumer, 1)  # as the client knew it last
        error: BaseException | None = None
        while not isinstance(error, warmlog.InconsistentTopicId):
            (error,) = await asyncio.gather(take(consumer, 1), return_exceptions=True)  # type: ignore[assignment]
        for _ in range(2):
            with pytest.raises(warmlog.InconsistentTopicId) as raised:
                await take(consumer, 1)
            assert str(old_id) in str(raised.value)
            assert str(new_id) in str(raised.value)
            assert "on_out_of_range" in str(raised.value)
        consumer.seek(topic, 0, 1)
        assert await take(consumer, 2) == [b"b", b"c"]


async def test_a_read_to_some_point_ends_with_an_error_if_others_go_on(broker: BrokerProcess, topic: str) -> None:
    """Its end is an offset of the old topic: in the new one it may never come."""
    await create(broker, topic, VALUES)
    async with warmlog.Consumer(broker.address, topics=[topic], on_out_of_range="earliest") as consumer:
        records = consumer.records(until=100)
        for _ in range(50):
            await asyncio.wait_for(anext(records), WAIT_S)
        await delete(broker, topic)
        await create(broker, topic, [b"a"])
        with pytest.raises((warmlog.InconsistentTopicId, warmlog.UnknownTopicId)):
            await asyncio.wait_for(anext(records), WAIT_S)


async def test_a_partition_that_the_new_topic_does_not_have_is_an_error(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, VALUES, partitions=2)
    async with warmlog.Consumer(
        broker.address, topics=[topic], on_out_of_range="earliest", unavailable_timeout_ms=3000
    ) as consumer:
        await take(consumer, 100)
        await delete(broker, topic)
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic(topic, partitions=1)
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="has partition 0"):
            await take(consumer, 1)


async def test_a_producer_goes_on_in_the_new_topic(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, [])
    async with warmlog.Producer(broker.address) as producer:
        await producer.send_many(topic, VALUES)
        await delete(broker, topic)
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic(topic)
        placed = await producer.send(topic, b"first")
        assert placed.offset == 0


async def test_a_producer_learns_that_the_new_topic_has_fewer_partitions(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, VALUES, partitions=8)
    async with warmlog.Producer(broker.address) as producer:
        await producer.send_many(topic, VALUES, keys=VALUES)
        await delete(broker, topic)
        await create(broker, topic, [], partitions=2)
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="has partitions 0 to 1, not"):
            await asyncio.wait_for(producer.send_many(topic, VALUES, keys=VALUES), WAIT_S)
        sent = await asyncio.wait_for(producer.send_many(topic, VALUES, keys=VALUES), WAIT_S)
        assert sent.ranges.keys() == {0, 1}
        assert (await asyncio.wait_for(producer.send(topic, b"x"), WAIT_S)).partition < 2
