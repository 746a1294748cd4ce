"""Transactions over the protocol, against real brokers: commit, abort, fencing, timeouts, restarts and offsets."""

from collections.abc import Iterator
from typing import cast
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from transactional_client import TransactionalClient, committed, listed, wait_until_loaded
from waiting import wait_until
from warmlog_protocol import messages as m
from wire_client import WireClient, batch_of

BROKER_SETTINGS = {"transaction_coordinator_partitions": 2, "group_coordinator_partitions": 2}


@pytest.fixture
def topic(client: WireClient) -> str:
    name = f"t{uuid4().hex}"
    client.create_topic(name, partitions=2)
    return name


@pytest.fixture
def transactional_id() -> str:
    return f"id-{uuid4().hex}"


@pytest.fixture
def producer(broker: BrokerProcess, transactional_id: str) -> Iterator[TransactionalClient]:
    with TransactionalClient(broker.address, transactional_id) as transactional:
        yield transactional.initialise()


def test_each_decision_raises_the_epoch_once(client: WireClient, producer: TransactionalClient, topic: str) -> None:
    producer.send(topic, b"a")
    producer_id, epoch = producer.producer
    producer.commit()
    assert producer.producer == (producer_id, epoch + 1)
    producer.send(topic, b"b")
    repeated = m.EndTransactionRequest(producer.transactional_id, producer_id, epoch, commits=True)
    with pytest.raises(warmlog.InvalidTxnState):
        client.call(m.EndTransactionRequest(producer.transactional_id, producer_id, epoch, commits=False))
    client.call(repeated)
    assert committed(client, topic) == [b"a"]
    assert listed(client, producer.transactional_id).state == "ongoing"
    producer.commit()
    assert committed(client, topic) == [b"a", b"b"]


def test_a_new_producer_aborts_what_the_old_one_has_open_and_fences_it(
    broker: BrokerProcess, client: WireClient, producer: TransactionalClient, topic: str
) -> None:
    producer.send(topic, b"old")
    with TransactionalClient(broker.address, producer.transactional_id) as newer:
        newer.initialise()
        newer.send(topic, b"new")
        for partition in (0, 1):
            with pytest.raises(warmlog.ProducerFenced, match="another producer uses the transactional id"):
                producer.send(topic, b"late", partition=partition)
        with pytest.raises(warmlog.ProducerFenced):
            producer.commit()
        with pytest.raises(warmlog.ProducerFenced):
            producer.initialise()
        newer.commit()
    assert committed(client, topic) == [b"new"]
    assert committed(client, topic, 1) == []


def test_a_transaction_over_its_timeout_is_aborted_and_its_producer_may_go_on(
    broker: BrokerProcess, client: WireClient, transactional_id: str, topic: str
) -> None:
    with TransactionalClient(broker.address, transactional_id, timeout_ms=2000) as producer:
        producer.initialise().send(topic, b"late")
        wait_until(lambda: listed(client, transactional_id).state == "empty")
        with pytest.raises(warmlog.TransactionAbortable, match="longer than its timeout, 2000 ms"):
            producer.commit()
        producer.initialise().send(topic, b"again")
        producer.commit()
    assert committed(client, topic) == [b"again"]


def test_an_open_transaction_is_aborted_by_its_timeout_after_a_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("killed") / "data"
    with (
        BrokerProcess(directory, **BROKER_SETTINGS) as broker,
        WireClient(broker.address) as client,
        TransactionalClient(broker.address, "gone", timeout_ms=1000) as producer,
    ):
        client.create_topic("t")
        producer.initialise().send("t", b"hanging")
        client.produce("t", batch_of([b"behind"]))
        broker.kill()
    with BrokerProcess(directory, **BROKER_SETTINGS) as broker, WireClient(broker.address) as client:
        wait_until(lambda: committed(client, "t") == [b"behind"])


def test_an_operator_aborts_a_transaction(client: WireClient, producer: TransactionalClient, topic: str) -> None:
    producer.send(topic, b"hanging", partition=1)
    found = listed(client, producer.transactional_id)
    assert (found.state, [(each.topic, each.partition) for each in found.partitions]) == ("ongoing", [(topic, 1)])
    client.call(m.AbortTransactionRequest(producer.transactional_id))
    with pytest.raises(warmlog.TransactionAbortable, match="by an operator"):
        producer.send(topic, b"more", partition=0)
    with pytest.raises(warmlog.InvalidTxnState, match="has no open transaction"):
        client.call(m.AbortTransactionRequest(producer.transactional_id))
    assert committed(client, topic, 1) == []
    assert listed(client, producer.transactional_id).partitions == []


def test_a_lost_producer_id_is_repeated(broker: BrokerProcess, producer: TransactionalClient, topic: str) -> None:
    before = producer.producer
    given = producer.initialise().producer
    producer.producer = before
    assert producer.initialise().producer == given
    producer.send(topic, b"a")
    producer.commit()


def test_bad_requests_are_refused_and_write_nothing(
    broker: BrokerProcess, client: WireClient, producer: TransactionalClient, topic: str
) -> None:
    producer_id, epoch = producer.producer

    def refused(kind: type[warmlog.ApiError], request: object) -> None:
        with pytest.raises(kind):
            client.call(request)  # type: ignore[arg-type]

    refused(warmlog.TransactionalIdNotFound, m.EndTransactionRequest("never-used", producer_id, epoch, commits=True))
    refused(warmlog.InvalidRequest, m.EndTransactionRequest("", producer_id, epoch, commits=True))
    refused(warmlog.InvalidRequest, m.EndTransactionRequest("x" * 250, producer_id, epoch, commits=True))
    refused(
        warmlog.InvalidProducerIdMapping,
        m.EndTransactionRequest(producer.transactional_id, producer_id + 1, 0, commits=True),
    )
    for timeout_ms in (0, -1, 900_001):
        with (
            TransactionalClient(broker.address, "never-used", timeout_ms=timeout_ms) as other,
            pytest.raises(warmlog.InvalidTransactionTimeout),
        ):
            other.initialise()
    with TransactionalClient(broker.address, "never-used") as other:
        other.producer = producer.producer
        with pytest.raises(warmlog.TransactionalIdNotFound):
            other.send(topic, b"foreign")
    batch = batch_of([b"x"], producer=producer.producer, base_sequence=0, is_transactional=True)
    partition = [m.ProducePartition(topic, 0, len(batch))]
    with pytest.raises(warmlog.InvalidRequiredAcks):
        client.receive(client.send(m.ProduceRequest(m.ACKS_LEADER, 1000, partition, producer.transactional_id), batch))
    assert committed(client, topic) == []
    assert listed(client, producer.transactional_id).state == "empty"
    producer.commit()
    producer.abort()


def test_a_transaction_survives_a_kill_of_the_broker(tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("killed") / "data"
    with BrokerProcess(directory, **BROKER_SETTINGS) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=2)
        with TransactionalClient(broker.address, "keeps") as producer:
            producer.initialise().send("t", b"a")
            producer.send("t", b"b", partition=1)
            identity = producer.producer
        broker.kill()
    with BrokerProcess(directory, **BROKER_SETTINGS) as broker, WireClient(broker.address) as client:
        assert committed(client, "t") == []
        wait_until_loaded(client)
        assert listed(client, "keeps").state == "ongoing"
        with TransactionalClient(broker.address, "keeps") as producer:
            producer.producer = identity
            producer.commit()
            producer.send("t", b"c")
            producer.commit()
        assert committed(client, "t") == [b"a", b"c"]
        assert committed(client, "t", 1) == [b"b"]


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_after_another_survives_a_kill(tmp_path_factory: pytest.TempPathFactory, commits: bool) -> None:
    directory = tmp_path_factory.mktemp("killed") / "data"
    with (
        BrokerProcess(directory, **BROKER_SETTINGS) as broker,
        WireClient(broker.address) as client,
        TransactionalClient(broker.address, "goes-on") as producer,
    ):
        client.create_topic("t", partitions=2)
        producer.initialise().send("t", b"a")
        producer.send("t", b"b", partition=1)
        producer.commit()
        producer.send("t", b"c")
        identity = producer.producer
        broker.kill()
    with BrokerProcess(directory, **BROKER_SETTINGS) as broker, WireClient(broker.address) as client:
        wait_until_loaded(client)
        wait_until(lambda: listed(client, "goes-on").state == "ongoing")
        assert [each.partition for each in listed(client, "goes-on").partitions] == [0]
        assert committed(client, "t") == [b"a"]
        with TransactionalClient(broker.address, "goes-on") as producer:
            producer.producer = identity
            producer.end(commits=commits)
            producer.send("t", b"d", partition=1)
            producer.commit()
        assert committed(client, "t") == ([b"a", b"c"] if commits else [b"a"])
        assert committed(client, "t", 1) == [b"b", b"d"]


def test_transactions_touch_what_each_names(client: WireClient, producer: TransactionalClient, topic: str) -> None:
    for number, partitions in enumerate(([0], [0, 1], [1], [0], [1, 0], [])):
        for partition in partitions:
            producer.send(topic, b"%d" % number, partition=partition)
        assert [each.partition for each in listed(client, producer.transactional_id).partitions] == sorted(partitions)
        assert listed(client, producer.transactional_id).state == ("ongoing" if partitions else "empty")
        producer.commit()
    assert committed(client, topic) == [b"0", b"1", b"3", b"4"]
    assert committed(client, topic, 1) == [b"1", b"2", b"4"]


def offset_of(client: WireClient, group: str, topic: str) -> int:
    response = cast("m.OffsetFetchResponse", client.call(m.OffsetFetchRequest(group)))
    return next((each.offset for each in response.partitions if each.topic == topic), -1)


@pytest.mark.parametrize("commits", [True, False])
def test_offsets_count_when_the_transaction_commits(
    client: WireClient, producer: TransactionalClient, topic: str, *, commits: bool
) -> None:
    group = f"g{uuid4().hex}"
    producer.send(topic, b"a", b"b")
    producer.commit()
    producer.send(topic, b"output", partition=1)
    producer.commit_offset(group, topic, 1)
    producer.commit_offset(group, topic, 2)
    assert offset_of(client, group, topic) == -1
    assert listed(client, producer.transactional_id).groups == [group]
    producer.end(commits=commits)
    assert offset_of(client, group, topic) == (2 if commits else -1)
    assert committed(client, topic, 1) == ([b"output"] if commits else [])


def test_a_late_request_takes_no_offset_back(producer: TransactionalClient, client: WireClient, topic: str) -> None:
    producer.send(topic, b"a", b"b", b"c")
    producer.commit()
    producer.commit_offset(topic, topic, 1, sequence=1)
    producer.commit_offset(topic, topic, 2, sequence=2)
    with pytest.raises(warmlog.InvalidTxnState, match="late copy"):
        producer.commit_offset(topic, topic, 1, sequence=1)
    producer.commit_offset(topic, topic, 2, sequence=2)
    producer.commit()
    assert offset_of(client, topic, topic) == 2
    producer.commit_offset(topic, topic, 3, sequence=1)
    producer.commit()
    assert offset_of(client, topic, topic) == 3


def test_offsets_of_an_ended_transaction_are_refused(
    broker: BrokerProcess, client: WireClient, producer: TransactionalClient, topic: str
) -> None:
    group = f"g{uuid4().hex}"
    producer.send(topic, b"a")
    before = producer.producer
    producer.commit()
    with TransactionalClient(broker.address, producer.transactional_id) as late:
        late.producer = before
        with pytest.raises(warmlog.InvalidTxnState):
            late.commit_offset(group, topic, 1)
    assert offset_of(client, group, topic) == -1
