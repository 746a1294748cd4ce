"""Produce, as a real broker answers it."""

from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from waiting import wait_until
from warmlog_protocol import messages as m
from warmlog_protocol.batch import iter_batches
from wire_client import WireClient, batch_of

BROKER_SETTINGS = {"flush_ms": 20}


@pytest.fixture
def topic(client: WireClient) -> str:
    name = f"t{uuid4().hex}"
    client.create_topic(name, partitions=3)
    return name


def values_in(client: WireClient, topic: str, partition: int = 0) -> list[bytes | None]:
    _, payload = client.fetch(topic, 0, partition=partition, max_wait_ms=5000)
    return [value for batch in iter_batches(payload) for value in batch.values()]


@pytest.mark.parametrize("acks", [-1, 1])
def test_an_answer_says_where_the_batch_lies(client: WireClient, topic: str, acks: int) -> None:
    first = client.produce(topic, batch_of([b"a", b"b"]), acks=acks)
    second = client.produce(topic, batch_of([b"c"]), acks=acks)
    assert (first.base_offset, second.base_offset) == (0, 2)
    assert first.log_append_time_ms == -1
    assert first.log_start_offset == 0


def test_with_acks_all_the_batch_can_be_read_when_the_answer_comes(client: WireClient, topic: str) -> None:
    client.produce(topic, batch_of([b"a"]))
    result, payload = client.fetch(topic, 0)
    assert result.high_watermark == 1
    assert [batch.values() for batch in iter_batches(payload)] == [[b"a"]]


@pytest.mark.parametrize("acks", [0, 1])
def test_without_acks_all_a_batch_is_flushed_within_flush_ms(client: WireClient, topic: str, acks: int) -> None:
    correlation_id = client.send_produce(topic, batch_of([b"a"]), acks=acks)
    if acks:
        client.produced(correlation_id)
    assert values_in(client, topic) == [b"a"]


def test_acks_0_is_not_answered(client: WireClient, topic: str) -> None:
    client.send_produce(topic, batch_of([b"a"]), acks=0)
    answered = client.send_produce(topic, batch_of([b"b"]))
    assert client.produced(answered).base_offset == 1
    assert not client._answers


def test_an_error_with_acks_0_closes_the_connection(client: WireClient) -> None:
    client.send_produce("no-such-topic", batch_of([b"a"]), acks=0)
    client.wait_for_end()


def test_one_request_may_carry_a_batch_for_each_of_many_partitions(client: WireClient, topic: str) -> None:
    batches = [batch_of([b"%d" % number] * (number + 1)) for number in range(3)]
    wanted = [m.ProducePartition(topic, number, len(batch)) for number, batch in enumerate(batches)]
    wanted.append(m.ProducePartition("no-such-topic", 0, len(batches[0])))
    message = m.ProduceRequest(-1, 10_000, wanted)
    response, _ = client.receive(client.send(message, b"".join([*batches, batches[0]])))
    results = cast("m.ProduceResponse", response).partitions
    assert [(result.partition, result.error_code, result.base_offset) for result in results[:3]] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    assert results[3].error_code == warmlog.UnknownTopicOrPartition.code
    for number in range(3):
        assert values_in(client, topic, number) == [b"%d" % number] * (number + 1)


def test_requests_of_a_connection_are_executed_in_order(client: WireClient, topic: str) -> None:
    ids = [client.send_produce(topic, batch_of([b"%03d" % number])) for number in range(200)]
    offsets = [client.produced(correlation_id).base_offset for correlation_id in ids]
    assert offsets == list(range(200))
    assert values_in(client, topic) == [b"%03d" % number for number in range(200)]


@pytest.mark.parametrize(("name", "partition"), [("no-such-topic", 0), (None, 3), (None, -1)])
def test_an_unknown_topic_partition_is_named(client: WireClient, topic: str, name: str | None, partition: int) -> None:
    with pytest.raises(warmlog.UnknownTopicOrPartition, match=name or topic):
        client.produce(name or topic, batch_of([b"a"]), partition=partition)


def test_a_batch_with_a_wrong_crc_is_refused_and_nothing_is_appended(client: WireClient, topic: str) -> None:
    batch = bytearray(batch_of([b"a"]))
    batch[-1] ^= 1
    with pytest.raises(warmlog.CorruptBatch, match="CRC"):
        client.produce(topic, bytes(batch))
    assert client.produce(topic, batch_of([b"b"])).base_offset == 0


def test_a_batch_over_the_limit_is_refused(client: WireClient) -> None:
    name = f"t{uuid4().hex}"
    client.create_topic(name, max_message_bytes="1000")
    with pytest.raises(warmlog.MessageTooLarge, match=r"max\.message\.bytes"):
        client.produce(name, batch_of([b"x" * 2000]))
    assert client.produce(name, batch_of([b"x" * 100])).base_offset == 0


def test_a_request_that_does_not_add_up_is_refused_as_a_whole(client: WireClient, topic: str) -> None:
    batch = batch_of([b"a"])
    twice = [m.ProducePartition(topic, 0, len(batch)), m.ProducePartition(topic, 0, len(batch))]
    negative = [m.ProducePartition(topic, 0, len(batch) + 5), m.ProducePartition(topic, 1, -5)]
    short = [m.ProducePartition(topic, 0, len(batch) - 1)]
    for partitions, payload in ((twice, batch + batch), (negative, batch), (short, batch)):
        with pytest.raises(warmlog.InvalidRequest):
            client.call(m.ProduceRequest(-1, 1000, partitions), payload)
    not_transactional = m.ProduceRequest(-1, 1000, [m.ProducePartition(topic, 0, len(batch))], "tx")
    with pytest.raises(warmlog.InvalidTxnState, match="not transactional"):
        client.produced(client.send(not_transactional, batch))
    assert client.produce(topic, batch).base_offset == 0


def test_acks_is_all_one_or_none(client: WireClient, topic: str) -> None:
    with pytest.raises(warmlog.InvalidRequiredAcks):
        client.produce(topic, batch_of([b"a"]), acks=2)


def test_a_batch_that_is_sent_again_is_not_appended_again(client: WireClient, topic: str) -> None:
    producer = client.producer_id()
    batches = [batch_of([b"a", b"b"], producer=producer, base_sequence=2 * number) for number in range(7)]
    offsets = [client.produce(topic, batch).base_offset for batch in batches]
    assert offsets == [0, 2, 4, 6, 8, 10, 12]
    assert [client.produce(topic, batch).base_offset for batch in batches[2:]] == offsets[2:]
    assert client.produce(topic, batches[0]).base_offset == 0
    assert client.produce(topic, batch_of([b"c"], producer=producer, base_sequence=14)).base_offset == 14


def test_a_batch_sent_twice_at_once_is_answered_twice_with_the_same_offset(client: WireClient, topic: str) -> None:
    producer = client.producer_id()
    first = batch_of([b"a"], producer=producer, base_sequence=0)
    second = batch_of([b"b"], producer=producer, base_sequence=1)
    ids = [client.send_produce(topic, batch) for batch in (first, second, first, second)]
    assert [client.produced(correlation_id).base_offset for correlation_id in ids] == [0, 1, 0, 1]


def test_a_gap_in_the_sequence_is_refused(client: WireClient, topic: str) -> None:
    producer = client.producer_id()
    client.produce(topic, batch_of([b"a"], producer=producer, base_sequence=0))
    with pytest.raises(warmlog.OutOfOrderSequence):
        client.produce(topic, batch_of([b"c"], producer=producer, base_sequence=2))


@pytest.mark.parametrize("acks", [0, 1])
def test_an_idempotent_producer_needs_acks_all(client: WireClient, topic: str, acks: int) -> None:
    batch = batch_of([b"a"], producer=client.producer_id(), base_sequence=0)
    correlation_id = client.send_produce(topic, batch, acks=acks)
    if acks:
        with pytest.raises(warmlog.InvalidRequiredAcks):
            client.produced(correlation_id)
    else:
        client.wait_for_end()


def test_a_producer_id_that_was_never_given_out_is_refused(client: WireClient, topic: str) -> None:
    with pytest.raises(warmlog.UnknownProducerId):
        client.produce(topic, batch_of([b"a"], producer=(1 << 40, 0), base_sequence=0))


def test_every_producer_gets_another_id(client: WireClient) -> None:
    ids = [client.producer_id() for _ in range(20)]
    assert len({producer_id for producer_id, _ in ids}) == 20
    assert {epoch for _, epoch in ids} == {0}


def test_a_higher_epoch_fences_the_one_before(client: WireClient, topic: str) -> None:
    producer_id, epoch = client.producer_id()
    client.produce(topic, batch_of([b"a"], producer=(producer_id, epoch), base_sequence=0))
    request = m.InitProducerIdRequest(producer_id=producer_id, producer_epoch=epoch)
    raised = cast("m.InitProducerIdResponse", client.call(request))
    assert raised == client.call(request)
    assert (raised.producer_id, raised.producer_epoch) == (producer_id, epoch + 1)
    client.produce(topic, batch_of([b"b"], producer=(producer_id, epoch + 1), base_sequence=0))
    with pytest.raises(warmlog.InvalidProducerEpoch):
        client.produce(topic, batch_of([b"c"], producer=(producer_id, epoch), base_sequence=1))
    with pytest.raises(warmlog.InvalidProducerEpoch):
        client.call(request)


def test_an_epoch_for_an_id_that_was_never_given_out_is_refused(client: WireClient) -> None:
    with pytest.raises(warmlog.UnknownProducerId):
        client.call(m.InitProducerIdRequest(producer_id=1 << 40, producer_epoch=0))
    with pytest.raises(warmlog.InvalidTransactionTimeout):
        client.call(m.InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=0))


def test_a_producer_whose_epochs_are_used_up_gets_a_new_id(client: WireClient) -> None:
    producer_id, _ = client.producer_id()
    response = cast(
        "m.InitProducerIdResponse", client.call(m.InitProducerIdRequest(producer_id=producer_id, producer_epoch=32766))
    )
    assert response.producer_id != producer_id
    assert response.producer_epoch == 0


def test_with_write_caching_so_many_records_begin_a_flush_and_move_the_recovery_point(tmp_path: Path) -> None:
    checkpoint = tmp_path / "data" / "recovery-point-offset-checkpoint"
    with BrokerProcess(tmp_path / "data", environment=None) as process, WireClient(process.address) as client:
        client.create_topic("t", write_caching="true", flush_ms="86400000", flush_messages="3")
        for _ in range(3):
            client.produce("t", batch_of([b"a"]))
        wait_until(lambda: checkpoint.exists() and "t 0 3" in checkpoint.read_text().splitlines())


def test_with_write_caching_acks_all_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path / "data", write_caching=True, flush_ms=86_400_000) as process,
        WireClient(process.address) as client,
    ):
        assert "write.caching" in process.output
        client.create_topic("t")
        client.produce("t", batch_of([b"a"]))
        assert client.fetch("t", 0)[0].high_watermark == 1
