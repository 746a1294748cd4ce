"""Jobs over the protocol, against real brokers: members, decisions, repeats, versions, timeouts and restarts."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import cast
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from transactional_client import JobMemberClient, TransactionalClient, committed, listed, wait_until_loaded
from waiting import wait_until
from warmlog_protocol.messages import AbortTransactionRequest, DeleteTopicsRequest, JobMember
from wire_client import WireClient

BROKER_SETTINGS = {"transaction_coordinator_partitions": 2, "group_coordinator_partitions": 2}
Join = Callable[..., JobMemberClient]


@pytest.fixture
def topic(client: WireClient) -> str:
    name = f"t{uuid4().hex}"
    client.create_topic(name, partitions=2)
    return name


@pytest.fixture
def job() -> str:
    return f"job-{uuid4().hex}"


@pytest.fixture
def driver(broker: BrokerProcess, job: str) -> Iterator[JobMemberClient]:
    """Sends what the driver of version 0 does."""
    with JobMemberClient(broker.address, job, 0) as found:
        yield found


@pytest.fixture
def join(broker: BrokerProcess, job: str) -> Iterator[Join]:
    """Returns further members that have joined."""
    with ExitStack() as members:

        def join_one(version: int = 0, **options: int) -> JobMemberClient:
            member = members.enter_context(JobMemberClient(broker.address, job, version, **options))
            assert not member.join()
            return member

        yield join_one


def test_winners_commit_and_others_abort(client: WireClient, driver: JobMemberClient, join: Join, topic: str) -> None:
    first, second, loser = join(), join(), join()
    first.send(topic, b"a", b"b")
    first.send(topic, b"c", partition=1)
    second.send(topic, b"d")
    loser.send(topic, b"x")
    assert committed(client, topic) == committed(client, topic, 1) == []
    assert driver.commit_job(first.member, second.member, records=4) == (False, 4)
    assert committed(client, topic) == [b"a", b"b", b"d"]
    assert committed(client, topic, 1) == [b"c"]
    assert driver.commit_job(loser.member, records=1) == (True, 4)
    assert committed(client, topic) == [b"a", b"b", b"d"]


def test_a_loser_is_refused_everywhere(client: WireClient, driver: JobMemberClient, join: Join, topic: str) -> None:
    winner, loser = join(), join()
    winner.send(topic, b"a")
    loser.send(topic, b"x")
    driver.commit_job(winner.member, records=1)
    with pytest.raises((warmlog.InvalidProducerEpoch, warmlog.ProducerFenced)):
        loser.send(topic, b"y")
    with pytest.raises(warmlog.ProducerFenced):
        loser.send(topic, b"z", partition=1)
    with pytest.raises((warmlog.InvalidProducerEpoch, warmlog.ProducerFenced)):
        winner.send(topic, b"b")
    with pytest.raises(warmlog.ProducerFenced):
        loser.keep()
    assert committed(client, topic) == [b"a"]
    assert committed(client, topic, 1) == []


def test_who_joins_what_is_committed_learns_that_and_a_lower_version_is_refused(
    driver: JobMemberClient, join: Join, broker: BrokerProcess, job: str, topic: str
) -> None:
    member = join(3)
    member.send(topic, b"a")
    assert member.commit_job(member.member, records=1) == (False, 1)
    with JobMemberClient(broker.address, job, 3) as again:
        assert again.join()
    with pytest.raises(warmlog.StaleJobVersion, match="version 3"):
        driver.join()
    with pytest.raises(warmlog.StaleJobVersion):
        driver.commit_job()
    with pytest.raises(warmlog.InvalidTxnState, match="committed"):
        member.abort_members(member.member)


def test_slots_are_used_again_with_a_higher_epoch(client: WireClient, join: Join, topic: str) -> None:
    producers = []
    for version in range(3):
        members = [join(version) for _ in range(2)]
        for member in members:
            member.send(topic, b"%d" % version)
        members[0].commit_job(*(each.member for each in members), records=2)
        producers.append(sorted(each.producer for each in members))
    assert {producer_id for some in producers for producer_id, _ in some} == {each for each, _ in producers[0]}
    assert [epoch for some in producers for _, epoch in some] == [0, 0, 1, 1, 2, 2]
    assert committed(client, topic) == [b"0", b"0", b"1", b"1", b"2", b"2"]


def test_members_aborted_early_do_not_win(client: WireClient, driver: JobMemberClient, join: Join, topic: str) -> None:
    failed, other = join(), join()
    failed.send(topic, b"x")
    other.send(topic, b"a")
    driver.abort_members(failed.member, JobMember(10**6, 0))
    with pytest.raises(warmlog.TransactionAbortable):
        driver.commit_job(failed.member, other.member, records=2)
    again = join()
    again.send(topic, b"b")
    assert driver.commit_job(other.member, again.member, records=2) == (False, 2)
    assert committed(client, topic) == [b"a", b"b"]


def test_after_all_members_are_aborted_the_version_is_undecided_and_may_be_joined_again(
    client: WireClient, driver: JobMemberClient, join: Join, job: str, topic: str
) -> None:
    failed = join()
    failed.send(topic, b"x")
    driver.abort_members(failed.member)
    wait_until(lambda: listed(client, job).state == "empty")
    assert committed(client, topic) == []
    again = join()
    again.send(topic, b"a")
    again.commit_job(again.member, records=1)
    assert committed(client, topic) == [b"a"]


def test_an_undecided_version_stays_alone(broker: BrokerProcess, driver: JobMemberClient, join: Join, job: str) -> None:
    join(5)
    with JobMemberClient(broker.address, job, 6) as later, pytest.raises(warmlog.InvalidTxnState, match="version 5"):
        later.join()
    with pytest.raises(warmlog.InvalidTxnState, match="version 5"):
        driver.commit_job()


def test_a_version_without_members_is_committed_all_the_same(driver: JobMemberClient, job: str) -> None:
    assert driver.commit_job() == (False, 0)
    assert driver.commit_job() == (True, 0)
    assert driver.join()
    found = listed(driver.client, job)
    assert found.state == "empty"
    assert found.job is not None
    assert (found.job.committed_version, found.job.members) == (0, 0)


def test_a_job_without_heartbeats_is_aborted(client: WireClient, join: Join, job: str, topic: str) -> None:
    member = join(timeout_ms=2000)
    member.send(topic, b"x")
    for _ in range(4):
        member.keep()
        time.sleep(0.6)
        assert listed(client, job).state == "ongoing"
    wait_until(lambda: listed(client, job).state == "empty")
    with pytest.raises(warmlog.TransactionAbortable):
        member.commit_job(member.member, records=1)
    with pytest.raises(warmlog.ProducerFenced):
        member.keep()
    assert committed(client, topic) == []


def test_a_member_that_joins_keeps_the_others_as_a_heartbeat_does(join: Join) -> None:
    first = join(timeout_ms=2000)
    for _ in range(4):
        time.sleep(0.6)
        join(timeout_ms=2000)
    first.keep()


def test_winners_of_two_topics_do_not_win(client: WireClient, driver: JobMemberClient, join: Join, topic: str) -> None:
    first, second = join(), join()
    first.send(topic, b"lost")
    client.call(DeleteTopicsRequest([topic]))
    client.create_topic(topic, partitions=2)
    second.send(topic, b"without the lost one")
    with pytest.raises(warmlog.InconsistentTopicId, match="deleted and recreated within the transaction"):
        driver.commit_job(first.member, second.member, records=2)
    again = join()
    again.send(topic, b"again")
    assert driver.commit_job(second.member, again.member, records=2) == (False, 2)
    assert committed(client, topic) == [b"without the lost one", b"again"]


def test_an_operator_aborts_a_job(client: WireClient, join: Join, job: str, topic: str) -> None:
    member = join()
    member.send(topic, b"x")
    assert [(each.topic, each.partition) for each in listed(client, job).partitions] == [(topic, 0)]
    client.call(AbortTransactionRequest(job))
    assert listed(client, job).state == "empty"
    with pytest.raises(warmlog.TransactionAbortable):
        member.commit_job(member.member, records=1)


@pytest.mark.parametrize("kill", [True, False])
def test_a_restart_keeps_members_and_decisions(tmp_path_factory: pytest.TempPathFactory, job: str, kill: bool) -> None:
    data_dir = tmp_path_factory.mktemp("restarted") / "data"
    with BrokerProcess(data_dir, **BROKER_SETTINGS) as broker:
        with WireClient(broker.address) as client, JobMemberClient(broker.address, job, 0) as member:
            client.create_topic("t")
            member.join()
            member.send("t", b"a")
            winner = member.member
        if kill:
            broker.kill()
    with BrokerProcess(data_dir, **BROKER_SETTINGS) as broker:
        with WireClient(broker.address) as client, JobMemberClient(broker.address, job, 0) as driver:
            wait_until_loaded(client)
            assert committed(client, "t") == []
            assert driver.commit_job(winner, records=1) == (False, 1)
            assert committed(client, "t") == [b"a"]
        broker.kill()
    with (
        BrokerProcess(data_dir, **BROKER_SETTINGS) as broker,
        WireClient(broker.address) as client,
        JobMemberClient(broker.address, job, 0) as driver,
    ):
        wait_until_loaded(client)
        assert driver.commit_job(winner, records=1) == (True, 1)
        assert driver.join()
        assert committed(client, "t") == [b"a"]


def test_what_is_no_job_or_no_member_is_refused(
    broker: BrokerProcess, client: WireClient, driver: JobMemberClient, join: Join, job: str, topic: str
) -> None:
    name = f"producer-{uuid4().hex}"
    with TransactionalClient(broker.address, name) as producer, JobMemberClient(broker.address, name, 0) as member:
        producer.initialise()
        with pytest.raises(warmlog.InvalidTxnState, match="belongs to a producer"):
            member.join()
        with pytest.raises(warmlog.InvalidTxnState, match="belongs to a producer"):
            member.commit_job()
    member = join()
    with TransactionalClient(broker.address, job) as stranger:
        with pytest.raises(warmlog.InvalidTxnState, match="belongs to a job"):
            stranger.initialise()
        stranger.producer = member.producer
        with pytest.raises(warmlog.InvalidTxnState, match="belongs to a job"):
            stranger.commit()
        with pytest.raises(warmlog.InvalidTxnState, match="whose members only write"):
            stranger.commit_offset("g", topic, 1)
        stranger.producer = 10**6, 0
        with pytest.raises(warmlog.InvalidProducerIdMapping):
            stranger.send(topic, b"x")
    for version, timeout_ms, error in ((-1, 1, warmlog.InvalidRequest), (0, 0, warmlog.InvalidTransactionTimeout)):
        with (
            JobMemberClient(broker.address, job, version, timeout_ms=timeout_ms) as wrong,
            pytest.raises(cast("type[warmlog.ApiError]", error)),
        ):
            wrong.join()
    with pytest.raises(warmlog.InvalidRequest, match="-1 records"):
        driver.commit_job(records=-1)
    assert committed(client, topic) == []
