"""The transaction coordinator when a topic is gone, the disk of its own topic fails, or a job is too large for it."""

import asyncio
from pathlib import Path

import pytest

from broker_thread import BrokerThread
from transactional_client import JobMemberClient, TransactionalClient, committed, listed, wait_until_loaded
from waiting import wait_until
from warmlog_broker.coordinator.framework import coordinator
from warmlog_broker.coordinator.transaction import coordinator as transactions
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ConcurrentTransactions, CoordinatorNotAvailable, TransactionAbortable
from wire_client import WireClient


def test_requests_that_wait_for_the_end_of_a_transaction_are_refused_when_its_log_goes_offline(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        with TransactionalClient(broker.address, "id").initialise() as producer:
            producer.send("t", b"value")
            broker.in_loop(lambda it: it.topics.partition("t", 0).take_offline("the disk fails"))
            ending = producer.client.send(m.EndTransactionRequest("id", *producer.producer, commits=True))
            wait_until(lambda: broker.in_loop(lambda it: "id" in it.services.coordinators.transactions._endings))
            waiting = client.send(m.InitProducerIdRequest("id", 60_000))
            with WireClient(broker.address) as other:
                other.call(m.ListTransactionsRequest())  # the one before has begun to wait
            broker.in_loop(lambda it: it.topics.partition("__transactions", 0).take_offline("the disk fails"))
            with pytest.raises(CoordinatorNotAvailable):
                client.receive(waiting)
            with pytest.raises(CoordinatorNotAvailable, match="is decided"):
                producer.client.receive(ending)


def test_a_deleted_topic_does_not_keep_a_transaction_from_ending(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker, WireClient(broker.address) as client:
        client.create_topic("gone")
        client.create_topic("kept")
        with TransactionalClient(broker.address, "id").initialise() as producer:
            for _ in range(2):
                producer.send("gone", b"value")
                producer.send("kept", b"value")
                client.call(m.DeleteTopicsRequest(["gone"]))
                producer.commit()
                client.create_topic("gone")
        assert client.offset_at("kept", m.LATEST_TIMESTAMP) == 4


def test_a_job_ends_although_what_closes_all_of_its_members_is_more_than_a_batch_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(coordinator.LOG_SETTINGS, "segment.bytes", "1500")
    monkeypatch.setattr(transactions, "RECORDS_A_DECISION", 4)
    name = "a-job-with-a-long-name" * 5
    with BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker, WireClient(broker.address) as client:
        client.create_topic("t", partitions=3)
        with JobMemberClient(broker.address, name, 1) as driver, JobMemberClient(broker.address, name, 2) as next_one:
            winners = []
            for _ in range(6):
                with JobMemberClient(broker.address, name, 1) as member:
                    member.join()
                    for partition in range(3):
                        member.send("t", b"value", partition=partition)
                    winners.append(member.member)
            driver.commit_job(*winners[:4], records=12)
            wait_until(lambda: listed(client, name).state == "empty")
            assert not listed(client, name).partitions
            assert not next_one.join()


def test_a_job_is_known_to_be_committed_while_its_markers_wait_for_a_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "WAIT_S", 0.2)
    with BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        with JobMemberClient(broker.address, "job", 1) as member, JobMemberClient(broker.address, "job", 2) as other:
            member.join()
            member.send("t", b"value")
            broker.in_loop(lambda it: it.topics.partition("t", 0).take_offline("the disk fails"))
            assert member.commit_job(member.member, records=1) == (False, 1)
            assert member.commit_job(member.member, records=1) == (True, 1)
            with pytest.raises(ConcurrentTransactions):
                other.commit_job()


def test_a_transaction_that_an_older_broker_let_begin_before_the_last_record_is_aborted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as older:
        older.setattr(transactions.TransactionCoordinator, "_until_durable", never)
        with (
            BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker,
            WireClient(broker.address) as client,
            TransactionalClient(broker.address, "id").initialise() as producer,
            TransactionalClient(broker.address, "id") as early,
        ):
            client.create_topic("t")
            producer.send("t", b"first")
            producer.client.send(m.EndTransactionRequest("id", *producer.producer, commits=True))
            wait_until(lambda: client.offset_at("t", m.LATEST_TIMESTAMP) == 2)
            older.setattr(transactions.TransactionCoordinator, "enrol_partition", lambda *_: None)
            early.producer = following = producer.producer[0], producer.producer[1] + 1
            early.send("t", b"second")
    with BrokerThread(tmp_path) as broker, TransactionalClient(broker.address, "id") as early:
        with WireClient(broker.address) as client:
            wait_until_loaded(client)
            wait_until(lambda: listed(client, "id").state == "empty")
            early.producer = following
            with pytest.raises(TransactionAbortable):
                early.commit()
            assert client.offset_at("t", m.LATEST_TIMESTAMP) == 4  # the second one, and its marker
            assert committed(client, "t") == [b"first"]
        early.initialise().send("t", b"third")
        early.commit()


def test_transactions_of_one_producer_do_not_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        client.create_topic("stuck")
        with TransactionalClient(broker.address, "id").initialise() as producer:
            producer.send("t", b"first")
            producer.send("stuck", b"first")
            broker.in_loop(lambda it: it.topics.partition("stuck", 0).take_offline("the disk fails"))
            with monkeypatch.context() as impatient:
                impatient.setattr(transactions, "WAIT_S", 0.1)
                with pytest.raises(ConcurrentTransactions):
                    producer.commit()
            producer.producer = producer.producer[0], producer.producer[1] + 1
            producer._sequences.clear()
            with pytest.raises(ConcurrentTransactions):
                producer.send("t", b"second")
            client.call(m.DeleteTopicsRequest(["stuck"]))
            wait_until(lambda: listed(client, "id").state == "empty")
            producer.send("t", b"second")
            producer.commit()
            assert committed(client, "t") == [b"first", b"second"]
