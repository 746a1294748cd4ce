"""What a user of Producer sees, against a broker in memory."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker, Fault
from warmlog.producer.delivery import RecordMetadataRanges
from warmlog.producer.transaction import TransactionalId
from warmlog_protocol.codec.compression import Codec
from warmlog_protocol.messages import OffsetCommitPartition, OffsetCommitRequest, OffsetCommitResponse

pytestmark = pytest.mark.usefixtures("quick_clock")

TOPIC = "t"


def producer(broker: FakeBroker, **options: Any) -> warmlog.Producer:
    return warmlog.Producer(broker.address, **{"retry_backoff_ms": 5, "linger_ms": 2, **options})


async def test_an_awaited_record_says_where_it_lies() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        before_ms = time.time_ns() // 1_000_000
        first = await client.send(TOPIC, b"a")
        second = await client.send(TOPIC, b"b", timestamp_ms=123)
        assert (first.topic, first.partition, first.offset) == (TOPIC, 0, 0)
        assert before_ms <= first.timestamp_ms <= time.time_ns() // 1_000_000
        assert second == warmlog.RecordMetadata(TOPIC, 0, 1, 123)
        assert broker.topics[TOPIC][0].values() == [b"a", b"b"]


async def test_an_error_that_nobody_expected_fails_what_waits_for_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **_options: Any) -> None:
        raise RuntimeError("a bug")

    async with FakeBroker(t=1) as broker, asyncio.timeout(25), producer(broker) as client:
        with monkeypatch.context() as patch:
            patch.setattr("warmlog_transport.cluster.Cluster.topics", broken)
            with pytest.raises(warmlog.ClientError, match=r"t: RuntimeError\('a bug'\)"):
                await client.send(TOPIC, b"a")
        assert (await client.send(TOPIC, b"b")).offset == 0


async def test_records_carry_key_headers_and_time() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        client.send(TOPIC, b"plain")
        client.send(TOPIC, bytearray(b"v"), key=memoryview(b"k"), headers=[("h", b"1"), ("n", None)], timestamp_ms=9)
        client.send(TOPIC, None, key=b"k", headers={"m": b"2"})
        client.send(TOPIC, b"plain again")
        await client.flush()
        (batch,) = broker.topics[TOPIC][0].read_all()
        assert batch.values() == [b"plain", b"v", None, b"plain again"]
        assert batch.keys() == [None, b"k", b"k", None]
        assert [list(map(tuple, headers)) for headers in batch.headers()] == [
            [],
            [("h", b"1"), ("n", None)],
            [("m", b"2")],
            [],
        ]
        assert batch.timestamps_ms()[1] == 9
        assert batch.timestamps_ms()[0] >= 1_700_000_000_000


async def test_timestamps_are_those_of_the_sending() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, linger_ms=1000) as client:
        sent = []
        times: list[tuple[int, int]] = []
        for index in range(300):
            before = time.time_ns() // 1_000_000
            sent.append(client.send(TOPIC, b"%d" % index))
            times.append((before, time.time_ns() // 1_000_000))
            if index % 100 == 0:
                time.sleep(0.003)  # noqa: ASYNC251 - the event loop is to stand still
        placed = await asyncio.gather(*sent)
        assert [p.offset for p in placed] == list(range(300))
        assert all(low <= p.timestamp_ms <= high for p, (low, high) in zip(placed, times, strict=True))
        (batch,) = broker.topics[TOPIC][0].read_all()
        assert batch.timestamps_ms() == [p.timestamp_ms for p in placed]


async def test_keys_choose_partitions_and_records_without_a_key_change_theirs_by_batch() -> None:
    async with FakeBroker(t=3) as broker, producer(broker) as client:
        placed = [await client.send(TOPIC, b"", key=b"123456789") for _ in range(3)]
        assert {p.partition for p in placed} == {0xCBF43926 % 3}
        lone = [await client.send(TOPIC, b"") for _ in range(6)]
        assert [p.partition for p in lone[:3]] == [p.partition for p in lone[3:]]
        assert {p.partition for p in lone} == {0, 1, 2}
        assert (await client.send(TOPIC, b"", key=b"123456789", partition=2)).partition == 2


async def test_many_sends_make_few_batches() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, batch_bytes=16 * 1024) as client:
        for index in range(5000):
            client.send(TOPIC, b"%06d" % index)
            await client.drain()
        await client.flush()
        partition = broker.topics[TOPIC][0]
        assert partition.values() == [b"%06d" % index for index in range(5000)]
        assert 5 <= len(partition.batches) <= 60
        assert max(len(data) for _, data in partition.batches) <= 16 * 1024


async def test_send_many_says_where_the_records_lie() -> None:
    async with FakeBroker(t=2) as broker, producer(broker, batch_bytes=2000) as client:
        values = [b"%04d" % index for index in range(1000)]
        placed = await client.send_many(TOPIC, values, partition=1, timestamps_ms=77)
        assert placed == RecordMetadataRanges(TOPIC, 1000, {1: [range(1000)]})
        assert broker.topics[TOPIC][1].values() == values
        assert {t for batch in broker.topics[TOPIC][1].read_all() for t in batch.timestamps_ms()} == {77}


async def test_send_many_with_keys_keeps_the_order_of_each_key() -> None:
    async with FakeBroker(t=3) as broker, producer(broker, batch_bytes=500) as client:
        keys = [b"k%d" % (index % 7) for index in range(500)]
        values = [b"%d" % index for index in range(500)]
        placed = await client.send_many(TOPIC, values, keys=keys)
        assert placed.count == 500
        assert sum(len(found) for ranges in placed.ranges.values() for found in ranges) == 500
        for partition in broker.topics[TOPIC]:
            numbers = [int(value or b"") for value in partition.values()]
            assert numbers == sorted(numbers)


async def test_send_many_comes_after_what_was_sent_before() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, linger_ms=1000) as client:
        client.send(TOPIC, b"1")
        await client.send_many(TOPIC, [b"2", b"3"])
        assert broker.topics[TOPIC][0].values() == [b"1", b"2", b"3"]
        assert (await client.send_many(TOPIC, [])).count == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_batches_are_compressed_by_name(codec: str) -> None:
    async with FakeBroker(t=1) as broker, producer(broker, compression=codec) as client:
        await client.send_many(TOPIC, [b"x" * 1000] * 10)
        (batch,) = broker.topics[TOPIC][0].read_all()
        assert batch.header.codec is Codec.from_name(codec)
        assert batch.size_bytes < 2000
        assert batch.values() == [b"x" * 1000] * 10


async def test_text_is_refused_at_once() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        with pytest.raises(TypeError, match=r"value must be bytes.*not str.*encode"):
            client.send(TOPIC, "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="key must be bytes"):
            client.send(TOPIC, b"", key="text")  # type: ignore[arg-type]
        for wrong in ("ab", [("a",)], ["a=b"], [("a", b"", b"")]):
            with pytest.raises(TypeError, match="headers must be pairs of a name and bytes or None"):
                client.send(TOPIC, b"", headers=wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="timestamp_ms must be an int, not bool"):
            client.send(TOPIC, b"", timestamp_ms=True)
        with pytest.raises(TypeError, match="header's name must be str"):
            client.send(TOPIC, b"", headers=[(b"h", b"")])  # type: ignore[list-item]
        with pytest.raises(
            TypeError, match=r"value of header 'h' must be bytes.*; encode it first, with \.encode\(\)$"
        ):
            client.send(TOPIC, b"", headers={"h": "text"})  # type: ignore[dict-item]
        with pytest.raises(ValueError, match="timestamp_ms"):
            client.send(TOPIC, b"", timestamp_ms=-1)


async def test_a_topic_or_partition_that_does_not_exist_is_named() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        with pytest.raises(
            warmlog.UnknownTopicOrPartition, match=r"topic 'nowhere' does not exist; .*create` or Admin"
        ):
            await client.send("nowhere", b"")
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="topic 'nowhere' does not exist"):
            await client.send_many("nowhere", [b""])
        await client.send(TOPIC, b"")
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="has partition 0, not 5"):
            client.send(TOPIC, b"", partition=5)
        broker.topics["nowhere"] = broker.topics[TOPIC]
        assert (await client.send("nowhere", b"")).topic == "nowhere"


async def test_errors_that_nobody_awaited_are_raised_once_by_the_next_drain_flush_or_close() -> None:
    async with FakeBroker(t=1) as broker:
        client = producer(broker)
        await client.start()
        await client.send(TOPIC, b"")
        for wait in (client.drain, client.flush, client.close):
            broker.faults.append(Fault.TOO_LARGE)
            client.send(TOPIC, b"lost")
            await asyncio.sleep(0.05)
            with pytest.raises(warmlog.MessageTooLarge, match="t-0: as ordered"):
                await wait()
            if wait != client.close:
                await wait()
        await client.close()


async def test_an_error_that_was_awaited_is_not_raised_again() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        await client.send(TOPIC, b"")
        broker.faults.append(Fault.TOO_LARGE)
        sent = client.send(TOPIC, b"lost")
        with pytest.raises(warmlog.MessageTooLarge):
            await sent
        await client.drain()
        broker.faults.append(Fault.TOO_LARGE)
        awaited, ignored = client.send(TOPIC, b"lost"), client.send(TOPIC, b"lost")
        with pytest.raises(warmlog.MessageTooLarge):
            await awaited
        with pytest.raises(warmlog.MessageTooLarge):
            await client.flush()
        with pytest.raises(warmlog.MessageTooLarge):
            await ignored


async def test_several_errors_are_one_with_notes() -> None:
    async with FakeBroker(t=2) as broker, producer(broker) as client:
        await client.send(TOPIC, b"")
        broker.faults.extend([Fault.TOO_LARGE])
        client.send(TOPIC, b"lost", partition=0)
        client.send(TOPIC, b"lost", partition=1)
        with pytest.raises(warmlog.MessageTooLarge) as caught:
            await client.flush()
        assert len(caught.value.__notes__) == 1


async def test_an_awaited_record_does_not_linger() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, linger_ms=60_000) as client:
        await asyncio.wait_for(client.send(TOPIC, b""), 25)
        client.send(TOPIC, b"")
        await asyncio.sleep(0.05)
        assert len(broker.produced) == 1
        await asyncio.wait_for(client.flush(), 25)


async def test_records_that_nobody_awaits_go_out_when_their_linger_is_over() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, linger_ms=30) as client:
        await client.send(TOPIC, b"")
        client.send(TOPIC, b"1")
        client.send(TOPIC, b"2")
        await asyncio.sleep(0.2)
        assert [batch.values() for batch in broker.topics[TOPIC][0].read_all()] == [[b""], [b"1", b"2"]]


async def test_while_five_batches_are_in_flight_the_next_one_fills_up() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, linger_ms=0) as client:
        await client.send(TOPIC, b"")
        broker.faults.extend([Fault.HOLD] * 5)
        for index in range(20):
            client.send(TOPIC, b"%d" % index)
            await asyncio.sleep(0.01)
        assert len(broker.produced) == 1 + 5
        broker.release()
        await client.flush()
        assert [len(batch.values()) for batch in broker.topics[TOPIC][0].read_all()] == [1, 1, 1, 1, 1, 1, 15]


async def test_one_request_carries_batches_of_several_partitions() -> None:
    async with FakeBroker(t=4) as broker, producer(broker, linger_ms=50) as client:
        await client.send(TOPIC, b"")
        for partition in range(4):
            client.send(TOPIC, b"x", partition=partition)
        await client.flush()
        assert sorted(part.partition for part in broker.produced[-1].partitions) == [0, 1, 2, 3]


async def test_drain_waits_while_too_much_is_not_acknowledged() -> None:
    async with FakeBroker(t=1) as broker:
        client = producer(broker, batch_bytes=1000, buffer_bytes=100_000, high_water_bytes=5000)
        async with client:
            await client.send(TOPIC, b"")
            broker.faults.extend([Fault.HOLD] * 5)

            async def send_all() -> None:
                for _ in range(200):
                    client.send(TOPIC, b"x" * 100)
                    await client.drain()

            sending = asyncio.create_task(send_all())
            await asyncio.sleep(0.1)
            assert not sending.done()
            assert client._running is not None
            assert client._running.accumulator.buffered_bytes <= 5000 + 1100
            broker.release()
            await asyncio.wait_for(sending, 25)


async def test_send_without_drain_hits_a_hard_bound_and_nothing_is_lost() -> None:
    async with FakeBroker(t=1) as broker:
        async with producer(broker, batch_bytes=1000, buffer_bytes=10_000) as client:
            accepted = 0

            def send_on() -> None:
                nonlocal accepted
                for _ in range(1000):
                    client.send(TOPIC, b"x" * 100)
                    accepted += 1

            with pytest.raises(warmlog.BufferFull, match=r"buffer_bytes=10000.*await drain"):
                send_on()
            assert 60 <= accepted <= 100
            await client.drain()
            await client.flush()
            with pytest.raises(warmlog.BufferFull):
                send_on()
        assert len(broker.topics[TOPIC][0].values()) == accepted


async def test_cancelling_one_who_waits_concerns_nobody_else() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        await client.send(TOPIC, b"")
        broker.faults.append(Fault.HOLD)
        sent = [client.send(TOPIC, b"%d" % index) for index in range(3)]
        waiting = [asyncio.ensure_future(one) for one in sent]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        await asyncio.sleep(0)
        broker.release()
        assert [(await one).offset for one in waiting[1:]] == [2, 3]
        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert (await sent[0]).offset == 1


async def test_a_cancelled_send_many_is_raised_by_the_next_flush_if_it_fails() -> None:
    async with FakeBroker(t=1) as broker, producer(broker) as client:
        await client.send(TOPIC, b"")
        broker.is_silent = True
        many = asyncio.create_task(client.send_many(TOPIC, [b"x"]))
        await asyncio.sleep(0.05)
        many.cancel()
        with pytest.raises(asyncio.CancelledError):
            await many
        broker.is_silent = False
        broker.faults.append(Fault.TOO_LARGE)
        broker.disconnect()
        with pytest.raises(warmlog.MessageTooLarge):
            await client.flush()


async def test_acks_0_is_done_when_it_is_written() -> None:
    async with FakeBroker(t=1) as broker:
        async with producer(broker, acks=0) as client:
            assert (await client.send(TOPIC, b"a")).offset == -1
            placed = await client.send_many(TOPIC, [b"b"] * 10)
            assert (placed.count, placed.ranges) == (10, {})
        for _ in range(100):
            if len(broker.topics[TOPIC][0].values()) == 11:
                break
            await asyncio.sleep(0.01)
        assert len(broker.topics[TOPIC][0].values()) == 11
        assert {request.acks for request in broker.produced} == {0}


async def test_acks_1_is_sent_without_a_producer_id() -> None:
    async with FakeBroker(t=1) as broker, producer(broker, acks=1) as client:
        assert (await client.send(TOPIC, b"a")).offset == 0
        assert broker.produced[0].acks == 1
        assert not broker.topics[TOPIC][0].read_all()[0].header.has_producer


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"acks": 2}, warmlog.InvalidRequiredAcks),
        ({"acks": 1, "idempotent": True}, warmlog.InvalidConfig),
        ({"max_in_flight": 6}, warmlog.InvalidConfig),
        ({"compression": "rar"}, warmlog.InvalidConfig),
        ({"batch_bytes": 0}, warmlog.InvalidConfig),
        ({"linger_ms": -1}, warmlog.InvalidConfig),
        ({"request_timeout_ms": "soon"}, warmlog.InvalidConfig),
        ({"colour": "red"}, TypeError),
    ],
)
def test_options_are_checked_when_the_producer_is_made(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        warmlog.Producer("127.0.0.1:1", **options)


async def test_use_before_start_and_after_close_is_a_clear_error() -> None:
    async with FakeBroker(t=1) as broker:
        client = producer(broker)
        with pytest.raises(warmlog.ClientClosed, match="not started"):
            client.send(TOPIC, b"")
        with pytest.raises(warmlog.ClientClosed, match="not started"):
            await client.drain()
        await client.start()
        await client.send(TOPIC, b"")
        await client.close()
        await client.close()
        for use in (client.drain, client.flush, client.start):
            with pytest.raises(warmlog.ClientClosed, match=r"closed|once"):
                await use()
        with pytest.raises(warmlog.ClientClosed, match="closed"):
            client.send(TOPIC, b"")
        assert broker.connections == 0


async def test_a_bug_in_the_sender_fails_everything_and_hangs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeBroker(t=1) as broker:
        client = producer(broker)
        await client.start()
        await client.send(TOPIC, b"")
        monkeypatch.setattr("warmlog.producer.sender.m.ProduceRequest", None)
        with pytest.raises(warmlog.ClientError, match="sender failed"):
            await asyncio.wait_for(client.send(TOPIC, b""), 25)
        with pytest.raises(warmlog.ClientClosed, match="has failed"):
            client.send(TOPIC, b"")
        with pytest.raises(warmlog.ClientClosed, match="has failed"):
            await asyncio.wait_for(client.close(), 25)
        assert broker.connections == 0


async def test_nothing_can_be_sent_once_close_has_begun() -> None:
    async with FakeBroker(t=1) as broker:
        client = producer(broker)
        await client.start()
        await client.send(TOPIC, b"")
        broker.faults.append(Fault.HOLD)
        last = client.send(TOPIC, b"last")
        closing = asyncio.create_task(client.close())
        while broker.faults:  # noqa: ASYNC110 - until the last record has come
            await asyncio.sleep(0)
        with pytest.raises(warmlog.ClientClosed):
            client.send(TOPIC, b"too late")
        broker.release()
        await asyncio.wait_for(closing, 25)
        assert (await last).offset == 1


@pytest.mark.parametrize("is_topic_known", [True, False])
async def test_an_event_loop_that_ends_leaves_nobody_waiting_for_what_is_unsent(is_topic_known: bool) -> None:
    async with FakeBroker(t=1) as broker:
        client = producer(broker)
        await client.start()
        if is_topic_known:
            await client.send(TOPIC, b"")
        broker.faults.append(Fault.HOLD)
        sent = client.send(TOPIC, b"")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # as asyncio.run does with all that is left
            if (task.get_name() or "").startswith("warmlog"):
                task.cancel()
        with pytest.raises(warmlog.ClientClosed):
            await asyncio.wait_for(client.close(), 25)
        with pytest.raises(warmlog.ClientClosed):
            await asyncio.wait_for(sent, 25)


async def test_start_fails_at_once_when_nobody_listens() -> None:
    with pytest.raises(warmlog.BrokerUnavailable, match=r"127\.0\.0\.1:1: .*127\.0\.0\.1:2: "):
        await asyncio.wait_for(warmlog.Producer("127.0.0.1:1,127.0.0.1:2").start(), 25)


async def test_an_error_in_the_users_block_is_not_replaced_by_one_of_closing() -> None:
    async with FakeBroker(t=1) as broker:

        async def fail() -> None:
            async with producer(broker) as client:
                client.send("nowhere", b"")
                raise KeyError("mine")

        with pytest.raises(KeyError) as caught:
            await fail()
        assert "nowhere" in caught.value.__notes__[0]


async def test_a_deleted_topic_fails_what_is_under_way_and_can_come_back() -> None:
    async with FakeBroker(t=1, other=1) as broker, producer(broker) as client:
        await client.send(TOPIC, b"")
        deleted = broker.topics.pop(TOPIC)
        with pytest.raises(warmlog.UnknownTopicOrPartition):
            await asyncio.wait_for(client.send(TOPIC, b""), 25)
        await client.send("other", b"")
        broker.topics[TOPIC] = deleted
        assert (await asyncio.wait_for(client.send(TOPIC, b""), 25)).offset == 1


async def test_a_request_that_is_repeated_comes_before_those_that_were_made_after_it() -> None:
    arrived: list[int] = []

    class Cluster:
        async def call(self, message: Any, _expected: object) -> OffsetCommitResponse:
            (part,) = message.partitions
            await asyncio.sleep(0.02 if part.offset == 1 else 0)  # its connection breaks, and it is sent again
            arrived.append(part.offset)
            return OffsetCommitResponse([])

    options: Any = SimpleNamespace(transactional_id="id", transaction_timeout_ms=1000)
    parts: Any = (Cluster(), SimpleNamespace(), SimpleNamespace(producer=(1, 0)), None)
    transactional_id = TransactionalId(options, *parts)
    transactional_id.takes_records = True
    requests = [OffsetCommitRequest("g", [OffsetCommitPartition(b"", "t", 0, offset)]) for offset in (1, 2, 3)]
    await asyncio.gather(*map(transactional_id.add_offsets, requests))
    assert arrived == [1, 2, 3]
