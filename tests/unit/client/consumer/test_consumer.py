"""What a user of Consumer sees, against a broker in memory."""

import asyncio
from datetime import datetime
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import warmlog
from fake_broker import FakeBroker
from warmlog_protocol.batch import encode_batch, read_header, seal_batch
from warmlog_protocol.errors import CorruptBatch, NotLeaderOrFollower, StorageError, UnknownTopicId
from warmlog_protocol.messages import DivergingEpoch, FetchPartition

pytestmark = pytest.mark.usefixtures("quick_clock")

TOPIC = "t"


def consumer(broker: FakeBroker, **options: Any) -> warmlog.Consumer:
    if "partitions" not in options:
        options.setdefault("topics", [TOPIC])
    return warmlog.Consumer(broker.address, **{"retry_backoff_ms": 5, "max_wait_ms": 50, **options})


def fill(broker: FakeBroker, partition: int, *counts: int, time_ms: int = 1000) -> None:
    """Batches of so many records; the values are the offsets, the times count from `time_ms`."""
    for count in counts:
        start = broker.topics[TOPIC][partition].next_offset
        offsets = range(start, start + count)
        data = encode_batch([b"%d" % o for o in offsets], timestamps_ms=[time_ms + o for o in offsets])
        broker.add_batch(TOPIC, partition, data)


async def values_until(client: warmlog.Consumer, until: Any = "latest") -> list[bytes | None]:
    return [value async for batch in client.batches(until) for value in batch.values]


def numbers(*parts: range) -> list[bytes]:
    return [b"%d" % number for part in parts for number in part]


async def test_topics_may_be_a_column_of_names() -> None:
    async with FakeBroker(a=1, b=1) as broker, consumer(broker, topics=np.array(["a", "b"])) as client:
        assert client.assignment == [("a", 0), ("b", 0)]


async def test_batches_end_at_the_high_watermark_of_the_start() -> None:
    async with FakeBroker(t=2) as broker:
        fill(broker, 0, 3, 3)
        fill(broker, 1, 2)
        async with consumer(broker) as client:
            seen = {0: 0, 1: 0}
            async for batch in client.batches(until="latest"):
                seen[batch.partition] += len(batch)
                fill(broker, 0, 5)
            assert seen == {0: 6, 1: 2}
            assert [client.position(*place) for place in client.assignment] == [6, 2]
            assert len(await values_until(client)) == 15


async def test_an_empty_topic_ends_at_once() -> None:
    async with FakeBroker(t=2) as broker, consumer(broker) as client:
        assert await asyncio.wait_for(values_until(client), 25) == []


async def test_seeking() -> None:
    async with FakeBroker(t=2) as broker:
        fill(broker, 0, 10)
        fill(broker, 1, 10)
        async with consumer(broker) as client:
            await values_until(client)
            client.seek(TOPIC, 0, 8)
            assert await values_until(client) == numbers(range(8, 10))
            await client.seek_to_beginning([(TOPIC, 1)])
            assert await values_until(client) == numbers(range(10))
            await client.seek_to_time(1007)
            assert sorted(await values_until(client)) == sorted(numbers(range(7, 10), range(7, 10)))  # type: ignore[type-var]
            await client.seek_to_time(datetime(1970, 1, 1, 0, 0, 1, 9000), [(TOPIC, 0)])
            assert await values_until(client) == numbers(range(9, 10))
            await client.seek_to_beginning()
            await client.seek_to_end()
            assert await values_until(client) == []
            with pytest.raises(ValueError, match="does not read t-9"):
                client.seek(TOPIC, 9, 0)
            with pytest.raises(ValueError, match="offset -1"):
                client.seek(TOPIC, 0, -1)


async def test_records_one_by_one_lose_nothing_when_the_reader_leaves_and_comes_back() -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 5, 5)
        async with consumer(broker) as client:
            seen = []
            async for record in client:
                seen.append(record.offset)
                if record.offset in (1, 6):
                    break
            assert client.position(TOPIC, 0) == 2
            seen += [record.offset async for record in client.records(until=4)]
            async for batch in client.batches(until=5):
                seen += batch.offsets
            async for record in client.records(until="latest"):
                seen.append(record.offset)
                if record.offset == 7:
                    break
            assert client.position(TOPIC, 0) == 8
            seen += [int(value or b"") for value in await values_until(client)]
            assert seen == list(range(10))


async def test_seeking_while_records_are_in_hand_goes_there() -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 10)
        async with consumer(broker) as client:
            records = client.records(until="latest")
            assert [(await anext(records)).offset for _ in range(3)] == [0, 1, 2]
            client.seek(TOPIC, 0, 7)
            assert client.position(TOPIC, 0) == 7
            assert [record.offset async for record in records] == [7, 8, 9]


async def test_a_record_has_everything() -> None:
    async with FakeBroker(t=1) as broker:
        data = encode_batch([b"v", None], keys=[None, b"k"], headers=[None, [("h", b"x")]], timestamps_ms=[5, 6])
        broker.add_batch(TOPIC, 0, data)
        async with consumer(broker) as client:
            first, second = [record async for record in client.records(until="latest")]
            assert first == warmlog.Record(TOPIC, 0, 0, 5, None, b"v", first.headers)
            assert list(first.headers) == []
            assert (second.offset, second.timestamp_ms, second.key, second.value) == (1, 6, b"k", None)
            assert list(map(tuple, second.headers)) == [("h", b"x")]


async def test_a_record_is_equal_to_another_with_its_content_whatever_batch_it_comes_from() -> None:
    async with FakeBroker(t=1) as broker:
        broker.add_batch(TOPIC, 0, encode_batch([b"v"], timestamps_ms=[5]))
        broker.add_batch(TOPIC, 0, encode_batch([b"v", b"v"], headers=[None, [("h", b"x")]], timestamps_ms=[5, 5]))
        async with consumer(broker) as client:
            alone, bare, headed = [replace(each, offset=0) async for each in client.records(until="latest")]
            assert {alone, bare} == {alone}
            assert headed.headers == (("h", b"x"),)


async def test_partitions_take_turns() -> None:
    async with FakeBroker(t=3) as broker:
        for partition in range(3):
            fill(broker, partition, *[1] * 20)
        async with consumer(broker) as client:
            await asyncio.sleep(0.05)
            order = [batch.partition async for batch in client.batches("latest")]
            assert len(order) == 60
            assert all(len(set(order[i : i + 3])) == 3 for i in range(0, 57, 3))


async def test_what_does_not_exist_is_named() -> None:
    async with FakeBroker(t=3) as broker:
        with pytest.raises(
            warmlog.UnknownTopicOrPartition, match=r"topic 'nowhere' does not exist; .*create` or Admin"
        ):
            await consumer(broker, topics=["nowhere"]).start()
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="partitions 0 to 2, not 3"):
            await consumer(broker, partitions=[(TOPIC, 3)]).start()
        assert broker.connections == 0


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "give topics, partitions or pattern, and only one of them"),
        ({"topics": [TOPIC], "partitions": []}, TypeError, "and only one of them"),
        ({"topics": [TOPIC], "pattern": "t"}, TypeError, "and only one of them"),
        ({"pattern": "("}, warmlog.InvalidConfig, r"pattern='\(': .*regular expression is expected"),
        ({"partitions": ["t"]}, ValueError, r"partitions has 't': \("),
        ({"topics": TOPIC}, TypeError, r"topics=\['t'\]"),
        ({"topics": [TOPIC], "isolation": "dirty"}, warmlog.InvalidConfig, "read_committed"),
        ({"topics": [TOPIC], "on_out_of_range": "guess"}, warmlog.InvalidConfig, "earliest"),
        ({"topics": [TOPIC], "max_bytes": 0}, warmlog.InvalidConfig, "max_bytes=0"),
        ({"topics": [TOPIC], "max_wait_ms": -1}, warmlog.InvalidConfig, "max_wait_ms=-1"),
    ],
)
def test_options_are_checked_by_the_constructor(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        warmlog.Consumer("127.0.0.1:1", **options)


async def test_reading_before_the_start_is_refused_at_the_call() -> None:
    async with FakeBroker(t=1) as broker:
        client = consumer(broker)
        for read in (client.records, client.batches, client.__aiter__, client.positions):
            with pytest.raises(warmlog.ClientClosed, match=r"not started: use `async with Consumer.*await start"):
                read()


async def test_a_mapping_seeks_in_the_partitions_that_it_names() -> None:
    async with FakeBroker(t=2) as broker:
        fill(broker, 0, 10)
        fill(broker, 1, 10)
        async with consumer(broker, start=4) as client:
            await client.seek_to({"t-1": "-3"})
            assert client.positions() == {"t-0": 4, "t-1": 7}
            await client.seek_to(datetime(1970, 1, 1, 0, 0, 1, 2000), ["t-0"])
            assert client.positions() == {"t-0": 2, "t-1": 7}
            for where, partitions in (({"t-1": 0}, ["t-0"]), ({"t-2": 0}, None), ("latest", ["t-2"])):
                with pytest.raises(ValueError, match=r"t-[12]"):
                    await client.seek_to(where, partitions)
            for offset in (True, 1.5, "3"):
                with pytest.raises(ValueError, match=f"offset {offset!r}: a whole number is expected"):
                    client.seek(TOPIC, 0, offset)  # type: ignore[arg-type]
            assert client.positions() == {"t-0": 2, "t-1": 7}


async def test_an_end_of_some_partitions_leaves_the_others_at_latest() -> None:
    async with FakeBroker(t=2) as broker:
        fill(broker, 0, 5)
        fill(broker, 1, 5)
        async with consumer(broker) as client:
            assert len(await asyncio.wait_for(values_until(client, {"t-0": 2}), 25)) == 7
            assert client.positions() == {"t-0": 2, "t-1": 5}


async def test_an_offset_that_is_not_in_the_log_names_the_range(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 5, 5)
        broker.topics[TOPIC][0].log_start_offset = 5
        async with consumer(broker, start=2) as client:
            for _ in range(2):
                with pytest.raises(warmlog.OffsetOutOfRange, match=r"t-0: offset 2 .* from 5 to 10"):
                    await values_until(client)
            client.seek(TOPIC, 0, 5)
            assert await values_until(client) == numbers(range(5, 10))
        async with consumer(broker, start=2, on_out_of_range="earliest") as client:
            assert await values_until(client) == numbers(range(5, 10))
        assert caplog.messages == ["t-0: offset 2 is not in the log; continuing at its earliest offset, 5"]
        async with consumer(broker, start=2, on_out_of_range="latest") as client:
            assert await values_until(client) == []
        async with consumer(broker, start=99, on_out_of_range="error") as client:
            with pytest.raises(warmlog.OffsetOutOfRange, match="offset 99"):
                await anext(client.batches())


async def test_if_the_broker_cannot_say_where_the_log_was_cut_the_policy_does(caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 5, 5)
        broker.diverging = lambda asked: DivergingEpoch(-1, -1) if asked.fetch_offset == 10 else None
        async with consumer(broker, start="latest") as client:
            for _ in range(2):
                with pytest.raises(warmlog.LogTruncated, match=r"are new\. Seek, or set on_out_of_range") as raised:
                    await anext(client.batches())
            assert (raised.value.offset, raised.value.diverging_offset) == (10, None)
        async with consumer(broker, start="latest", on_out_of_range="earliest") as client:
            assert (await anext(client.batches())).values == numbers(range(5))
            assert "t-0: the log was cut at an unknown offset after" in caplog.text
            assert "continuing at 0" in caplog.text


async def test_after_a_damaged_batch_the_same_iterator_goes_on() -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 2, 2, 2)
        offset, data = broker.topics[TOPIC][0].batches[1]
        broker.topics[TOPIC][0].batches[1] = (offset, data[:-1] + bytes([data[-1] ^ 1]))
        async with consumer(broker) as client:
            batches = client.batches("latest")
            assert (await anext(batches)).values == numbers(range(2))
            with pytest.raises(warmlog.UnreadableBatch, match="t-0, offsets 2 to 3"):
                await anext(batches)
            assert client.position(TOPIC, 0) == 4
            assert [value async for batch in batches for value in batch.values] == numbers(range(4, 6))
            client.seek(TOPIC, 0, 0)
            arrow = client.arrow("latest")
            assert (await anext(arrow)).num_rows == 2
            assert client.position(TOPIC, 0) == 2, "a commit, or another reader, would pass damage that was not raised"
            with pytest.raises(warmlog.UnreadableBatch):
                await anext(arrow)
            assert client.position(TOPIC, 0) == 4
            assert [batch.num_rows async for batch in arrow] == [2]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_batch_whose_headers_are_malformed_is_passed_alone_by_an_iterator_of_arrow(number: int) -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 2, 2, 2)
        values = [b"%d" % offset for offset in range(2 * number, 2 * number + 2)]
        batch = encode_batch(values, timestamps_ms=0, base_offset=2 * number, headers=[[("name", b"value")]] * 2)
        body = bytearray(batch[61:])
        body[-len(b"value") - 2] = 0xC1  # a byte that msgpack never uses
        broker.topics[TOPIC][0].batches[number] = 2 * number, seal_batch(read_header(batch), bytes(body))
        async with consumer(broker) as client:
            arrow = client.arrow("latest", columns=["offset", "headers"])
            offsets: list[int] = []
            errors = []
            while True:
                try:
                    offsets += (await anext(arrow)).column("offset").to_pylist()
                except warmlog.UnreadableBatch as error:
                    errors.append((error.base_offset, error.next_offset))
                except StopAsyncIteration:
                    break
            assert errors == [(2 * number, 2 * number + 2)]
            assert offsets == [offset for offset in range(6) if offset // 2 != number]


async def test_only_the_part_of_a_large_batch_whose_headers_are_malformed_is_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("warmlog.arrow.reader.MAX_ROWS", 1)
    async with FakeBroker(t=1) as broker:
        batch = encode_batch([b"0", b"1", b"2"], timestamps_ms=0, base_offset=0, headers=[[("name", b"value")]] * 3)
        body = bytearray(batch[61:])
        body[body.index(b"value") - 2] = 0xC1  # a byte that msgpack never uses
        broker.add_batch(TOPIC, 0, seal_batch(read_header(batch), bytes(body)))
        async with consumer(broker) as client:
            arrow = client.arrow("latest", columns=["offset", "headers"])
            with pytest.raises(warmlog.UnreadableBatch, match="offset 0"):
                await anext(arrow)
            assert client.positions() == {"t-0": 1}
            assert [each.column("offset").to_pylist() async for each in arrow] == [[1], [2]]


@pytest.mark.parametrize("is_handed_over", [True, False])
async def test_damage_that_is_not_there_when_the_batch_is_fetched_again_is_none(is_handed_over: bool) -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 2, 2, 2)
        stored = broker.topics[TOPIC][0].batches
        offset, data = stored[1]
        stored[1] = offset, data[:-1] + bytes([data[-1] ^ 1])

        def repair(asked: FetchPartition) -> NotLeaderOrFollower | None:
            if asked.max_bytes > 1 or stored[1] == (offset, data):
                return None
            stored[1] = offset, data
            return NotLeaderOrFollower("another one leads now") if is_handed_over else None

        broker.fetch_error = repair
        async with consumer(broker) as client:
            assert await values_until(client) == numbers(range(6))
            assert stored[1] == (offset, data), "it has read the damaged one"


async def test_damage_that_the_broker_tells_of_can_be_passed() -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, *[10] * 10)
        broker.fetch_error = lambda asked: CorruptBatch("position 77") if 30 <= asked.fetch_offset < 60 else None
        del broker.topics[TOPIC][0].batches[3:6]
        async with consumer(broker, partition_max_bytes=100) as client:
            seen: list[int] = []
            errors = []
            batches = client.batches("latest")
            while True:
                try:
                    seen += (await anext(batches)).offsets
                except warmlog.UnreadableBatch as error:
                    errors.append(error)
                except StopAsyncIteration:
                    break
            assert seen == [*range(30), *range(60, 100)]
            assert [(error.base_offset, error.next_offset) for error in errors] == [(30, 60)]
            assert "position 77" in str(errors[0])


async def test_where_the_broker_says_how_far_damage_reaches_nothing_is_searched_for() -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, *[10] * 10)
        del broker.topics[TOPIC][0].batches[3:6]
        asked: list[int] = []

        def lost(partition: FetchPartition) -> CorruptBatch | None:
            asked.append(partition.fetch_offset)
            return CorruptBatch("position 77") if 30 <= partition.fetch_offset < 60 else None

        broker.fetch_error = lost
        broker.next_offset = lambda partition: 60 if 30 <= partition.fetch_offset < 60 else -1
        async with consumer(broker, partition_max_bytes=100) as client:
            for read in (client.batches, client.arrow):
                client.seek(TOPIC, 0, 25)
                asked.clear()
                items = read("latest")
                await anext(items)
                with pytest.raises(warmlog.UnreadableBatch, match="t-0, offsets 30 to 59: position 77") as caught:
                    await anext(items)
                assert (caught.value.base_offset, caught.value.next_offset) == (30, 60)
                assert client.position(TOPIC, 0) == 60
                assert len([item async for item in items]) > 0
                assert asked.count(30) == 1
                assert not [offset for offset in asked if 30 < offset < 60]


async def test_a_range_that_an_end_does_not_reach_is_not_told_and_one_that_begins_before_it_is() -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, *[10] * 5)
        del broker.topics[TOPIC][0].batches[2:3]
        broker.fetch_error = lambda asked: CorruptBatch("lost") if 20 <= asked.fetch_offset < 30 else None
        broker.next_offset = lambda asked: 30 if 20 <= asked.fetch_offset < 30 else -1
        async with consumer(broker, partition_max_bytes=100) as client:
            assert await values_until(client, 20) == numbers(range(20))
            with pytest.raises(warmlog.UnreadableBatch, match="offsets 20 to 29"):
                await values_until(client, 25)
            assert await values_until(client, 25) == []
            assert await values_until(client, 50) == numbers(range(30, 50))


async def test_a_gap_up_to_the_end_ends_the_reading_of_what_is_there() -> None:
    async with FakeBroker(t=2) as broker:
        for partition in range(2):
            fill(broker, partition, *[10] * 5)
            del broker.topics[TOPIC][partition].batches[2:]
        broker.next_offset = lambda asked: 50 if asked.fetch_offset >= 20 else -1
        async with consumer(broker) as client:
            assert len(await values_until(client)) == 40
            assert [client.position(TOPIC, partition) for partition in range(2)] == [50, 50]
            fill(broker, 0, 3)
            assert await values_until(client) == numbers(range(50, 53))
            client.seek(TOPIC, 1, 30)
            assert await values_until(client, {(TOPIC, 0): 53, (TOPIC, 1): 40}) == []


async def test_a_record_read_one_by_one_before_a_gap_is_not_lost_to_whoever_reads_on() -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, 10, 10)
        del broker.topics[TOPIC][0].batches[1:]
        broker.next_offset = lambda asked: 20 if asked.fetch_offset >= 10 else -1
        async with consumer(broker) as client:
            records = client.records("latest")
            assert [(await anext(records)).offset for _ in range(4)] == [0, 1, 2, 3]
            await asyncio.sleep(0.1)
            assert client.position(TOPIC, 0) == 4
            await records.aclose()
            assert await values_until(client) == numbers(range(4, 10))
            assert client.position(TOPIC, 0) == 20


async def test_a_retriable_error_is_tried_again_and_raised_in_the_end() -> None:
    async with FakeBroker(t=1) as broker, consumer(broker, unavailable_timeout_ms=300) as client:
        fill(broker, 0, 3)
        broker.fetch_error = lambda _: StorageError("the disk is gone")
        with pytest.raises(warmlog.StorageError, match="the disk is gone"):
            await asyncio.wait_for(anext(client.batches()), 25)
        broker.fetch_error = lambda _: None
        assert (await asyncio.wait_for(anext(client.batches()), 25)).values == numbers(range(3))
        await broker.stop()
        with pytest.raises(warmlog.BrokerUnavailable):
            await asyncio.wait_for(anext(client.batches()), 25)
        await broker.start()


async def test_a_topic_that_was_deleted_is_an_error_and_not_a_wait() -> None:
    async with FakeBroker(t=1, other=1) as broker:
        async with consumer(broker) as client:
            waiting = asyncio.ensure_future(anext(client.batches()))
            await asyncio.sleep(0.02)
            broker.topics.pop(TOPIC)
            broker.disconnect()
            with pytest.raises(warmlog.UnknownTopicOrPartition, match="does not exist"):
                await asyncio.wait_for(waiting, 25)
        async with consumer(broker, topics=["other"]) as client:
            broker.fetch_error = lambda _: UnknownTopicId("made anew")
            with pytest.raises(warmlog.UnknownTopicId):
                await asyncio.wait_for(anext(client.batches()), 25)


async def test_it_fetches_ahead_but_no_more_than_it_may() -> None:
    async with FakeBroker(t=4) as broker:
        for partition in range(4):
            fill(broker, partition, *[100] * 50)
        size = len(broker.topics[TOPIC][0].batches[0][1])
        options = {"partition_max_bytes": 4 * size, "prefetch_bytes": 10 * size}
        async with consumer(broker, **options) as client:
            await anext(client.batches())
            await asyncio.sleep(0.1)
            assert client._core is not None
            buffered = sum(reader.buffered_bytes for reader in client._core.readers.values())
            assert 4 * size <= buffered <= 14 * size
            assert len(await values_until(client)) == 4 * 5000 - 100


async def test_partitions_that_have_reached_their_end_keep_no_room_from_others() -> None:
    async with FakeBroker(t=3) as broker:
        for partition in range(3):
            fill(broker, partition, *[100] * 20)
        size = len(broker.topics[TOPIC][0].batches[0][1])
        async with consumer(broker, partition_max_bytes=4 * size, prefetch_bytes=8 * size) as client:
            until = {(TOPIC, 0): 150, (TOPIC, 1): 250, (TOPIC, 2): 2000}
            assert len(await asyncio.wait_for(values_until(client, until), 25)) == 2400


async def test_a_reader_that_never_waits_lets_the_fetcher_work() -> None:
    async with FakeBroker(t=1) as broker:
        fill(broker, 0, *[10] * 200)
        async with consumer(broker, partition_max_bytes=2000) as client:
            assert len(await asyncio.wait_for(values_until(client), 25)) == 2000


async def test_a_bug_in_the_fetcher_is_raised_and_hangs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeBroker(t=1) as broker, consumer(broker) as client:
        waiting = asyncio.ensure_future(anext(client.batches()))
        await asyncio.sleep(0.02)
        monkeypatch.setattr("warmlog.consumer.fetcher.FetchRequest", None)
        with pytest.raises(warmlog.ClientError, match="fetcher failed"):
            await asyncio.wait_for(waiting, 25)
        with pytest.raises(warmlog.ClientClosed, match="has failed"):
            await asyncio.wait_for(anext(client.batches()), 25)


async def test_a_mapping_of_starts_leaves_the_other_partitions_at_their_beginning() -> None:
    async with FakeBroker(t=2) as broker:
        fill(broker, 0, 5)
        fill(broker, 1, 5, 5)
        broker.topics[TOPIC][1].log_start_offset = 5
        async with consumer(broker, start={(TOPIC, 0): 3}) as client:
            assert [client.position(TOPIC, partition) for partition in (0, 1)] == [3, 5]


async def test_waiting_can_be_cancelled() -> None:
    async with FakeBroker(t=1) as broker, consumer(broker) as client:
        batches = client.batches()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(batches), 0.05)
        fill(broker, 0, 2)
        assert (await asyncio.wait_for(anext(batches), 25)).values == [b"0", b"1"]


async def test_use_before_start_and_after_close_is_a_clear_error() -> None:
    async with FakeBroker(t=1) as broker:
        client = consumer(broker)
        with pytest.raises(warmlog.ClientClosed, match="not started"):
            client.batches()
        await client.start()
        await client.close()
        await client.close()
        with pytest.raises(warmlog.ClientClosed, match="closed"):
            client.position(TOPIC, 0)
        assert broker.connections == 0
        assert [task for task in asyncio.all_tasks() if "warmlog" in task.get_name()] == []


@pytest.mark.parametrize("kind", ["records", "batches", "arrow"])
async def test_nothing_is_delivered_after_close_of_what_was_fetched_ahead(kind: str) -> None:
    pytest.importorskip("pyarrow")
    async with FakeBroker(t=2) as broker:
        fill(broker, 0, 3, 3, 3)
        fill(broker, 1, 3)
        client = await consumer(broker).start()
        items = getattr(client, kind)()
        await anext(items)
        await client.close()
        with pytest.raises(warmlog.ClientClosed, match="closed"):
            await anext(items)
