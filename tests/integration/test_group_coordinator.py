"""The coordinator of consumer groups in a real broker process, by raw requests."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

import warmlog
from broker_process import BrokerProcess
from broker_thread import BrokerThread
from group_member import GroupMember, commit, described, fetched, offsets
from waiting import wait_until
from warmlog_broker.coordinator.framework.shard import LOG_SETTINGS
from warmlog_broker.coordinator.group import coordinator as groups
from warmlog_protocol import messages as m
from wire_client import WireClient, batch_of

BROKER_SETTINGS = {
    "group_initial_rebalance_delay_ms": 50,
    "group_assignment_interval_ms": 50,
    "group_min_session_timeout_ms": 300,
    "group_coordinator_partitions": 4,
}
Join = Callable[..., GroupMember]
LONG_MS = 300_000
"""A heartbeat that waits so long, or a third of it, has no response when the client gives up."""


@pytest.fixture
def join(broker: BrokerProcess) -> Iterator[Join]:
    with ExitStack() as members:

        def join(group: str, *topics: str, **options: object) -> GroupMember:
            return members.enter_context(GroupMember(broker.address, group, *topics, **options)).join()  # type: ignore[arg-type]

        yield join


def fill(client: WireClient, topic: str, partitions: int, records: int = 100) -> bytes:
    """Create a topic with records in each partition; return its id."""
    topic_id = client.create_topic(topic, partitions)
    for partition in range(partitions):
        client.produce(topic, batch_of([b"x"] * records), partition=partition)
    return topic_id


def listed(client: WireClient) -> dict[str, tuple[str, int]]:
    groups = cast("m.ListGroupsResponse", client.call(m.ListGroupsRequest())).groups
    return {each.name: (each.state, each.member_count) for each in groups}


def codes(results: list[object]) -> list[int]:
    return [each.error_code for each in results]  # type: ignore[attr-defined]


# --- membership -----------------------------------------------------------------------------------------------------


def test_two_members_hand_over_step_by_step(client: WireClient, topic: str, join: Join) -> None:
    fill(client, topic, 4)
    first = join("hand-over", topic).settle(4)
    assert listed(client)["hand-over"] == ("stable", 1)
    second = join("hand-over", topic)
    assert second.assigned == []
    told = first.beat(max_wait_ms=5000)
    assert told.assignment is not None
    assert len(told.assignment[0].partitions) == 2
    second.beat()
    assert second.assigned == []
    assert listed(client)["hand-over"] == ("reconciling", 2)
    waiting = second.client.send(second.heartbeat())
    first.take()
    second.received(second.client.receive(waiting)[0])
    second.take()
    assert len(second.partitions) == 2
    assert sorted(first.partitions + second.partitions) == [(topic, number) for number in range(4)]
    assert listed(client)["hand-over"] == ("stable", 2)
    waiting = second.client.send(second.heartbeat())
    first.leave()
    second.received(second.client.receive(waiting)[0])
    second.settle(4)


def test_a_member_whose_partitions_are_another_s_still_comes_again_soon_also_if_it_waited_when_that_was_decided(
    client: WireClient, topic: str, join: Join
) -> None:
    fill(client, topic, 2)
    first = join("soon", topic).settle(2)
    first.client.send(first.heartbeat(max_wait_ms=9000))
    second = join("soon", topic)
    told = second.beat(max_wait_ms=500)
    assert second.assigned == []
    assert described(client, "soon").state == "reconciling"
    assert told.heartbeat_interval_ms == 300


def test_a_lost_response_is_repeated_and_an_idle_beat_writes_none(client: WireClient, topic: str, join: Join) -> None:
    fill(client, topic, 2)
    member = join("lost", topic)
    assert member.beat(max_wait_ms=5000).assignment is not None
    assert member.beat().assignment is not None
    member.take()
    assert member.beat().assignment is None

    def log_ends() -> list[int]:
        return [client.offset_at("__groups", -1, partition=number) for number in range(4)]

    before = log_ends()
    for _ in range(50):
        member.beat()
    assert log_ends() == before


def test_the_next_heartbeat_ends_a_waiting_one(client: WireClient, topic: str, join: Join) -> None:
    fill(client, topic, 1)
    member = join("waits", topic, session_timeout_ms=LONG_MS).settle(1)
    waiting = member.client.send(member.heartbeat(max_wait_ms=LONG_MS))
    assert member.beat().member_epoch == member.epoch
    assert member.client.receive(waiting)[0] is not None
    began_s = time.monotonic()
    member.beat(max_wait_ms=400)
    assert time.monotonic() - began_s > 0.3


def test_a_member_that_waits_is_told_that_one_is_back_again(client: WireClient, topic: str, join: Join) -> None:
    fill(client, topic, 2)
    first = join("back", topic, session_timeout_ms=LONG_MS).settle(2)
    second = join("back", topic)
    first.settle(1)
    second.settle(1)
    assert first.beat().is_settled
    second.client.send(second.heartbeat(max_wait_ms=9000))
    wait_until(lambda: listed(client)["back"] == ("stable", 2))  # the heartbeat waits by then
    second.reconnect()
    wait_until(lambda: not first.beat().is_settled)
    waiting = first.client.send(first.heartbeat(max_wait_ms=LONG_MS))
    second.beat()
    assert first.received(first.client.receive(waiting)[0]).is_settled


def test_a_heartbeat_with_a_delayed_decision_waits_for_news_too(client: WireClient, topic: str, join: Join) -> None:
    fill(client, topic, 4)
    member = join("delayed", topic).settle(4)
    for number in range(10):
        joining = client.send(m.GroupHeartbeatRequest("delayed", f"other-{number}", 0, topics=[topic]))
        waiting = member.client.send(member.heartbeat())
        epoch = member.epoch
        response = member.received(member.client.receive(waiting)[0])
        assert response.assignment is not None or response.member_epoch > epoch
        client.receive(joining)
        member.take()


def test_a_static_member_is_taken_over_at_once(client: WireClient, topic: str, join: Join) -> None:
    topic_id = fill(client, topic, 3)
    old = join("static", topic, instance_id="a").settle(3)
    epoch = described(client, "static").group_epoch
    waiting = old.client.send(old.heartbeat())
    new = join("static", topic, instance_id="a")
    assert (new.epoch, len(new.assigned[0].partitions)) == (old.epoch, 3)
    with pytest.raises(warmlog.FencedInstanceId):
        old.client.receive(waiting)
    with pytest.raises(warmlog.FencedInstanceId):
        old.beat()
    with pytest.raises(warmlog.FencedInstanceId):
        old.commit(topic_id, (0, 1))
    new.take()
    assert codes(new.commit(topic_id, (0, 7))) == [0]
    assert described(client, "static").group_epoch == epoch
    new.leave(-2)
    third = join("static", topic, instance_id="a")
    assert len(third.assigned[0].partitions) == 3


# --- topics ---------------------------------------------------------------------------------------------------------


def test_new_partitions_and_topics_and_deletions_change_targets(client: WireClient, topic: str, join: Join) -> None:
    first_id = fill(client, f"{topic}-a", 1)
    member = join("pattern", pattern=f"{topic}-.").settle(1)
    client.call(m.CreatePartitionsRequest([m.NewPartitions(f"{topic}-a", 3)]))
    member.settle(3)
    fill(client, f"{topic}-b", 2)
    member.settle(5)
    assert codes(member.commit(first_id, (0, 5))) == [0]
    client.call(m.DeleteTopicsRequest([f"{topic}-a"]))
    member.settle(2)
    assert codes(member.commit(first_id, (0, 6))) == [warmlog.ErrorCode.UNKNOWN_TOPIC_ID]
    second_id = fill(client, f"{topic}-a", 1)
    member.settle(3)
    found = {each.topic_id: each.offset for each in fetched(client, "pattern")}
    assert second_id not in found
    assert codes(member.commit(second_id, (0, 9))) == [0]
    assert {each.topic_id: each.offset for each in fetched(client, "pattern")}[second_id] == 9


# --- offsets --------------------------------------------------------------------------------------------------------


def test_commits_are_fenced_by_ownership(client: WireClient, topic: str, join: Join) -> None:
    topic_id = fill(client, topic, 2)
    assert codes(commit(client, "fenced", topic_id, (0, 3), (1, 4), metadata="from outside")) == [0, 0]
    first = join("fenced", topic).settle(2)
    with pytest.raises(warmlog.NonEmptyGroup):
        commit(client, "fenced", topic_id, (0, 5))
    second = join("fenced", topic)
    first.beat(max_wait_ms=5000)
    first.take()
    second.settle(1)
    mine, other = first.partitions[0][1], second.partitions[0][1]
    results = first.commit(topic_id, (mine, 10), (other, 20), (7, 1), (mine, 1000))
    assert codes(results) == [
        0,
        warmlog.ErrorCode.STALE_MEMBER_EPOCH,
        warmlog.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        warmlog.ErrorCode.OFFSET_OUT_OF_RANGE,
    ]
    first.epoch += 5
    with pytest.raises(warmlog.FencedMemberEpoch):
        first.commit(topic_id, (mine, 11))
    found = offsets(client, "fenced")
    assert found[topic, mine] == 10
    assert found[topic, other] == (3, 4)[other]


def test_what_is_in_use_is_not_deleted(client: WireClient, topic: str, join: Join) -> None:
    topic_id = fill(client, topic, 2)
    commit(client, "deleted", topic_id, (0, 3), (1, 4))

    def delete_offset(partition: int) -> list[int]:
        request = m.DeleteOffsetsRequest("deleted", [m.TopicPartitions(topic_id, topic, [partition])])
        return codes(list(cast("m.DeleteOffsetsResponse", client.call(request)).partitions))

    def delete(*names: str) -> list[m.NamedResult]:
        return cast("m.DeleteGroupsResponse", client.call(m.DeleteGroupsRequest(list(names)))).groups

    assert delete_offset(0) == [0]
    assert offsets(client, "deleted") == {(topic, 1): 4}
    member = join("deleted", topic)
    assert delete_offset(1) == [warmlog.ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert codes(list(delete("deleted", "no such group"))) == [
        warmlog.ErrorCode.NON_EMPTY_GROUP,
        warmlog.ErrorCode.GROUP_ID_NOT_FOUND,
    ]
    member.leave()
    assert codes(list(delete("deleted", "deleted"))) == [0, warmlog.ErrorCode.GROUP_ID_NOT_FOUND]
    assert "deleted" not in listed(client)
    assert offsets(client, "deleted") == {}


def test_offsets_of_a_group_without_members_and_readers_expire_and_those_of_others_do_not(tmp_path: Path) -> None:
    constants = {groups: {"OFFSETS_EXPIRATION_INTERVAL_S": 0.1}}
    settings = {**BROKER_SETTINGS, "offsets_retention_ms": 1500}
    with BrokerProcess(tmp_path, constants=constants, **settings) as broker, WireClient(broker.address) as client:
        topic_id = fill(client, "t", 1)
        with WireClient(broker.address) as reader, WireClient(broker.address) as committer:
            commit(client, "read", topic_id, (0, 5))
            request = m.OffsetFetchRequest("read", [m.TopicPartitions(topic_id, "t", [0])])
            reader.call(request)
            commit(committer, "committed", topic_id, (0, 6))
            with WireClient(broker.address) as gone:
                commit(gone, "empty", topic_id, (0, 3))
            with GroupMember(broker.address, "live", "t").join().settle(1) as member:
                member.commit(topic_id, (0, 4))
                wait_until(lambda: "empty" not in listed(client))
                time.sleep(0.7)
                assert offsets(client, "live") == {("t", 0): 4}
                left_s = time.monotonic()
                member.leave()
            wait_until(lambda: "live" not in listed(client))
            assert time.monotonic() - left_s > 1
            assert {"read", "committed"} <= set(listed(client))
            assert offsets(client, "read") == {("t", 0): 5}
            left_s = time.monotonic()
        wait_until(lambda: not {"read", "committed"} & set(listed(client)))
        assert time.monotonic() - left_s > 1


def test_a_group_that_is_read_again_and_again_by_short_connections_is_kept(tmp_path: Path) -> None:
    constants = {groups: {"OFFSETS_EXPIRATION_INTERVAL_S": 0.1}}
    settings = {**BROKER_SETTINGS, "offsets_retention_ms": 2000}
    with BrokerProcess(tmp_path, constants=constants, **settings) as broker, WireClient(broker.address) as client:
        topic_id = fill(client, "t", 1)
        request = m.OffsetFetchRequest("job", [m.TopicPartitions(topic_id, "t", [0])])
        with WireClient(broker.address) as first:
            commit(first, "job", topic_id, (0, 5))
        ends_s = time.monotonic() + 3.5
        while time.monotonic() < ends_s:
            with WireClient(broker.address) as run:
                run.call(request)
            time.sleep(0.02)
        assert offsets(client, "job") == {("t", 0): 5}


# --- restarts -------------------------------------------------------------------------------------------------------


def test_commits_that_had_a_response_survive_a_kill_right_after_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, **BROKER_SETTINGS) as broker:
        with WireClient(broker.address) as client:
            topic_id = fill(client, "t", 3)
            member = GroupMember(broker.address, "g", "t").join().settle(3)
        for offset in range(1, 6):
            assert codes(member.commit(topic_id, (0, offset), (1, offset * 2), metadata=f"at {offset}")) == [0, 0]
            broker.kill()
            broker.start()
            member.reconnect()
            wait_until(lambda: is_loaded(member))
            found = {each.partition: (each.offset, each.metadata) for each in fetched(member.client, "g")}
            assert found == {0: (offset, f"at {offset}"), 1: (offset * 2, f"at {offset}")}
            assert member.beat().member_epoch == member.epoch
        member.client.close()


def is_loaded(member: GroupMember) -> bool:
    try:
        fetched(member.client, member.group)
    except warmlog.CoordinatorLoadInProgress:
        return False
    return True


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_restart_in_the_middle_of_a_rebalance_keeps_epochs_and_partitions(tmp_path: Path, is_killed: bool) -> None:
    with BrokerProcess(tmp_path, **BROKER_SETTINGS) as broker:
        with WireClient(broker.address) as client:
            fill(client, "t", 4)
        first = GroupMember(broker.address, "g", "t").join().settle(4)
        second = GroupMember(broker.address, "g", "t").join()
        first.beat(max_wait_ms=5000)
        before = described(first.client, "g")
        assert before.state == "reconciling"
        if is_killed:
            broker.kill()
        else:
            broker.terminate()
        broker.start()
        for member in (first, second):
            member.reconnect()
        wait_until(lambda: is_loaded(first))
        after = described(first.client, "g")
        assert (after.group_epoch, after.target_epoch) == (before.group_epoch, before.target_epoch)
        assert [(each.member_id, each.member_epoch, each.assigned, each.revoking) for each in after.members] == [
            (each.member_id, each.member_epoch, each.assigned, each.revoking) for each in before.members
        ]
        first.take()
        second.settle(2)
        assert len(first.partitions) == 2
        assert described(first.client, "g").group_epoch == before.group_epoch
        first.client.close()
        second.client.close()


def test_compaction_of_the_log_and_a_load_give_the_same_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOG_SETTINGS, "segment.bytes", "100000")
    settings = {**BROKER_SETTINGS, "group_coordinator_partitions": 1, "log_cleaner_backoff_ms": 50}
    log = tmp_path / "__groups-0"

    def log_bytes() -> int:
        return sum(each.stat().st_size for each in log.glob("*.log"))

    with BrokerThread(tmp_path, **settings) as broker, WireClient(broker.address) as client:
        topic_id = fill(client, "t", 4)
        GroupMember(broker.address, "live", "t").join().settle(4).client.close()
        for number in range(1200):
            commit(client, f"g{number % 7}", topic_id, (number % 4, number % 100), metadata=f"m{number % 3}" * 500)
        client.call(m.DeleteGroupsRequest(["g3"]))
        before = state_of(client)
        assert len(before) == 7
        wait_until(lambda: log_bytes() < 300_000)
        assert client.offset_at("__groups", -1) > 1200
    with BrokerThread(tmp_path, **settings) as broker, WireClient(broker.address) as client:
        wait_until(lambda: is_ready(client))
        assert state_of(client) == before


def is_ready(client: WireClient) -> bool:
    try:
        listed(client)
    except warmlog.CoordinatorLoadInProgress:
        return False
    return True


def state_of(client: WireClient) -> dict[str, object]:
    """All that requests say about the groups, except times of heartbeats."""
    found: dict[str, object] = {}
    for group in listed(client):
        seen = described(client, group)
        members = [(each.member_id, each.member_epoch, each.assigned, each.target) for each in seen.members]
        found[group] = (seen.group_epoch, seen.target_epoch, members, fetched(client, group))
    return found


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (m.GroupHeartbeatRequest("", "m", 0), warmlog.InvalidGroupId),
        (m.GroupHeartbeatRequest("g" * 250, "m", 0), warmlog.InvalidGroupId),
        (m.GroupHeartbeatRequest("x" * 900_000, "m", 0), warmlog.InvalidGroupId),
        (m.GroupHeartbeatRequest("bad", "", 0), warmlog.ApiError),
        (m.GroupHeartbeatRequest("bad", "m" * 900_000, 0), warmlog.ApiError),
        (m.GroupHeartbeatRequest("bad", "m", 0, "i" * 300), warmlog.ApiError),
        (m.GroupHeartbeatRequest("bad", "m", 5), warmlog.UnknownMemberId),
        (m.GroupHeartbeatRequest("bad", "m", -7), warmlog.ApiError),
        (m.GroupHeartbeatRequest("bad", "m", 0, pattern="("), warmlog.InvalidRegularExpression),
        (m.GroupHeartbeatRequest("bad", "m", 0, assignor="random"), warmlog.UnsupportedAssignor),
        (m.GroupHeartbeatRequest("bad", "m", 0, session_timeout_ms=1), warmlog.InvalidSessionTimeout),
        (m.GroupHeartbeatRequest("bad", "m", 0, session_timeout_ms=2**31 - 1), warmlog.InvalidSessionTimeout),
        (m.OffsetCommitRequest("bad", [], "m", 3), warmlog.UnknownMemberId),
        (m.OffsetCommitRequest("", []), warmlog.InvalidGroupId),
        (m.OffsetFetchRequest("bad", None, "m", 3), warmlog.UnknownMemberId),
        (m.OffsetFetchRequest("x" * 900_000), warmlog.InvalidGroupId),
        (m.DeleteOffsetsRequest("x" * 900_000, []), warmlog.InvalidGroupId),
    ],
)
def test_a_bad_request_leaves_no_group(client: WireClient, request_: m.Message, error: type[warmlog.ApiError]) -> None:
    with pytest.raises(error):
        client.call(request_)
    assert "bad" not in listed(client)


def test_bad_commits_are_refused_one_by_one(client: WireClient, topic: str) -> None:
    topic_id = fill(client, topic, 1)
    wanted = [
        m.OffsetCommitPartition(topic_id, topic, 0, 100, metadata="m" * 4096),
        m.OffsetCommitPartition(topic_id, topic, 0, 100, metadata="m" * 4097),
        m.OffsetCommitPartition(topic_id, topic, 0, 101),
        m.OffsetCommitPartition(topic_id, topic, 0, -1),
        m.OffsetCommitPartition(topic_id, topic, -1, 0),
        m.OffsetCommitPartition(topic_id, topic, 2**31 - 1, 0),
        m.OffsetCommitPartition(bytes(16), topic, 0, 0),
        m.OffsetCommitPartition(b"", topic, 0, 3),
        m.OffsetCommitPartition(b"", "nowhere", 0, 3),
    ]
    results = cast("m.OffsetCommitResponse", client.call(m.OffsetCommitRequest("bad-commits", wanted))).partitions
    assert codes(list(results)) == [
        0,
        warmlog.ErrorCode.OFFSET_METADATA_TOO_LARGE,
        warmlog.ErrorCode.OFFSET_OUT_OF_RANGE,
        warmlog.ErrorCode.OFFSET_OUT_OF_RANGE,
        warmlog.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        warmlog.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        warmlog.ErrorCode.UNKNOWN_TOPIC_ID,
        0,
        warmlog.ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert offsets(client, "bad-commits") == {(topic, 0): 3}


def test_groups_have_a_bound_over_all_shards(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, **BROKER_SETTINGS, group_max_groups=10) as broker,
        WireClient(broker.address) as client,
    ):
        topic_id = fill(client, "t", 1)
        for number in range(10):
            commit(client, f"g{number}", topic_id, (0, 1))
        with pytest.raises(warmlog.TooManyGroups, match=r"as many groups as group\.max\.groups allows"):
            commit(client, "one more", topic_id, (0, 1))
        with pytest.raises(warmlog.TooManyGroups):
            client.call(m.GroupHeartbeatRequest("one more", "m", 0))
        assert codes(commit(client, "g3", topic_id, (0, 2))) == [0]
        client.call(m.DeleteGroupsRequest(["g0"]))
        assert codes(commit(client, "one more", topic_id, (0, 1))) == [0]


def test_groups_that_begin_at_the_same_time_stay_within_the_bound(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, **BROKER_SETTINGS, group_max_groups=10) as broker,
        WireClient(broker.address) as client,
    ):
        topic_id = fill(client, "t", 1)
        commit(client, "g", topic_id, (0, 1))
        commits = [m.OffsetCommitRequest(f"c{n}", [m.OffsetCommitPartition(topic_id, "", 0, 1)]) for n in range(30)]
        joins = [m.GroupHeartbeatRequest(f"j{n}", "m", 0, topics=[], owned=[]) for n in range(30)]
        outcomes = []
        with ExitStack() as stack:
            clients = [stack.enter_context(WireClient(broker.address)) for _ in range(60)]
            os.kill(broker.pid, signal.SIGSTOP)
            sent = [own.send(request) for own, request in zip(clients, [*commits, *joins], strict=True)]
            os.kill(broker.pid, signal.SIGCONT)
            for own, correlation_id in zip(clients, sent, strict=True):
                try:
                    own.receive(correlation_id)
                    outcomes.append("taken")
                except warmlog.TooManyGroups:
                    outcomes.append("refused")
        assert outcomes.count("taken") == 9
        client.call(m.DeleteGroupsRequest(["g"]))
        assert codes(commit(client, "one more", topic_id, (0, 1))) == [0]
        with pytest.raises(warmlog.TooManyGroups):
            commit(client, "and another", topic_id, (0, 1))


def test_random_requests_do_not_disturb_a_member(
    broker: BrokerProcess, client: WireClient, topic: str, join: Join
) -> None:
    topic_id = fill(client, topic, 2)
    honest = join("honest", topic).settle(2)
    rng = random.Random(19)
    errors: set[str] = set()
    for number in range(1500):
        name = rng.choice(["honest", "fuzz-a", "fuzz-b", "", "x" * rng.choice([249, 250])])
        member_id = rng.choice(["m1", "m2", "", "m" * 300])
        epoch = rng.choice([-3, -2, -1, 0, 1, 2, honest.epoch, 2**31 - 1])
        instance = rng.choice(["", "", "i1", "i2"])
        owned = rng.choice([None, [], [m.TopicPartitions(rng.choice([topic_id, b"x"]), "", [rng.randint(-3, 5)])]])
        if rng.random() < 0.5:
            if name == "honest" and epoch == 0:
                continue
            message: m.Message = m.GroupHeartbeatRequest(
                name,
                member_id,
                epoch,
                instance,
                rng.choice([None, [], [topic, "nowhere"]]),
                rng.choice([None, "", ".*", "["]),
                rng.choice([None, "", "range", "no"]),
                rng.choice([-2, -1, 0, 100]),
                rng.choice([-1, 5, 1000]),
                owned,
                max_wait_ms=rng.choice([0, 0, 5]),
            )
        elif rng.random() < 0.8:
            partition = m.OffsetCommitPartition(
                rng.choice([topic_id, b"", b"y"]), topic, rng.randint(-1, 2), rng.randint(-1, 120)
            )
            message = m.OffsetCommitRequest(name, [partition] * rng.randint(0, 2), member_id, epoch, instance, number)
        else:
            message = m.OffsetFetchRequest(name, owned, member_id, epoch)
        try:
            client.call(message)
        except warmlog.ApiError as error:
            errors.add(type(error).__name__)
        if number % 100 == 0:
            assert honest.beat().assignment is None
    assert {"UnknownMemberId", "InvalidGroupId", "InvalidRequest", "FencedMemberEpoch"} <= errors
    assert not errors & {"UnknownServerError", "CoordinatorNotAvailable"}
    assert codes(honest.commit(topic_id, (0, 1), (1, 2))) == [0, 0]
    assert "a bug" not in broker.output
