"""The coordinators when topics cannot be created or are gone, disks fail, or the broker stops."""

import asyncio
import time
from pathlib import Path
from typing import cast
from zlib import crc32

import pytest

import warmlog
from broker_thread import BrokerThread
from group_member import GroupMember, commit, offsets
from transactional_client import JobMemberClient, TransactionalClient, committed, listed, wait_until_loaded
from unit.broker.data_dirs.test_loader import config_of, write_entries
from waiting import wait_until
from warmlog_broker import Broker
from warmlog_broker.coordinator.framework.shard import LOG_SETTINGS
from warmlog_broker.coordinator.group.duties import GroupShard
from warmlog_broker.coordinator.transaction import coordinator as transactions
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_protocol import messages as m
from wire_client import ConnectionEnded, WireClient, batch_of

QUICK = {"group_initial_rebalance_delay_ms": 20, "group_assignment_interval_ms": 20, "group_coordinator_partitions": 2}


def topics(client: WireClient) -> list[str]:
    response = cast("m.MetadataResponse", client.call(m.MetadataRequest(None, include_internal=True)))
    return sorted(topic.name for topic in response.topics)


def fill_disk(broker: BrokerThread, *, is_full: bool = True) -> None:
    """Have the broker take its disk for full, or for one with space."""

    def fill(it: Broker) -> None:
        (directory,) = it.services.directories
        directory.room.reserve_bytes = 2**62 if is_full else 0
        directory.room.note(2**61)

    broker.in_loop(fill)


def test_the_topic_is_created_by_the_first_change_and_not_by_questions_or_refused_requests(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        topic_id = client.create_topic("t")
        assert cast("m.ListGroupsResponse", client.call(m.ListGroupsRequest())).groups == []
        assert offsets(client, "g") == {}
        with pytest.raises(warmlog.UnknownMemberId):
            client.call(m.GroupHeartbeatRequest("g", "m", 3))
        assert commit(client, "g", topic_id, (0, 500))[0].error_code != 0
        assert topics(client) == ["t"]
        assert commit(client, "g", topic_id, (0, 0))[0].error_code == 0
        assert topics(client) == ["__groups", "t"]
        config = broker.in_loop(lambda it: it.topics.get("__groups")).config
        assert (config.cleanup_policy, config.write_caching) == ("compact", False)


def test_a_topic_of_a_client_under_the_name_is_left_alone(tmp_path: Path) -> None:
    write_entries(tmp_path, TopicCreated("__groups", bytes(range(16)), 1, {}), config=config_of(tmp_path))
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        topic_id = client.create_topic("t")
        with pytest.raises(warmlog.CoordinatorNotAvailable, match="was created by a client"):
            commit(client, "g", topic_id, (0, 0))
        assert cast("m.ListGroupsResponse", client.call(m.ListGroupsRequest())).groups == []


def test_a_broker_that_takes_no_records_takes_no_commits_and_still_tells_them(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        topic_id = client.create_topic("t")
        commit(client, "g", topic_id, (0, 0))

        fill_disk(broker)
        with pytest.raises(warmlog.CoordinatorNotAvailable, match="takes no records"):
            commit(client, "g", topic_id, (0, 0), metadata="new")
        assert offsets(client, "g") == {("t", 0): 0}
        fill_disk(broker, is_full=False)
        assert commit(client, "g", topic_id, (0, 0), metadata="new")[0].error_code == 0


def test_a_commit_that_was_not_taken_changes_nothing_and_a_later_one_excludes_earlier_ones(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        topic_id = client.create_topic("t")
        client.produce("t", batch_of([b"x"] * 100))
        with GroupMember(broker.address, "g", "t").join() as member:
            member.settle(1)

            def request(sequence: int, offset: int) -> m.OffsetCommitRequest:
                parts = [m.OffsetCommitPartition(topic_id, "", 0, offset)]
                return m.OffsetCommitRequest("g", parts, member.member_id, member.epoch, sequence=sequence)

            client.call(request(1, 10))
            fill_disk(broker)
            with pytest.raises(warmlog.CoordinatorNotAvailable):
                client.call(request(7, 70))
            fill_disk(broker, is_full=False)
            client.call(request(6, 60))
            later, earlier = client.send(request(9, 90)), client.send(request(8, 80))
            with pytest.raises(warmlog.StaleMemberEpoch, match="late copy"):
                client.receive(earlier)
            client.receive(later)
            with pytest.raises(warmlog.StaleMemberEpoch, match="late copy"):
                client.call(request(8, 80))
            assert offsets(client, "g") == {("t", 0): 90}
            assert broker.in_loop(lambda it: it.services.coordinators.groups._commits) == {}


def test_after_an_error_of_the_disk_groups_of_that_partition_are_not_available_and_others_are(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        topic_id = client.create_topic("t")
        for number in range(10):
            commit(client, f"g{number}", topic_id, (0, 0))
        broker.in_loop(lambda it: it.topics.partition("__groups", 0).take_offline("the disk fails"))
        outcomes = []
        for number in range(10):
            try:
                client.call(m.OffsetFetchRequest(f"g{number}"))
                commit(client, f"g{number}", topic_id, (0, 0))
                outcomes.append("done")
            except warmlog.CoordinatorNotAvailable:
                outcomes.append("not available")
        assert set(outcomes) == {"done", "not available"}
        with pytest.raises(warmlog.CoordinatorNotAvailable, match="offline"):
            client.call(m.ListGroupsRequest())


def test_topics_are_followed_on_although_a_partition_fails_meanwhile(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        client.create_topic("t1")
        name = next(f"g{n}" for n in range(10) if crc32(b"g%d" % n) % 2 == 0)
        with GroupMember(broker.address, name, pattern="t.*") as member:
            member.join().settle(1)

            def fail_when_followed(it: Broker) -> None:
                targets = it.services.coordinators.groups.targets
                consider = targets.consider

                def failing(shard: GroupShard, group: str) -> None:
                    it.topics.partition("__groups", 1).take_offline("the disk fails")
                    consider(shard, group)

                targets.consider = failing  # type: ignore[method-assign]

            broker.in_loop(fail_when_followed)
            for number in (2, 3):
                client.create_topic(f"t{number}")
                member.settle(number)


def test_what_was_read_of_a_partition_that_is_offline_now_can_be_committed(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        topic_id = client.create_topic("t")
        client.produce("t", batch_of([b"x"] * 10))
        broker.in_loop(lambda it: it.topics.partition("t", 0).take_offline("the disk fails"))
        assert commit(client, "g", topic_id, (0, 10))[0].error_code == 0
        (refused,) = commit(client, "g", topic_id, (0, -1))
        assert refused.error_code == warmlog.ErrorCode.OFFSET_OUT_OF_RANGE
        assert refused.error_message == "offset -1 of t-0: expected 0 or more"
        assert offsets(client, "g") == {("t", 0): 10}


def test_a_heartbeat_that_waits_is_told_that_the_coordinator_is_gone(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **{**QUICK, "group_coordinator_partitions": 1}) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
        with GroupMember(broker.address, "g", "t").join().settle(1) as member:
            waiting = member.client.send(member.heartbeat(max_wait_ms=9000))
            member.client.call(m.MetadataRequest([]))
            broker.in_loop(lambda it: it.topics.partition("__groups", 0).take_offline("the disk fails"))
            with pytest.raises(warmlog.CoordinatorNotAvailable, match="offline"):
                member.client.receive(waiting)


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_connection_of_members_that_wait_is_forgotten_when_it_is_lost(tmp_path: Path, is_gone: bool) -> None:
    """Also if it is one of several members, and the coordinator is not here any more."""
    with BrokerThread(tmp_path, **{**QUICK, "group_coordinator_partitions": 1}) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", 2)
        with GroupMember(broker.address, "g", "t").join().settle(2) as first:
            second = GroupMember(broker.address, "g", "t").join()
            first.settle(1)
            second.settle(1)
            second.client.close()
            for member in (first, second):
                first.client.send(member.heartbeat(max_wait_ms=9000))
            first.client.call(m.MetadataRequest([]))

            def cut(it: Broker) -> None:
                if is_gone:
                    it.topics.partition("__groups", 0).take_offline("the disk fails")
                for connection in it.services.connections:
                    connection.close("a test cuts it")

            broker.in_loop(cut)
            wait_until(lambda: broker.in_loop(lambda it: len(it.services.connections)) == 0)


def test_a_stop_ends_heartbeats_that_wait_and_is_clean(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
        member = GroupMember(broker.address, "g", "t", session_timeout_ms=300_000).join().settle(1)
        waiting = member.client.send(member.heartbeat(max_wait_ms=300_000))
        member.client.call(m.MetadataRequest([]))
    assert broker.was_clean
    assert member.received(member.client.receive(waiting)[0]).member_epoch == member.epoch
    with pytest.raises((ConnectionEnded, ConnectionError)):
        member.beat()
    member.client.close()


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
            with pytest.raises(warmlog.CoordinatorNotAvailable):
                client.receive(waiting)
            with pytest.raises(warmlog.CoordinatorNotAvailable, match="is decided"):
                producer.client.receive(ending)


def test_a_timeout_that_the_log_did_not_take_ends_with_the_shard(tmp_path: Path) -> None:
    """After its log was read again an open transaction has its full time, as after a start."""
    with BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        with TransactionalClient(broker.address, "id").initialise() as producer:
            producer.send("t", b"value")
            fill_disk(broker)

            def ring(it: Broker) -> None:
                _, timer = it.services.coordinators.transactions._deadlines["id"]
                timer.run()

            def aborting(it: Broker) -> list[asyncio.Task[None]]:
                return [each for each in asyncio.all_tasks() if each.get_name() == "transaction timeout"]

            def reload(it: Broker) -> None:
                (shard,) = it.services.coordinators.transactions.shards.active
                shard._reload("an error of the log")

            broker.in_loop(ring)
            time.sleep(2 * transactions.RETRY_S)
            (task,) = broker.in_loop(aborting)
            broker.in_loop(reload)
            wait_until(lambda: not broker.in_loop(aborting))
            fill_disk(broker, is_full=False)
            wait_until_loaded(client)
            time.sleep(2 * transactions.RETRY_S)
            assert task.cancelled()
            producer.commit()
            assert committed(client, "t") == [b"value"]


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


def test_a_job_ends_also_if_its_end_is_larger_than_a_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOG_SETTINGS, "segment.bytes", "1500")
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


def test_a_job_is_committed_while_markers_wait_for_a_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "WAIT_S", 0.2)
    with BrokerThread(tmp_path, transaction_coordinator_partitions=1) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        with JobMemberClient(broker.address, "job", 1) as member, JobMemberClient(broker.address, "job", 2) as other:
            member.join()
            member.send("t", b"value")
            broker.in_loop(lambda it: it.topics.partition("t", 0).take_offline("the disk fails"))
            assert member.commit_job(member.member, records=1) == (False, 1)
            assert member.commit_job(member.member, records=1) == (True, 1)
            with pytest.raises(warmlog.ConcurrentTransactions):
                other.commit_job()


def test_a_transaction_begun_before_the_last_record_is_aborted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            older.setattr(transactions.TransactionCoordinator, "enrol_partition", lambda *_, **__: None)
            early.producer = following = producer.producer[0], producer.producer[1] + 1
            early.send("t", b"second")
    with BrokerThread(tmp_path) as broker, TransactionalClient(broker.address, "id") as early:
        with WireClient(broker.address) as client:
            wait_until_loaded(client)
            wait_until(lambda: listed(client, "id").state == "empty")
            early.producer = following
            with pytest.raises(warmlog.TransactionAbortable):
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
                with pytest.raises(warmlog.ConcurrentTransactions):
                    producer.commit()
            producer.producer = producer.producer[0], producer.producer[1] + 1
            producer._sequences.clear()
            with pytest.raises(warmlog.ConcurrentTransactions):
                producer.send("t", b"second")
            client.call(m.DeleteTopicsRequest(["stuck"]))
            wait_until(lambda: listed(client, "id").state == "empty")
            producer.send("t", b"second")
            producer.commit()
            assert committed(client, "t") == [b"first", b"second"]
