"""Topics of a real broker change while they are in use, and stay changed after a kill."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import cast

import pytest

import warmlog
from broker_process import BrokerProcess
from warmlog_protocol.messages import AlteredTopic, AlterTopicsRequest, AlterTopicsResponse
from wire_client import WireClient

WEEK_MS = 604_800_000


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    for _ in range(1000):
        if await holds():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never held")


async def own_settings(admin: warmlog.Admin, topic: str) -> dict[str, str]:
    configs = (await admin.describe_topic(topic)).configs
    return {name: config.value for name, config in configs.items() if config.origin == "topic"}


async def earliest(admin: warmlog.Admin, topic: str) -> int:
    return (await admin.list_offsets(topic, "earliest"))[0].offset


def segment_count(broker: BrokerProcess, topic: str) -> int:
    return len(list((broker.data_dir / f"{topic}-0").glob("*.log")))


async def test_retention_deletes_at_once_after_it_was_altered(broker: BrokerProcess, topic: str) -> None:
    """The broker looks for what is to be deleted every five minutes otherwise."""
    async with warmlog.Admin(broker.address) as admin, warmlog.Producer(broker.address) as producer:
        await admin.create_topic(topic, partitions=1)
        await producer.send(topic, b"old", timestamp_ms=time.time_ns() // 1_000_000 - 60_000)
        await admin.alter_topic(topic, set={"retention.ms": "30s"})
        await eventually(lambda: _is(earliest(admin, topic), 1))
        placed = await producer.send(topic, b"new")
        assert placed.offset == 1


async def _is(found: Awaitable[int], expected: int) -> bool:
    return await found == expected


async def test_a_segment_size_applies_to_the_next_append(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Admin(broker.address) as admin, warmlog.Producer(broker.address) as producer:
        await admin.create_topic(topic, partitions=1)
        for _ in range(4):
            await producer.send(topic, bytes(1000))
        assert segment_count(broker, topic) == 1
        await admin.alter_topic(topic, set={"segment.bytes": "2KiB"})
        for _ in range(6):
            await producer.send(topic, bytes(1000))
        assert segment_count(broker, topic) >= 4


async def test_a_larger_limit_lets_a_record_in_and_a_smaller_one_leaves_it(broker: BrokerProcess, topic: str) -> None:
    large = bytes(range(250)) * 20_000
    async with warmlog.Admin(broker.address) as admin, warmlog.Producer(broker.address) as producer:
        await admin.create_topic(topic, partitions=1)
        await producer.send(topic, b"small")
        await admin.alter_topic(topic, set={"max.message.bytes": "10MiB"})
        with pytest.raises(warmlog.MessageTooLarge):
            producer.send(topic, large)  # which has the producer ask for the limit again
        await eventually(lambda: _takes(producer, topic, large))
        await admin.alter_topic(topic, set={"max.message.bytes": 1000})
        with pytest.raises(warmlog.MessageTooLarge, match=r"max\.message\.bytes"):
            await producer.send(topic, bytes(2000))
        await producer.send(topic, b"small again")
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        values = [record.value async for record in consumer.records(until="latest")]
    assert values == [b"small", large, b"small again"]


async def test_a_producer_makes_smaller_batches_after_a_limit_was_lowered(broker: BrokerProcess, topic: str) -> None:
    values = [bytes(300)] * 20
    async with warmlog.Admin(broker.address) as admin, warmlog.Producer(broker.address) as producer:
        await admin.create_topic(topic, partitions=1)
        await producer.send_many(topic, values)
        await admin.alter_topic(topic, set={"max.message.bytes": 1000})
        with pytest.raises(warmlog.MessageTooLarge):
            await producer.send_many(topic, values)  # which has the producer ask for the limit again
        await eventually(lambda: _takes(producer, topic, bytes(300)))
        assert (await producer.send_many(topic, values)).count == 20


async def _takes(producer: warmlog.Producer, topic: str, value: bytes) -> bool:
    try:
        await producer.send(topic, value)
    except warmlog.MessageTooLarge:
        return False
    return True


async def test_timestamps_and_policies_change_live(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Admin(broker.address) as admin, warmlog.Producer(broker.address) as producer:
        await admin.create_topic(topic, partitions=1)
        assert (await producer.send(topic, b"x", timestamp_ms=5)).timestamp_ms == 5
        await admin.alter_topic(topic, set={"message.timestamp.type": "LogAppendTime", "cleanup.policy": "compact"})
        assert (await producer.send(topic, b"x", key=b"k", timestamp_ms=5)).timestamp_ms > 5
        with pytest.raises(warmlog.InvalidRecord, match=r"cleanup\.policy=compact"):
            await producer.send(topic, b"x")
        await admin.alter_topic(topic, unset=["message.timestamp.type", "cleanup.policy"])
        assert (await producer.send(topic, b"x", timestamp_ms=5)).timestamp_ms == 5
        assert await own_settings(admin, topic) == {}


async def test_a_topic_that_is_compacted_from_now_on_loses_what_was_overwritten(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", log_cleaner_backoff_ms=20) as broker:
        async with warmlog.Admin(broker.address) as admin, warmlog.Producer(broker.address) as producer:
            await admin.create_topic("t", partitions=1, configs={"segment.bytes": 1024})
            for number in range(30):
                await producer.send("t", b"%d" % number + bytes(300), key=b"same")
            await admin.alter_topic("t", set={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0})
            await eventually(lambda: _is(_count(broker, "t"), _few(broker)))
            await admin.alter_topic("t", set={"cleanup.policy": "delete"})
            kept = await _count(broker, "t")
        broker.restart()
        assert await _count(broker, "t") == kept
        async with warmlog.Producer(broker.address) as producer:
            assert (await producer.send("t", b"last")).offset == 30


async def _count(broker: BrokerProcess, topic: str) -> int:
    async with warmlog.Consumer(broker.address, topics=[topic]) as consumer:
        return sum([1 async for _ in consumer.records(until="latest")])


def _few(broker: BrokerProcess) -> int:
    """The last value of the key in closed segments, and what the active segment holds."""
    (active,) = sorted((broker.data_dir / "t-0").glob("*.log"))[-1:]
    return 30 - int(active.stem) + 1


async def test_a_change_survives_a_kill_right_after_its_response(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", retention_ms="12h") as broker:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic("t", partitions=1, configs={"flush.ms": timedelta(seconds=2), "segment.ms": "1h"})
        for number in range(3):
            async with warmlog.Admin(broker.address) as admin:
                await admin.alter_topic("t", set={"retention.bytes": f"{number}GiB"}, unset=["segment.ms"])
                await admin.add_partitions("t", 2 + number)
            broker.restart()
            async with warmlog.Admin(broker.address) as admin:
                assert await own_settings(admin, "t") == {"flush.ms": "2000", "retention.bytes": str(number << 30)}
                topic = await admin.describe_topic("t")
                assert [part.error for part in topic.partitions] == [None] * (2 + number)
        retention = topic.configs["retention.ms"]
        assert (retention.value, retention.origin, retention.is_default) == ("43200000", "broker", True)
        assert topic.configs["segment.ms"].origin == "default"
        async with warmlog.Admin(broker.address) as admin:
            settings = await admin.describe_broker()
        assert (settings["retention.ms"].origin, settings["segment.ms"].origin) == ("broker", "default")
        assert (settings["data.dirs"].origin, settings["node.id"].origin) == ("default", "default")


async def test_a_kill_at_any_moment_leaves_the_old_or_the_new_number_of_partitions(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic("t", partitions=1)
        total, outcomes = 1, set()
        for delay_ms in (0, 1, 2, 4, 8, 16, 32):
            admin = await warmlog.Admin(broker.address, request_timeout_ms=2000).start()
            adding = asyncio.create_task(admin.add_partitions("t", total + 20))
            await asyncio.sleep(delay_ms / 1000)
            broker.kill()
            error = (await asyncio.gather(adding, return_exceptions=True))[0]
            await admin.close()
            broker.start()
            async with warmlog.Admin(broker.address) as admin:
                partitions = (await admin.describe_topic("t")).partitions
            assert len(partitions) in ((total + 20,) if error is None else (total, total + 20))
            assert [part.error for part in partitions] == [None] * len(partitions)
            outcomes.add(error is None)
            total = len(partitions)
        async with warmlog.Producer(broker.address) as producer:
            for partition in range(total):
                await producer.send("t", b"x", partition=partition)


async def test_a_running_producer_and_consumer_find_added_partitions(broker: BrokerProcess, topic: str) -> None:
    async with (
        warmlog.Admin(broker.address) as admin,
        warmlog.Producer(broker.address, metadata_max_age_ms=50) as producer,
    ):
        await admin.create_topic(topic, partitions=1)
        async with warmlog.Consumer(
            broker.address, topics=[topic], start="latest", max_wait_ms=20, metadata_max_age_ms=50
        ) as consumer:
            await admin.add_partitions(topic, 4)
            sent: dict[int, int] = {}

            async def has_sent_to_all() -> bool:
                for number in range(20):
                    placed = await producer.send(topic, b"x", key=b"%d" % number)
                    sent[placed.partition] = sent.get(placed.partition, 0) + 1
                return len(sent) == 4

            await eventually(has_sent_to_all)
            read: dict[int, int] = {}
            async with asyncio.timeout(40):
                async for record in consumer:
                    read[record.partition] = read.get(record.partition, 0) + 1
                    if read == sent:
                        break
            assert sorted(consumer.assignment) == [(topic, partition) for partition in range(4)]


async def test_a_running_producer_can_name_an_added_partition(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Admin(broker.address) as admin, warmlog.Producer(broker.address) as producer:
        await admin.create_topic(topic, partitions=1)
        await producer.send(topic, b"x")
        await admin.add_partitions(topic, 2)
        with pytest.raises(warmlog.UnknownTopicOrPartition):  # which has the producer look for it
            producer.send(topic, b"y", partition=1)
        await eventually(lambda: _takes_partition(producer, topic, 1))
        await admin.add_partitions(topic, 3)
        assert (await producer.send_many(topic, [b"z"], partition=2)).ranges == {2: [range(1)]}
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="has partitions 0 to 2, not 3"):
            await producer.send_many(topic, [b"z"], partition=3)


async def _takes_partition(producer: warmlog.Producer, topic: str, partition: int) -> bool:
    try:
        await producer.send(topic, b"y", partition=partition)
    except warmlog.UnknownTopicOrPartition:
        return False
    return True


async def test_a_read_with_an_end_leaves_added_partitions_to_the_next(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Admin(broker.address) as admin, warmlog.Producer(broker.address) as producer:
        await admin.create_topic(topic, partitions=1)
        await producer.send(topic, b"first")
        async with warmlog.Consumer(broker.address, topics=[topic], max_wait_ms=20, metadata_max_age_ms=1) as consumer:
            values = []
            async for record in consumer.records(until={(topic, 0): 2}):
                values.append(record.value)
                if len(values) == 1:
                    await admin.add_partitions(topic, 2)
                    async with warmlog.Producer(broker.address) as other:
                        await other.send(topic, b"added", partition=1)
                    await eventually(lambda: _has(consumer, (topic, 1)))
                    await producer.send(topic, b"second", partition=0)
            assert values == [b"first", b"second"]
            assert [record.value async for record in consumer.records(until="latest")] == [b"added"]


async def _has(consumer: warmlog.Consumer, partition: tuple[str, int]) -> bool:
    return partition in consumer.assignment


async def test_an_existing_topic_can_be_created_again_where_that_is_allowed(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Admin(broker.address) as admin:
        first = await admin.create_topic(topic, partitions=2, configs={"retention.ms": "1d"}, exist_ok=True)
        again = await admin.create_topic(topic, partitions=5, configs={"retention.ms": "2d"}, exist_ok=True)
        assert first == again
        described = await admin.describe_topic(topic)
        assert (len(described.partitions), described.configs["retention.ms"].value) == (2, "86400000")
        with pytest.raises(warmlog.TopicAlreadyExists):
            await admin.create_topic(topic)


async def test_what_cannot_be_changed_is_said_clearly(broker: BrokerProcess, topic: str) -> None:
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic(topic, partitions=3)
        with pytest.raises(warmlog.InvalidPartitions, match=r"has 3 partitions, 2 were asked for"):
            await admin.add_partitions(topic, 2)
        with pytest.raises(warmlog.InvalidConfig, match=r"did you mean retention.ms\?"):
            await admin.alter_topic(topic, set={"retention.m": 1})
        with pytest.raises(warmlog.InvalidConfig, match="or a duration such as 7d"):
            await admin.alter_topic(topic, set={"retention.ms": "a week"})
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="no-such-topic"):
            await admin.alter_topic("no-such-topic", set={"retention.ms": 1})
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="no-such-topic"):
            await admin.add_partitions("no-such-topic", 2)
        assert await own_settings(admin, topic) == {}


def test_a_request_that_only_validates_changes_nothing(broker: BrokerProcess, client: WireClient, topic: str) -> None:
    client.create_topic(topic)
    changes = [AlteredTopic(topic, {"retention.ms": "7d"}), AlteredTopic("no-such-topic", {"retention.ms": "7d"})]
    response = cast("AlterTopicsResponse", client.call(AlterTopicsRequest(changes, validate_only=True)))
    assert [(each.name, each.error_code) for each in response.topics] == [(topic, 0), ("no-such-topic", 3)]


def test_settings_of_the_broker_take_durations_and_sizes(tmp_path: Path) -> None:
    environment = {"WARMLOG_SEGMENT_BYTES": "64MiB"}
    with BrokerProcess(
        tmp_path / "data", environment=environment, retention_ms="7d", fetch_max_bytes="32MiB"
    ) as broker:
        settings = asyncio.run(_described(broker))
    assert settings["retention.ms"].value == str(WEEK_MS)
    assert settings["segment.bytes"].value == str(64 << 20)
    assert settings["fetch.max.bytes"].value == str(32 << 20)


async def _described(broker: BrokerProcess) -> dict[str, warmlog.ConfigValue]:
    async with warmlog.Admin(broker.address) as admin:
        return await admin.describe_broker()
