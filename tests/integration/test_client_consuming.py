"""The consumer and the admin client against a real broker in its own process."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import astuple

import warmlog
from broker_process import BrokerProcess
from warmlog.testing import embedded

START = datetime(2026, 1, 1, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)


async def create(broker: BrokerProcess, name: str, partitions: int, per_partition: int) -> None:
    """A topic of small segments; record i of each partition was sent i minutes after START."""
    async with warmlog.Admin(broker.address) as admin:
        configs = {"segment.bytes": "20000", "index.interval.bytes": "1000", "retention.ms": "-1"}
        await admin.create_topic(name, partitions=partitions, configs=configs)
    async with warmlog.Producer(broker.address, batch_bytes=2000) as producer:
        for partition in range(partitions):
            await producer.send_many(
                name,
                [b"%d" % i for i in range(per_partition)],
                timestamps_ms=[START_MS + i * 60_000 for i in range(per_partition)],
                partition=partition,
            )


async def test_seeking_by_time_finds_the_first_record_at_or_after_it(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, 2, 3000)
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        for minutes in (0, 1, 777, 2999):
            await consumer.seek_to_time(START + timedelta(minutes=minutes))
            assert {consumer.position(topic, partition) for partition in (0, 1)} == {minutes}
            first = await anext(consumer.records())
            assert (first.offset, first.timestamp_ms) == (minutes, START_MS + minutes * 60_000)
        await consumer.seek_to_time(START_MS + 30_000)
        assert consumer.position(topic, 0) == 1
        await consumer.seek_to_time(START + timedelta(days=1000))
        assert consumer.position(topic, 0) == 3000


async def test_reading_follows_the_end_of_the_log(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, 1, 10)
    async with (
        warmlog.Producer(broker.address) as producer,
        warmlog.Consumer(broker.address, topics=[topic], start="latest") as consumer,
    ):
        batches = consumer.batches()
        for i in range(20):
            coming = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0)
            placed = await producer.send(topic, b"%d" % i)
            batch = await asyncio.wait_for(coming, 40)
            assert (batch.base_offset, batch.values) == (placed.offset, [b"%d" % i])
            assert batch.high_watermark >= batch.next_offset


async def test_batches_records_and_arrow_say_the_same(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, 2, 5000)
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        by_batch = [astuple(record) async for batch in consumer.batches("latest") for record in batch]
        await consumer.seek_to_beginning()
        by_record = [astuple(record) async for record in consumer.records("latest")]
        await consumer.seek_to_beginning()
        rows = [row for table in [t async for t in consumer.arrow("latest")] for row in table.to_pylist()]
    assert len(by_batch) == 10_000
    assert sorted(by_batch) == sorted(by_record)
    assert sorted((row["partition"], row["offset"], row["value"]) for row in rows) == sorted(
        (record[1], record[2], record[5]) for record in by_batch
    )


async def test_a_consumer_goes_on_where_the_killed_broker_left_it(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, 2, 20_000)
    async with warmlog.Consumer(broker.address, topics=[topic], partition_max_bytes=20_000) as consumer:
        found: dict[int, list[int]] = {0: [], 1: []}
        count = 0
        async for batch in consumer.batches(until="latest"):
            found[batch.partition] += batch.offsets
            count += 1
            if count % 40 == 0 and count <= 120:
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
        assert found == {partition: list(range(20_000)) for partition in (0, 1)}


async def test_damage_on_disk_is_raised_with_its_offsets_and_can_be_passed(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, 1, 500)
    assert broker.terminate() == 0
    segment = broker.data_dir / f"{topic}-0" / "00000000000000000000.log"
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 0xFF
    segment.write_bytes(data)
    broker.start()
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        batches = consumer.batches(until="latest")
        seen: list[int] = []
        errors: list[warmlog.UnreadableBatch] = []
        while True:
            try:
                seen += (await asyncio.wait_for(anext(batches), 40)).offsets
            except warmlog.UnreadableBatch as error:
                errors.append(error)
            except StopAsyncIteration:
                break
    (error,) = errors
    assert seen == [*range(error.base_offset), *range(error.next_offset, 500)]
    assert 0 < error.next_offset - error.base_offset < 200


async def test_offsets_by_name_and_by_time(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, 2, 100)
    async with warmlog.Admin(broker.address) as admin:

        async def offsets(at: object, **options: object) -> dict[int, int]:
            found = await admin.list_offsets(topic, at, **options)  # type: ignore[arg-type]
            return {partition: listed.offset for partition, listed in found.items()}

        assert await offsets("earliest") == {0: 0, 1: 0}
        assert await offsets("latest") == {0: 100, 1: 100}
        assert await offsets("latest", log_end=True) == {0: 100, 1: 100}
        assert await offsets("max_timestamp", partitions=[1]) == {1: 99}
        assert await offsets(START + timedelta(minutes=5)) == {0: 5, 1: 5}
        assert await offsets(START_MS + 1) == {0: 1, 1: 1}
        past_end = await admin.list_offsets(topic, START + timedelta(days=999))
        assert past_end[0][:3] == (0, 100, -1)
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="partitions 0 to 1, not 7"):
            await admin.list_offsets(topic, "latest", [7])
        with pytest.raises(ValueError, match="expected"):
            await admin.list_offsets(topic, "yesterday")


async def test_a_deleted_topic_ends_waiting_readers_and_writers(broker: BrokerProcess, topic: str) -> None:
    await create(broker, topic, 1, 10)
    async with (
        warmlog.Admin(broker.address) as admin,
        warmlog.Producer(broker.address) as producer,
        warmlog.Consumer(broker.address, topics=[topic], start="latest") as consumer,
    ):
        await producer.send(topic, b"x", partition=0)
        waiting = asyncio.ensure_future(anext(consumer.batches()))
        assert (await asyncio.wait_for(waiting, 40)).values == [b"x"]
        waiting = asyncio.ensure_future(anext(consumer.batches()))
        await asyncio.sleep(0.05)
        await admin.delete_topic(topic)
        with pytest.raises(warmlog.ApiError):
            await asyncio.wait_for(waiting, 40)
        with pytest.raises(warmlog.UnknownTopicOrPartition):
            await asyncio.wait_for(producer.send(topic, b"y"), 40)


@pytest.mark.parametrize("group", [None, "readers"])
async def test_tasks_that_read_records_in_turns_lose_none(group: str | None) -> None:
    async with embedded(num_partitions=2) as broker, warmlog.Admin(broker.address) as admin:
        await admin.create_topic("t")
        async with warmlog.Producer(broker.address) as producer:
            for partition in range(2):
                await producer.send_many("t", [b"%d" % number for number in range(5000)], partition=partition)
        read: list[tuple[int, int]] = []
        async with warmlog.Consumer(broker.address, topics=["t"], group=group, start="earliest") as consumer:
            turn = asyncio.Lock()

            async def read_some() -> bool:
                count = 0
                async for record in consumer.records(until=5000):
                    read.append((record.partition, record.offset))
                    if (count := count + 1) == 70:
                        return True
                return False

            async def read_records() -> None:
                is_left = True
                while is_left:
                    async with turn:
                        is_left = await read_some()

            await asyncio.wait_for(asyncio.gather(*(read_records() for _ in range(3))), 40)
        assert sorted(read) == [(partition, offset) for partition in range(2) for offset in range(5000)]
