"""The group coordinator when its topic cannot be created, its disk fails, or the broker stops."""

import time
from pathlib import Path
from typing import cast
from zlib import crc32

import pytest

from broker_thread import BrokerThread
from group_member import GroupMember, commit, offsets
from unit.broker.data_dirs.test_loader import config_of, write_entries
from warmlog_broker import Broker
from warmlog_broker.coordinator.group.duties import GroupShard
from warmlog_broker.metadata.metadata_log import TopicCreated
from warmlog_protocol import messages as m
from warmlog_protocol.errors import (
    CoordinatorNotAvailable,
    ErrorCode,
    StaleMemberEpoch,
    UnknownMemberId,
)
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
        with pytest.raises(UnknownMemberId):
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
        with pytest.raises(CoordinatorNotAvailable, match="was created by a client"):
            commit(client, "g", topic_id, (0, 0))
        assert cast("m.ListGroupsResponse", client.call(m.ListGroupsRequest())).groups == []


def test_a_broker_that_takes_no_records_takes_no_commits_and_still_tells_them(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        topic_id = client.create_topic("t")
        commit(client, "g", topic_id, (0, 0))

        fill_disk(broker)
        with pytest.raises(CoordinatorNotAvailable, match="takes no records"):
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
            with pytest.raises(CoordinatorNotAvailable):
                client.call(request(7, 70))
            fill_disk(broker, is_full=False)
            client.call(request(6, 60))
            later, earlier = client.send(request(9, 90)), client.send(request(8, 80))
            with pytest.raises(StaleMemberEpoch, match="late copy"):
                client.receive(earlier)
            client.receive(later)
            with pytest.raises(StaleMemberEpoch, match="late copy"):
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
            except CoordinatorNotAvailable:
                outcomes.append("not available")
        assert set(outcomes) == {"done", "not available"}
        with pytest.raises(CoordinatorNotAvailable, match="offline"):
            client.call(m.ListGroupsRequest())


def test_topics_are_followed_on_although_a_partition_fails_meanwhile(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        client.create_topic("t1")
        name = next(f"g{n}" for n in range(10) if crc32(b"g%d" % n) % 2 == 0)
        with GroupMember(broker.address, name, pattern="t.*") as member:
            member.join().settle(1)

            def fail_when_followed(it: Broker) -> None:
                targets = it.services.coordinators.groups._targets
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
        assert refused.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
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
            with pytest.raises(CoordinatorNotAvailable, match="offline"):
                member.client.receive(waiting)


def test_a_stop_ends_heartbeats_that_wait_and_is_clean(tmp_path: Path) -> None:
    with BrokerThread(tmp_path, **QUICK) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
        member = GroupMember(broker.address, "g", "t").join().settle(1)
        waiting = member.client.send(member.heartbeat(max_wait_ms=9000))
        member.client.call(m.MetadataRequest([]))
        began_s = time.monotonic()
    assert broker.was_clean
    assert time.monotonic() - began_s < 5
    assert member.received(member.client.receive(waiting)[0]).member_epoch == member.epoch
    with pytest.raises((ConnectionEnded, ConnectionError)):
        member.beat()
    member.client.close()
