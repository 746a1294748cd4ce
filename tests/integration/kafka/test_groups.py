"""Groups by Kafka's classic protocol and by KIP-848, by raw requests; traps have their numbers in their names."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from broker_thread import BrokerThread
from kafka_client import ConnectionEnded, KafkaClient, rows
from kafka_member import KafkaMember
from processor_time import slowness
from waiting import wait_until
from warmlog.blocking import Admin, Consumer
from warmlog_broker.coordinator.classic.consumer_protocol import assignment, partitions_of, subscription, topics_of
from warmlog_protocol.errors import ErrorCode, InconsistentGroupProtocol
from warmlog_protocol.kafka.schema import API

Member = Callable[..., KafkaMember]
DELAY_MS = 100


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with running(tmp_path_factory.mktemp("broker") / "data") as started:
        yield started


def running(data_dir: Path, **settings: object) -> BrokerThread:
    always = {
        "kafka_listen": "127.0.0.1:0",
        "log_retention_check_interval_ms": 3_600_000,  # the records of `rows` are old
        "auto_create_topics_enable": "true",
        "group_initial_rebalance_delay_ms": DELAY_MS,
        "group_min_session_timeout_ms": 500,
        "group_coordinator_partitions": 2,
    }
    return BrokerThread(data_dir, **always | settings)


def address_of(broker: BrokerThread) -> str:
    return broker.broker.listening.addresses["kafka"]


@pytest.fixture
def member(kafka_address: str) -> Iterator[Member]:
    with ExitStack() as members:
        yield lambda *args, **fields: members.enter_context(KafkaMember(kafka_address, *args, **fields))


def until_it_is_to_join_again(member: KafkaMember) -> None:
    """Another waits at the coordinator then, until this one joins again."""
    wait_until(lambda: member.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)


def described(client: KafkaClient, group: str, version: int = 5) -> Any:
    return client.call("DescribeGroups", version, groups=[group]).groups[0]


def fetched(client: KafkaClient, group: str, *topics: str, version: int = 8, **fields: Any) -> Any:
    """The response for one group: about partition 0 of these topics, or about all that it has."""
    request = API["OffsetFetch"].request
    wanted = [request.OffsetFetchRequestTopics(name=topic, partition_indexes=[0]) for topic in topics] or None
    asked = request.OffsetFetchRequestGroup(group, topics=wanted)
    return client.call("OffsetFetch", version, groups=[asked], **fields).groups[0]


def offsets(client: KafkaClient, group: str, *topics: str) -> list[tuple[int, str, int]]:
    found = fetched(client, group, *topics)
    assert found.error_code == 0
    return [
        (part.committed_offset, part.metadata, part.error_code) for topic in found.topics for part in topic.partitions
    ]


def commit_from_outside(
    client: KafkaClient, group: str, topic: str, offset: int, metadata: str = "", member_id: str = ""
) -> int:
    request = API["OffsetCommit"].request
    part = request.OffsetCommitRequestPartition(0, offset, -1, metadata)
    topics = [request.OffsetCommitRequestTopic(name=topic, partitions=[part])]
    response = client.call("OffsetCommit", 8, group_id=group, member_id=member_id, topics=topics)
    code: int = response.topics[0].partitions[0].error_code
    return code


# --- members


def test_two_hundred_members_that_join_at_once_are_stable_within_three_seconds(member: Member) -> None:
    members = [member("many", session_timeout_ms=60_000, rebalance_timeout_ms=60_000) for _ in range(200)]
    for each in members:
        each.member_id = each.receive("JoinGroup", each.begin_join()).member_id
    began, began_work = time.monotonic(), time.process_time()
    waiting = [(each, each.begin_join()) for each in members]
    for each, number in waiting:
        each.end_join(number)
    syncing = [(each, each.begin_sync()) for each in members]
    found = [each.receive("SyncGroup", number) for each, number in syncing]
    assert time.process_time() - began_work < 3 * slowness(), (
        "of the processor's time, as other work may delay both sides"
    )
    assert time.monotonic() - began < 50, "no timer is waited for"
    assert {each.generation for each in members} == {1}
    assert [each.assignment for each in found] == [each.member_id.encode() for each in members]
    assert sum(bool(each.joined.members) for each in members) == 1


def test_a_rolling_restart_of_twenty_static_members_moves_nothing(member: Member, client: KafkaClient) -> None:
    members = [member("rolling", instance_id=f"i{number:02}") for number in range(20)]
    for each, number in [(each, each.begin_join()) for each in members]:
        each.end_join(number)
    for each, number in [(each, each.begin_sync()) for each in members]:
        assert each.receive("SyncGroup", number).assignment == (each.instance_id or "").encode()
    for old in members:
        old.client.socket.close()
        new = member("rolling", instance_id=old.instance_id)
        assert new.join().generation_id == 1
        assert new.joined.skip_assignment == (old is members[0])
        assert new.sync().assignment == (old.instance_id or "").encode()
        assert new.heartbeat() == 0
    assert described(client, "rolling").group_state == "Stable"


def test_a_killed_member_is_replaced_within_its_session(member: Member) -> None:
    first = member("killed", session_timeout_ms=2000, rebalance_timeout_ms=60_000).start()
    second = member("killed", rebalance_timeout_ms=60_000)
    joining = second.begin_join()
    second.member_id = second.receive("JoinGroup", joining).member_id
    waiting = second.begin_join()
    assert first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
    first.client.socket.close()
    second.end_join(waiting)
    assert second.joined.leader == second.member_id
    assert second.sync().assignment == second.member_id.encode()


def test_the_others_go_on_once_the_connection_of_a_joining_member_ends(member: Member, client: KafkaClient) -> None:
    first = member("lost-join", rebalance_timeout_ms=3_600_000).start()
    lost = member("lost-join", rebalance_timeout_ms=3_600_000, JoinGroup=3)
    lost.begin_join()
    wait_until(lambda: first.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
    lost.client.socket.close()
    wait_until(lambda: len(described(client, "lost-join").members) == 1)
    assert len(first.join().members) == 1
    assert first.sync().assignment == first.member_id.encode()


@pytest.mark.parametrize("version", range(10))
def test_every_version_of_join_group(member: Member, client: KafkaClient, version: int) -> None:
    each = member(f"join-{version}", JoinGroup=version, SyncGroup=min(version, 5), Heartbeat=min(version, 4))
    each.start()
    assert each.heartbeat() == 0
    left = member(f"join-{version}", LeaveGroup=min(version, 5))
    left.member_id, left.generation = each.member_id, each.generation
    response = left.leave()
    codes = [response.error_code] if version < 3 else [one.error_code for one in response.members]
    assert codes == [0]
    assert described(client, f"join-{version}").group_state == "Empty"


def test_groups_of_other_programs_keep_their_bytes(member: Member, client: KafkaClient) -> None:
    worker = member("connect", protocol_type="connect", metadata=b"\xff\x00 opaque").start()
    group = described(client, "connect")
    assert (group.protocol_type, group.protocol_data) == ("connect", "range")
    (found,) = group.members
    assert (found.member_metadata, found.member_assignment) == (b"\xff\x00 opaque", worker.member_id.encode())


def test_a_group_goes_on_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    with running(tmp_path / "data") as broker, KafkaMember(address_of(broker), "kept", instance_id="one") as member:
        member.start()
    with running(tmp_path / "data") as broker, KafkaMember(address_of(broker), "kept", instance_id="one") as again:
        again.member_id, again.generation, again.joined = member.member_id, member.generation, member.joined
        wait_until(lambda: again.heartbeat() == 0)  # the coordinator is loading before
        assert again.sync().assignment == b"one"


def test_members_that_wait_do_not_hold_the_stop_of_the_broker_up(tmp_path: Path) -> None:
    broker = running(tmp_path / "data", group_initial_rebalance_delay_ms=300_000)
    with broker, KafkaMember(address_of(broker), "stopped") as member, KafkaClient(address_of(broker)) as client:
        member.member_id = member.receive("JoinGroup", member.begin_join()).member_id
        waiting = member.begin_join()
        wait_until(lambda: bool(described(client, "stopped").members))
        broker.run(broker.broker.stop())
        assert member.receive("JoinGroup", waiting).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


# --- traps


def test_trap_14_a_join_is_looked_at_again_when_a_member_leaves_or_is_silent(member: Member) -> None:
    first = member("trap-14", JoinGroup=3, session_timeout_ms=60_000, rebalance_timeout_ms=60_000).start()
    second = member("trap-14", JoinGroup=3, session_timeout_ms=1500, rebalance_timeout_ms=60_000)
    joining = second.begin_join()
    until_it_is_to_join_again(first)
    began = time.monotonic()
    first.leave()
    assert second.end_join(joining).leader == second.member_id
    third = member("trap-14", JoinGroup=3, rebalance_timeout_ms=60_000)
    joining = third.begin_join()
    second.client.socket.close()  # its session is 1.5 s, and no rebalance timeout is due before 60 s
    assert third.end_join(joining).error_code == 0
    assert time.monotonic() - began > 1


def test_trap_14_without_a_rebalance_timeout_the_session_timeout_counts(member: Member) -> None:
    slow = member("trap-14-0", JoinGroup=0).start()
    other = member("trap-14-0", JoinGroup=0)
    joining = other.begin_join()
    until_it_is_to_join_again(slow)
    for _ in range(4):
        assert slow.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        time.sleep(0.3)
    assert slow.join().error_code == 0
    assert other.end_join(joining).generation_id == slow.generation


def test_trap_15_metadata_comes_back_and_any_offset_is_taken(client: KafkaClient) -> None:
    client.create("trap-15")
    client.produce("trap-15", rows(b"one"))
    assert commit_from_outside(client, "trap-15", "trap-15", 1000, "what I know") == 0
    assert offsets(client, "trap-15", "trap-15") == [(1000, "what I know", 0)]


def test_trap_15_nobody_else_commits_while_a_group_has_members(member: Member, client: KafkaClient) -> None:
    client.create("trap-15")
    each = member("trap-15-members")
    assert each.join().error_code == 0
    assert each.commit("trap-15", 1) == ErrorCode.REBALANCE_IN_PROGRESS
    each.sync()
    assert commit_from_outside(client, "trap-15-members", "trap-15", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert each.commit("trap-15", 1) == 0
    assert each.commit("trap-15", 2, generation_id_or_member_epoch=7) == ErrorCode.ILLEGAL_GENERATION
    assert each.commit("trap-15", 2, member_id="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
    assert offsets(client, "trap-15-members", "trap-15") == [(1, "", 0)]
    each.leave()
    assert each.commit("trap-15", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_from_outside(client, "trap-15-members", "trap-15", 4) == 0


def test_a_client_that_never_joins_commits_with_the_id_that_it_gave_itself(member: Member, client: KafkaClient) -> None:
    client.create("never-joins")
    assert commit_from_outside(client, "never-joins", "never-joins", 7, member_id="its-own") == 0
    assert offsets(client, "never-joins", "never-joins") == [(7, "", 0)]
    member("never-joins", metadata=subscription(["never-joins"])).start()
    refused = commit_from_outside(client, "never-joins", "never-joins", 8, member_id="its-own")
    assert refused == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_commit_is_a_sign_of_life(member: Member, client: KafkaClient) -> None:
    client.create("life")
    each = member("life", session_timeout_ms=2500).start()
    for offset in range(4):
        time.sleep(0.8)
        assert each.commit("life", offset) == 0
    assert each.heartbeat() == 0


@pytest.mark.parametrize("version", range(1, 8))
def test_trap_16_what_is_unknown_has_no_offset_and_is_no_error(client: KafkaClient, version: int) -> None:
    client.create("trap-16")
    topic = API["OffsetFetch"].request.OffsetFetchRequestTopic
    topics = [topic(name, [0, 99]) for name in ("trap-16", "no such topic")]
    response = client.call("OffsetFetch", version, group_id="no such group", topics=topics)
    parts = [part for topic in response.topics for part in topic.partitions]
    assert [(part.committed_offset, part.error_code) for part in parts] == 4 * [(-1, 0)]
    assert response.error_code == 0


def test_trap_16_several_groups_at_once_and_all_partitions_of_each(client: KafkaClient) -> None:
    client.create("trap-16")
    assert commit_from_outside(client, "trap-16-a", "trap-16", 7) == 0
    assert offsets(client, "trap-16-a") == [(7, "", 0)]
    assert offsets(client, "trap-16-b") == []
    asked = API["OffsetFetch"].request.OffsetFetchRequestGroup
    groups = client.call("OffsetFetch", 8, groups=[asked("trap-16-a", topics=None), asked("", topics=None)]).groups
    assert [group.error_code for group in groups] == [0, ErrorCode.INVALID_GROUP_ID]


@pytest.mark.parametrize("version", range(1, 8))
def test_an_error_of_offset_fetch_is_in_each_partition_for_clients_that_may_see_no_other(
    client: KafkaClient, version: int
) -> None:
    """aiokafka, in version 3, does not look at that of the whole, and takes no partitions for no offsets."""
    topics = [API["OffsetFetch"].request.OffsetFetchRequestTopic("t", [0, 1])]
    response = client.call("OffsetFetch", version, group_id="", topics=topics)
    parts = [(part.committed_offset, part.error_code) for topic in response.topics for part in topic.partitions]
    assert parts == (2 * [(-1, ErrorCode.INVALID_GROUP_ID)] if version < 4 else [])
    assert response.error_code == (0 if version == 1 else ErrorCode.INVALID_GROUP_ID)


def test_offsets_by_topic_id(client: KafkaClient) -> None:
    client.create("by-id")
    named = API["Metadata"].request.MetadataRequestTopic(name="by-id")
    topic_id = client.call("Metadata", 12, topics=[named]).topics[0].topic_id
    commit, fetch = API["OffsetCommit"].request, API["OffsetFetch"].request
    parts = [commit.OffsetCommitRequestPartition(0, 5, 3, "m")]
    topics = [commit.OffsetCommitRequestTopic(topic_id=each, partitions=parts) for each in (topic_id, bytes(15) + b"x")]
    response = client.call("OffsetCommit", 10, group_id="by-id", topics=topics)
    assert [each.partitions[0].error_code for each in response.topics] == [0, ErrorCode.UNKNOWN_TOPIC_ID]
    wanted = [fetch.OffsetFetchRequestTopics(topic_id=each.topic_id, partition_indexes=[0]) for each in topics]
    groups = [fetch.OffsetFetchRequestGroup("by-id", topics=wanted)]
    (known,), (unknown,) = [each.partitions for each in client.call("OffsetFetch", 10, groups=groups).groups[0].topics]
    assert (known.committed_offset, known.committed_leader_epoch, known.metadata) == (5, 3, "m")
    assert (unknown.committed_offset, unknown.error_code) == (-1, ErrorCode.UNKNOWN_TOPIC_ID)


def test_trap_17_tools_see_groups_of_every_kind(broker: BrokerThread, member: Member, client: KafkaClient) -> None:
    client.create("trap-17")
    member("trap-17-classic", metadata=subscription(["trap-17"])).start()
    with Consumer(broker.address, topics=["trap-17"], group="trap-17-own") as consumer:
        next(iter(consumer.batches(until="latest")), None)
        group = described(client, "trap-17-own", 0)
        (found,) = group.members
        assert (group.group_state, group.protocol_type) == ("Stable", "consumer")
        assert topics_of(found.member_metadata) == ["trap-17"]
        assert partitions_of(found.member_assignment) == [("trap-17", [0])]
        (consumers,) = client.call("ConsumerGroupDescribe", 1, group_ids=["trap-17-own"]).groups
        (parts,) = consumers.members[0].assignment.topic_partitions
        assert (consumers.group_state, parts.topic_name, parts.partitions) == ("Stable", "trap-17", [0])
        listed = {each.group_id: each for each in client.call("ListGroups", 5).groups}
        assert (listed["trap-17-own"].group_type, listed["trap-17-classic"].group_type) == ("Consumer", "Classic")
        consumer_only = client.call("ListGroups", 5, types_filter=["consumer"], states_filter=["stable"]).groups
        assert "trap-17-classic" not in {each.group_id for each in consumer_only} >= {"trap-17-own"}
    (classic,) = client.call("ConsumerGroupDescribe", 0, group_ids=["trap-17-classic"]).groups
    assert classic.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert [described(client, "no such group", version).error_code for version in (0, 5, 6)] == [0, 0, 69]
    assert described(client, "no such group").group_state == "Dead"
    with Admin(broker.address) as admin:
        (found_here,) = admin.describe_group("trap-17-classic").members
        assert found_here.topics == ["trap-17"]


def test_trap_18_a_static_member_that_comes_back_fences_the_one_before(member: Member) -> None:
    old = member("trap-18", instance_id="one").start()
    new = member("trap-18", instance_id="one").start()
    assert new.generation == old.generation
    assert old.heartbeat() == ErrorCode.FENCED_INSTANCE_ID
    assert old.sync().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert old.commit("any", 1) == ErrorCode.FENCED_INSTANCE_ID
    assert old.join().error_code == ErrorCode.FENCED_INSTANCE_ID
    assert old.leave().members[0].error_code == ErrorCode.FENCED_INSTANCE_ID
    assert new.heartbeat() == 0


def test_trap_18_a_member_that_the_leader_gives_nothing_gets_an_empty_assignment(member: Member) -> None:
    leader, other = member("trap-18-nothing").start(), member("trap-18-nothing", JoinGroup=3)
    joining = other.begin_join()
    wait_until(lambda: leader.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS)
    assert len(leader.join().members) == 2
    assert other.end_join(joining).error_code == 0
    waiting = other.begin_sync()
    assert leader.call("SyncGroup", assignments=[]).error_code == 0
    synced = other.receive("SyncGroup", waiting)
    assert (synced.error_code, synced.assignment) == (0, b"")
    assert other.heartbeat() == 0


# --- kinds


def test_a_team_moves_from_kafkas_client_to_warmlogs_and_back_with_its_offsets(
    broker: BrokerThread, member: Member, client: KafkaClient
) -> None:
    client.create("moves")
    client.produce("moves", rows(b"0", b"1", b"2", b"3"))
    first = member("moves").start()
    assert first.commit("moves", 1) == 0
    with (
        pytest.raises(InconsistentGroupProtocol, match="classic protocol"),
        Consumer(broker.address, topics=["moves"], group="moves") as refused,
    ):
        next(iter(refused.records(until="latest")))
    first.leave()
    with Consumer(broker.address, topics=["moves"], group="moves") as consumer:
        record = next(iter(consumer.records(until="latest")))
        assert record.offset == 1
        consumer.commit()
        second = member("moves")
        assert second.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert offsets(client, "moves", "moves") == [(2, "", 0)]
    second.member_id = ""
    second.start()
    assert second.generation > first.generation + 1
    assert second.commit("moves", 3) == 0
    assert first.commit("moves", 4) == ErrorCode.UNKNOWN_MEMBER_ID


def heartbeat_848(client: KafkaClient, group: str, member_id: str, epoch: int, **fields: Any) -> Any:
    return client.call("ConsumerGroupHeartbeat", 1, group_id=group, member_id=member_id, member_epoch=epoch, **fields)


def test_a_member_of_kip_848_joins_owns_and_leaves(client: KafkaClient, member: Member) -> None:
    client.create("kip-848")
    joining = {"subscribed_topic_names": ["kip-848"], "rebalance_timeout_ms": 5000, "topic_partitions": []}
    told = heartbeat_848(client, "kip-848", "m", 0, **joining)
    assert (told.error_code, told.member_id) == (0, "m")
    deadline = time.monotonic() + 40
    owned: list[Any] = []
    while not owned and time.monotonic() < deadline:
        time.sleep(0.05)
        told = heartbeat_848(client, "kip-848", "m", told.member_epoch)
        owned = [] if told.assignment is None else told.assignment.topic_partitions
    assert [each.partitions for each in owned] == [[0]]
    part = API["ConsumerGroupHeartbeat"].request.TopicPartitions(owned[0].topic_id, [0])
    assert heartbeat_848(client, "kip-848", "m", told.member_epoch, topic_partitions=[part]).error_code == 0
    assert heartbeat_848(client, "kip-848", "m", 99).error_code == ErrorCode.FENCED_MEMBER_EPOCH
    assert member("kip-848").join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    committer = member("kip-848", OffsetCommit=9)
    committer.member_id = "m"
    assert committer.commit("kip-848", 3, generation_id_or_member_epoch=told.member_epoch) == 0
    assert heartbeat_848(client, "kip-848", "m", -1).error_code == 0
    assert offsets(client, "kip-848", "kip-848") == [(3, "", 0)]
    no_id = client.call("ConsumerGroupHeartbeat", 0, group_id="kip-848", member_epoch=0, **joining)
    assert (no_id.error_code, len(no_id.member_id)) == (0, 36)


def test_trap_19_a_group_of_the_other_kind_is_not_found_and_a_former_member_unknown(
    client: KafkaClient, member: Member
) -> None:
    member("trap-19").start()
    told = heartbeat_848(client, "trap-19", "m", 0, subscribed_topic_names=["any"], topic_partitions=[])
    assert told.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert "classic protocol" in told.error_message
    assert heartbeat_848(client, "no such group", "m", 3).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_trap_19_only_a_member_of_another_epoch_is_told_that_it_is_stale(client: KafkaClient) -> None:
    client.create("trap-19")
    told = heartbeat_848(client, "trap-19-stale", "m", 0, subscribed_topic_names=["trap-19"], topic_partitions=[])
    asked = API["OffsetFetch"].request

    def code(member_id: str, epoch: int) -> int:
        topics = [asked.OffsetFetchRequestTopics(name="trap-19", partition_indexes=[0])]
        group = asked.OffsetFetchRequestGroup("trap-19-stale", member_id, epoch, topics)
        error_code: int = client.call("OffsetFetch", 9, groups=[group]).groups[0].error_code
        return error_code

    assert code("m", told.member_epoch) == code("", -1) == ErrorCode.NONE
    assert code("m", told.member_epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert code("stranger", told.member_epoch) == ErrorCode.UNKNOWN_MEMBER_ID


# --- deletion


def test_groups_and_offsets_are_deleted_once_nobody_uses_them(member: Member, client: KafkaClient) -> None:
    client.create("deleted")
    client.create("kept")
    each = member("deleted", metadata=subscription(["kept"])).start()
    assert each.commit("deleted", 1) == each.commit("kept", 1) == 0
    request = API["OffsetDelete"].request
    parts = [request.OffsetDeleteRequestPartition(0)]
    topics = [request.OffsetDeleteRequestTopic(name, parts) for name in ("deleted", "kept")]
    response = client.call("OffsetDelete", 0, group_id="deleted", topics=topics)
    codes = [topic.partitions[0].error_code for topic in response.topics]
    assert codes == [0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]
    assert client.call("OffsetDelete", 0, group_id="none", topics=topics).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert offsets(client, "deleted", "deleted", "kept") == [(-1, "", 0), (1, "", 0)]
    deleted = client.call("DeleteGroups", 2, groups_names=["deleted", "none"]).results
    assert [each.error_code for each in deleted] == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    each.leave()
    assert client.call("DeleteGroups", 2, groups_names=["deleted"]).results[0].error_code == 0
    assert described(client, "deleted").group_state == "Dead"
    assert offsets(client, "deleted") == []


# --- bad input


def test_requests_about_groups_that_lie(member: Member, client: KafkaClient) -> None:
    protocol = API["JoinGroup"].request.JoinGroupRequestProtocol
    good = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer"}
    one = [protocol("range", b"")]

    def join(**fields: Any) -> int:
        code: int = client.call("JoinGroup", 9, **{"group_id": "bad", "protocols": one} | good | fields).error_code
        return code

    assert join(group_id="") == ErrorCode.INVALID_GROUP_ID
    assert join(group_id="x" * 300) == ErrorCode.INVALID_GROUP_ID
    assert join(session_timeout_ms=1) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert join(session_timeout_ms=-1) == ErrorCode.INVALID_SESSION_TIMEOUT
    assert join(member_id="of another group") == ErrorCode.UNKNOWN_MEMBER_ID
    assert join(protocols=[]) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert join(protocol_type="") == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert join(protocols=[protocol(str(number), b"") for number in range(1000)]) == ErrorCode.INVALID_REQUEST
    assert join(group_instance_id="i" * 300) == ErrorCode.INVALID_REQUEST
    each = member("bad").start()
    assert each.call("Heartbeat", generation_id=2**31 - 1).error_code == ErrorCode.ILLEGAL_GENERATION
    assert each.call("Heartbeat", generation_id=each.generation - 1).error_code == ErrorCode.ILLEGAL_GENERATION
    assert each.call("Heartbeat", group_id="another").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert join(group_id="another", member_id=each.member_id) == ErrorCode.UNKNOWN_MEMBER_ID
    assert each.call("SyncGroup", generation_id=-5).error_code == ErrorCode.ILLEGAL_GENERATION
    assert member("nobody").call("SyncGroup").error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert each.heartbeat() == 0


def test_requests_without_end_end_their_connection(kafka_address: str, member: Member) -> None:
    honest = member("honest", session_timeout_ms=300_000).start()
    protocol = API["JoinGroup"].request.JoinGroupRequestProtocol
    many = [protocol("", b"")] * 1_000_000
    given = API["SyncGroup"].request.SyncGroupRequestAssignment
    for name, fields in (
        ("JoinGroup", {"protocols": many, "session_timeout_ms": 10_000, "protocol_type": "consumer"}),
        ("SyncGroup", {"assignments": [given(honest.member_id, bytes(100 << 20))]}),
    ):
        with KafkaClient(kafka_address) as liar, pytest.raises((ConnectionEnded, ConnectionError)):
            liar.call(name, 5, group_id="honest", member_id=honest.member_id, **fields)
    assert honest.heartbeat() == 0


def test_who_never_syncs_is_removed(member: Member) -> None:
    leader = member("slow", JoinGroup=3, session_timeout_ms=60_000, rebalance_timeout_ms=2000).start()
    other = member("slow", JoinGroup=3, session_timeout_ms=60_000, rebalance_timeout_ms=2000)
    waiting = other.begin_join()
    until_it_is_to_join_again(leader)
    leader.join()
    assert other.end_join(waiting).error_code == 0
    assert other.sync().error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_second_join_ends_the_first_that_waits(member: Member) -> None:
    other, first, second = member("double").start(), member("double"), member("double")
    first.member_id = second.member_id = first.receive("JoinGroup", first.begin_join()).member_id
    waiting = first.begin_join()
    until_it_is_to_join_again(other)
    again = second.begin_join()
    assert first.receive("JoinGroup", waiting).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    other.join()
    assert second.end_join(again).error_code == 0


def test_assignments_larger_than_a_record_may_be_are_refused(member: Member) -> None:
    each = member("large")
    each.join()
    large = API["SyncGroup"].request.SyncGroupRequestAssignment
    for size in (1 << 19, 7 << 20):
        code = each.call("SyncGroup", assignments=[large(each.member_id, bytes(size))]).error_code
        assert code in (0, ErrorCode.RECORD_LIST_TOO_LARGE)
    assert each.heartbeat() == 0


def test_assignment_of_consumers_is_read_for_tools(broker: BrokerThread, member: Member, client: KafkaClient) -> None:
    client.create("tools")
    each = member("tools", metadata=subscription(["tools"]))
    each.join()
    given = API["SyncGroup"].request.SyncGroupRequestAssignment(each.member_id, assignment([("tools", [0])]))
    assert each.call("SyncGroup", assignments=[given]).error_code == 0
    assert each.commit("tools", 0) == 0
    with Admin(broker.address) as admin:
        (found,) = admin.describe_group("tools").members
        assert (found.topics, found.assigned) == (["tools"], [("tools", 0)])


# --- rights


def test_members_need_the_right_to_read_the_group(tmp_path: Path) -> None:
    with running(tmp_path / "data", authorization="acl") as broker, KafkaMember(address_of(broker), "secret") as each:
        refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert each.join().error_code == refused
        each.joined = API["JoinGroup"].response()
        assert [each.sync().error_code, each.heartbeat(), each.leave().error_code] == [refused] * 3
        assert each.commit("any", 1) == refused
        assert fetched(each.client, "secret", "any").error_code == refused
        assert described(each.client, "secret").error_code == refused
        assert each.client.call("DeleteGroups", 2, groups_names=["secret"]).results[0].error_code == refused
        assert heartbeat_848(each.client, "secret", "m", 0, subscribed_topic_names=["any"]).error_code == refused
        (found,) = each.client.call("FindCoordinator", 4, key_type=0, coordinator_keys=["secret"]).coordinators
        assert (
            found.error_code == each.client.call("FindCoordinator", 3, key_type=0, key="secret").error_code == refused
        )
        assert each.client.call("ListGroups", 5).groups == []


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_is_where_the_client_came_to(kafka_address: str, client: KafkaClient, version: int) -> None:
    keys = {"coordinator_keys": ["a", "b"]} if version >= 4 else {"key": "a"}
    response = client.call("FindCoordinator", version, key_type=0, **keys)
    for found in response.coordinators if version >= 4 else [response]:
        assert (found.error_code, f"{found.host}:{found.port}") == (0, kafka_address)
    if version:
        unknown = client.call("FindCoordinator", version, key_type=7, **keys)
        assert {each.error_code for each in unknown.coordinators or [unknown]} == {ErrorCode.INVALID_REQUEST}
