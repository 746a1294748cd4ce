"""The delivery futures of the blocking producer: what other code does with futures, and waits that are given up."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from warmlog import serializers
from warmlog.blocking import Admin, Consumer, Producer
from warmlog.errors import ClientClosed, DeliveryTimeout, MessageTooLarge
from warmlog.testing import EmbeddedBroker, embedded


@contextmanager
def broker_with_topic() -> Iterator[EmbeddedBroker]:
    with embedded() as broker, Admin(broker.address) as admin:
        admin.create_topic("t")
        yield broker


@pytest.fixture(scope="module")
def shared() -> Iterator[EmbeddedBroker]:
    with broker_with_topic() as broker:
        yield broker


def test_a_wait_that_times_out_loses_no_record() -> None:
    with broker_with_topic() as broker:
        with Producer(broker.address, buffer_bytes=64 * 1024, high_water_bytes=16 * 1024) as producer:
            producer.send("t", b"first").result()
            broker.kill()
            sent = [producer.send("t", b"%d" % number + bytes(1000)) for number in range(500)]
            with pytest.raises(TimeoutError):
                sent[-1].result(0.3)
            broker.start()
            later = producer.send("t", b"later")
            assert later.result(40).offset == 501
            assert [one.result(0).offset for one in sent] == list(range(1, 501))
        with Consumer(broker.address, topics=["t"]) as consumer:
            assert sum(1 for _ in consumer.records(until="latest")) == 502


def test_a_look_at_a_record_does_not_wait(shared: EmbeddedBroker) -> None:
    with Producer(shared.address, linger_ms=60_000) as producer:
        sent = producer.send("t", b"x")
        begun = time.monotonic()
        with suppress(TimeoutError):
            sent.result(0)
        assert time.monotonic() - begun < 20


def test_large_records_wait_for_room(shared: EmbeddedBroker) -> None:
    with Producer(shared.address, buffer_bytes=1 << 20) as producer:
        sent = [producer.send("t", bytes(600_000)) for _ in range(6)]
        first = sent[0].result(40).offset
        assert [one.result(40).offset for one in sent] == list(range(first, first + 6))


def test_what_a_serializer_makes_of_an_object_does_not_change_with_it_after_send(shared: EmbeddedBroker) -> None:
    with Producer(shared.address, value_serializer=serializers.json, key_serializer=serializers.json) as producer:
        row = {"n": 0}
        first = producer.send("t", row, key=row).result().offset
        for row["n"] in range(1, 1000):
            producer.send("t", row, key=row)
    with Consumer(shared.address, topics=["t"], start=first) as consumer:
        expected = [b'{"n":%d}' % number for number in range(1000)]
        read = list(consumer.records(until="latest"))
    assert [record.value for record in read] == [record.key for record in read] == expected


@pytest.mark.parametrize(
    ("options", "value", "headers"),
    [({"value_serializer": bytes}, 100_000, None), ({}, b"", {"trace": bytes(100_000)})],
    ids=["serialized values", "headers"],
)
def test_the_memory_for_what_waits_is_bounded(options: dict[str, Any], value: Any, headers: Any) -> None:
    with broker_with_topic() as broker, Producer(broker.address, buffer_bytes=1 << 20, **options) as producer:
        producer.send("t", b"first").result()
        broker.kill()
        sent: list[Any] = []
        sender = threading.Thread(
            target=lambda: sent.extend(producer.send("t", value, headers=headers) for _ in range(400))
        )
        sender.start()
        sender.join(0.5)
        assert sender.is_alive()  # 40 MB do not fit
        broker.start()
        sender.join(40)
        assert sent[-1].result(40).offset == 400


def test_a_serializer_that_fails_is_told_by_send(shared: EmbeddedBroker) -> None:
    with Producer(shared.address, value_serializer=serializers.json) as producer:
        with pytest.raises(TypeError, match="type object"):
            producer.send("t", object())
        producer.send("t", {}).result()


def test_the_futures_module_waits_for_them(shared: EmbeddedBroker) -> None:
    with Producer(shared.address) as producer:
        sent = [producer.send("t", b"x") for _ in range(100)]
        done, not_done = concurrent.futures.wait(sent, timeout=40)
        assert (len(done), len(not_done)) == (100, 0)
        again = [producer.send("t", b"x") for _ in range(100)]
        offsets = [one.result().offset for one in concurrent.futures.as_completed(again, timeout=40)]
        assert sorted(offsets) == list(range(min(offsets), min(offsets) + 100))
        refused = producer.send("t", bytes(5_000_000))
        assert concurrent.futures.wait([refused], timeout=40).done == {refused}
        assert isinstance(refused.exception(), MessageTooLarge)


async def test_asyncio_awaits_them(shared: EmbeddedBroker) -> None:
    with Producer(shared.address) as producer:
        metadata = await asyncio.wait_for(asyncio.wrap_future(producer.send("t", b"x")), 40)
        assert metadata.topic == "t"
        with pytest.raises(MessageTooLarge):
            await asyncio.wrap_future(producer.send("t", bytes(5_000_000)))
        producer.flush()


def test_an_error_that_was_only_waited_for_is_raised_by_flush(shared: EmbeddedBroker) -> None:
    with Producer(shared.address) as producer:
        concurrent.futures.wait([producer.send("t", bytes(5_000_000))])
        with pytest.raises(MessageTooLarge):
            producer.flush()


def test_callbacks_are_called_once_with_the_future(shared: EmbeddedBroker) -> None:
    called: list[object] = []
    with Producer(shared.address) as producer:
        sent = producer.send("t", b"x")
        sent.add_done_callback(called.append)
        sent.result()
        concurrent.futures.wait([sent], timeout=40)
        sent.add_done_callback(called.append)
        producer.flush()
    sent.add_done_callback(called.append)
    assert called == [sent, sent, sent]


def test_a_callback_may_send_more_than_there_is_room_for(shared: EmbeddedBroker) -> None:
    producer = Producer(shared.address).start()
    sent: list[Any] = []
    has_sent = threading.Event()

    def send_more(_: Any) -> None:
        sent.extend(producer.send("t", bytes(500_000)) for _ in range(20))
        has_sent.set()

    producer.send("t", b"one").add_done_callback(send_more)
    assert has_sent.wait(40)
    assert len({one.result(40).offset for one in sent}) == 20
    producer.close()


def test_callbacks_are_called_while_the_program_sends_without_a_pause(shared: EmbeddedBroker) -> None:
    called: list[Any] = []
    with Producer(shared.address) as producer:
        for _ in range(15_000):
            producer.send("t", bytes(20_000)).add_done_callback(called.append)
        assert len(called) > 10_000


def test_a_callback_cannot_close_the_producer_and_costs_no_record(shared: EmbeddedBroker) -> None:
    errors: list[Exception] = []
    with Producer(shared.address) as producer:

        def close(_: Any) -> None:
            try:
                producer.close()
            except RuntimeError as error:
                errors.append(error)

        producer.send("t", b"one").add_done_callback(close)
        producer.flush()
        assert producer.send("t", b"two").result(40).topic == "t"
    assert "hand over to another thread" in str(errors[0])


def test_a_record_cannot_be_taken_back(shared: EmbeddedBroker) -> None:
    with Producer(shared.address) as producer:
        sent = producer.send("t", b"x")
        assert not sent.cancel()
        assert not sent.cancelled()
        assert sent.result().offset >= 0
        assert sent.done()
        assert not sent.running()


def test_a_send_beside_a_close_is_delivered_or_refused(shared: EmbeddedBroker) -> None:
    for _ in range(20):
        producer = Producer(shared.address).start()

        def send(using: Producer = producer) -> None:
            with suppress(ClientClosed):
                while True:
                    sent = using.send("t", b"x")
                    assert isinstance(sent.exception(40), ClientClosed | None)

        with ThreadPoolExecutor(2) as pool:
            sending = [pool.submit(send) for _ in range(2)]
            with suppress(ClientClosed):  # of a record that came too late, if its sender has not looked yet
                producer.close()
            for one in sending:
                one.result(40)


def test_a_record_that_a_close_has_sent_is_not_refused(shared: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(shared.address).start()
    thread = producer._running()
    plain = thread.soon

    def close_first(callback: Any) -> None:
        monkeypatch.setattr(thread, "soon", plain)
        producer.close()
        plain(callback)

    monkeypatch.setattr(thread, "soon", close_first)
    assert producer.send("t", b"last").result().offset >= 0


def test_a_wait_for_futures_beside_a_close_ends(shared: EmbeddedBroker) -> None:
    def send(using: Producer) -> int:
        not_done = 0
        with suppress(ClientClosed):
            while not not_done:
                not_done = len(concurrent.futures.wait([using.send("t", b"x")], timeout=40).not_done)
        return not_done

    for number in range(30):
        producer = Producer(shared.address).start()
        with ThreadPoolExecutor(6) as pool:
            sending = [pool.submit(send, producer) for _ in range(6)]
            time.sleep(number / 1000)
            with suppress(ClientClosed):
                producer.close()
            assert [one.result(40) for one in sending] == [0] * 6


@contextmanager
def senders(producer: Producer, errors: list[Exception]) -> Iterator[None]:
    """Two threads that send without a pause until the block ends or a `send` fails."""
    has_ended = threading.Event()

    def send() -> None:
        try:
            while not has_ended.is_set():
                producer.send("t", bytes(1000))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        has_ended.set()
        for thread in threads:
            thread.join(40)
        assert not any(thread.is_alive() for thread in threads)


def test_records_are_acknowledged_while_other_threads_send_without_a_pause(shared: EmbeddedBroker) -> None:
    errors: list[Exception] = []
    with Producer(shared.address) as producer, senders(producer, errors):
        for _ in range(3):
            assert producer.send("t", b"mine").result(40).topic == "t"
        producer.flush()
    assert errors == []


def test_close_ends_while_other_threads_send_to_a_broker_that_is_away() -> None:
    errors: list[Exception] = []
    with broker_with_topic() as broker:
        producer = Producer(broker.address, delivery_timeout_ms=3000, buffer_bytes=64 * 1024 * 1024).start()
        producer.send("t", b"first").result()
        broker.kill()
        with senders(producer, errors):
            time.sleep(0.5)  # until they wait for room
            with pytest.raises(DeliveryTimeout):
                producer.close()
    assert [type(error) for error in errors] == [ClientClosed, ClientClosed]


@pytest.mark.parametrize("topic", [5, None, b"t"])
def test_a_topic_that_is_no_text_does_not_reach_the_broker(shared: EmbeddedBroker, topic: Any) -> None:
    with Producer(shared.address) as producer:
        for wrong in (producer.send(topic, b"x").result, lambda: producer.send_many(topic, [b"x"])):
            with pytest.raises(TypeError, match=r"^a topic's name must be a str, not "):
                wrong()


def test_headers_and_values_that_are_no_collection_are_named(shared: EmbeddedBroker) -> None:
    wrong: Any = 5
    with Producer(shared.address) as producer:
        with pytest.raises(TypeError, match=r"^headers must be pairs of a name .*, not 5$"):
            producer.send("t", b"x", headers=wrong)
        with pytest.raises(TypeError, match=r"^a list of values expected, not one int$"):
            producer.send_many("t", wrong)
