"""Consumer groups with a real broker and real member processes: what users of groups have met with, one test each."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

import warmlog
import warmlog.blocking
from broker_process import BrokerProcess
from faults.history.target import Proxy
from integration.member_process import MemberProcess, owned_twice
from waiting import until
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster
from warmlog_transport.options import ConnectionOptions

pytestmark = pytest.mark.usefixtures("admin")

SETTINGS = {
    "group_min_session_timeout_ms": 200,
    "group_initial_rebalance_delay_ms": 100,
    "group_assignment_interval_ms": 100,
    "group_heartbeat_interval_ms": 300,
}
FOUR = [f"orders-{number}" for number in range(4)]
SHORT_SESSION_MS = 2000
PATIENCE_S = 40
FAULT_SEED = 7


@pytest.fixture
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", **{**SETTINGS, **getattr(request, "param", {})}) as broker:
        yield broker


@pytest.fixture
async def admin(broker: BrokerProcess) -> AsyncIterator[warmlog.Admin]:
    """With a topic of four partitions."""
    async with warmlog.Admin(broker.address) as admin:
        await admin.create_topic("orders", partitions=4)
        yield admin


async def send(broker: BrokerProcess, values: range, topic: str = "orders") -> None:
    """One batch for each value, in turns over four partitions."""
    async with warmlog.Producer(broker.address, linger_ms=0) as producer:
        for value in values:
            await producer.send(topic, b"%d" % value, partition=value % 4)


def consumer(broker: BrokerProcess, **options: Any) -> warmlog.Consumer:
    if "pattern" not in options and "partitions" not in options:
        options.setdefault("topics", ["orders"])
    return warmlog.Consumer(broker.address, **{"group": "etl", "session_timeout_ms": 10_000, **options})


async def take(batches: AsyncIterator[warmlog.Batch], count: int) -> list[warmlog.Batch]:
    async with asyncio.timeout(PATIENCE_S):
        return [await anext(batches) for _ in range(count)]


async def committed(broker: BrokerProcess) -> dict[int, int]:
    async with consumer(broker, partitions=FOUR, commit="manual") as outside:
        return {partition: offset or 0 for (_, partition), offset in (await outside.committed()).items()}


async def test_one_joins_two_join_one_leaves(broker: BrokerProcess, tell: Callable[[str], None]) -> None:
    """Scenario 1."""
    with ExitStack() as stack:
        members = [stack.enter_context(MemberProcess(broker.address))]
        await asyncio.to_thread(members[0].wait_until_it_owns, *FOUR)
        members.append(stack.enter_context(MemberProcess(broker.address)))
        for member in members:
            await asyncio.to_thread(member.wait_for, lambda member: len(member.owned) == 2)
        await send(broker, range(40))
        await until(lambda: sorted(map(int, members[0].values + members[1].values)) == list(range(40)))
        await asyncio.to_thread(members[0].close)
        await asyncio.to_thread(members[1].wait_until_it_owns, *FOUR)
        assert owned_twice(members) == []
        times = sorted((owned for member in members for owned in member.ownerships()), key=lambda each: each.begin)
        longest_s = 0.0
        for partition in FOUR:
            of_it = [each for each in times if each.partition == partition]
            gaps = [after.begin - before.end for before, after in pairwise(of_it)]
            longest_s = max([longest_s, *gaps])
        tell(f"a partition was without a member for {longest_s:.2f} s at most")
        assert longest_s < 20


async def test_the_partitions_of_a_killed_member_move_soon(broker: BrokerProcess, tell: Callable[[str], None]) -> None:
    """Scenario 2."""
    options = {"commits": True, "commit": "manual", "session_timeout_ms": SHORT_SESSION_MS}
    with MemberProcess(broker.address, **options) as first:
        await asyncio.to_thread(first.wait_until_it_owns, *FOUR)
        await send(broker, range(20))
        await until(lambda: sum(event["event"] == "committed" for event in first.events) == 20)
        with MemberProcess(broker.address, **options) as second:
            await asyncio.to_thread(second.wait_for, lambda member: len(member.owned) == 2)
            first.kill()
            killed_at = time.monotonic()
            await asyncio.to_thread(second.wait_until_it_owns, *FOUR)
            moved_s = time.monotonic() - killed_at
            tell(f"its partitions were read again {moved_s:.1f} s after SIGKILL, with a session of 2 s")
            assert 0.5 < moved_s < 2 + 20
            await send(broker, range(20, 40))
            await until(lambda: sorted(map(int, second.values)) == list(range(20, 40)))
            assert owned_twice([first, second]) == []


WAITING = pytest.mark.parametrize("broker", [{"group_heartbeat_interval_ms": 5000}], indirect=True)
"""Heartbeats wait at the coordinator nearly all the time: the end of the connection tells that a member is away."""


@WAITING
@pytest.mark.parametrize("restarts_broker", [False, True])
@pytest.mark.parametrize("partitions", [4, 1])
async def test_a_job_with_an_end_that_is_killed_and_started_again_reads_what_the_dead_one_holds(
    broker: BrokerProcess,
    admin: warmlog.Admin,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    partitions: int,
    restarts_broker: bool,
) -> None:
    monkeypatch.setattr("warmlog.consumer.member.FIRST_ASSIGNMENT_S", 0.1)
    await admin.create_topic("jobs", partitions=partitions)
    async with warmlog.Producer(broker.address) as producer:
        for value in range(8):
            await producer.send("jobs", b"%d" % value, partition=value % partitions)
    options = {"topics": ["jobs"], "session_timeout_ms": 3000}
    with MemberProcess(broker.address, **options) as first:
        await asyncio.to_thread(first.wait_until_it_owns, *(f"jobs-{number}" for number in range(partitions)))
        first.kill()
    if restarts_broker:
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
    async with consumer(broker, **options) as client, asyncio.timeout(PATIENCE_S):
        assert sum([len(batch) async for batch in client.batches(until="latest")]) == 8
    assert "waiting for partitions that other members hold" in caplog.text


@WAITING
async def test_a_job_with_an_end_waits_for_what_a_killed_one_holds_beside_it(broker: BrokerProcess) -> None:
    await send(broker, range(8))
    with MemberProcess(broker.address, session_timeout_ms=4000, commit="manual") as first:
        await asyncio.to_thread(first.wait_until_it_owns, *FOUR)
        async with consumer(broker, session_timeout_ms=3000) as client, asyncio.timeout(PATIENCE_S):
            batches = client.batches(until="latest")
            read = len(await anext(batches))
            await asyncio.sleep(0.5)  # its heartbeat waits at the coordinator then
            first.kill()
            await asyncio.sleep(0.5)  # it is told at once
            assert read + sum([len(batch) async for batch in batches]) == 8


async def test_a_member_stopped_for_longer_than_its_session_is_told_and_joins_again(broker: BrokerProcess) -> None:
    """Scenario 3."""
    await send(broker, range(4))
    options = {"commits": True, "commit": "manual", "handles_s": 1.5, "session_timeout_ms": SHORT_SESSION_MS}
    with ExitStack() as stack:
        first = stack.enter_context(MemberProcess(broker.address, **options))
        await asyncio.to_thread(first.wait_for_event, "batch")
        first.stop()
        second = stack.enter_context(MemberProcess(broker.address))
        await asyncio.to_thread(second.wait_until_it_owns, *FOUR)
        await until(lambda: sorted(second.values) == ["0", "1", "2", "3"])
        first.go_on()
        told = await asyncio.to_thread(first.wait_for_event, "told")
        assert "no longer a member of group 'etl'" in told["error"]
        assert "others handle it again: orders-" in told["error"]
        assert not [event for event in first.events if event["event"] == "committed"]
        await asyncio.to_thread(first.wait_for, lambda member: len(member.owned) == 2)
        await asyncio.to_thread(second.wait_for, lambda member: len(member.owned) == 2)
        assert first.owned | second.owned == set(FOUR)
        await send(broker, range(4, 8))
        await until(lambda: {*first.values, *second.values} >= {str(value) for value in range(8)})


async def test_a_member_that_never_gives_up_is_fenced_at_its_rebalance_timeout(broker: BrokerProcess) -> None:
    """Scenario 4."""
    with ExitStack() as stack:
        first = stack.enter_context(MemberProcess(broker.address, never_revokes=True, rebalance_timeout_ms=3000))
        await asyncio.to_thread(first.wait_until_it_owns, *FOUR)
        second = stack.enter_context(MemberProcess(broker.address))
        await asyncio.to_thread(second.wait_for, lambda member: member.owned == set(FOUR))
        asked = await asyncio.to_thread(first.wait_for_event, "asked to give up")
        assigned = [event["at"] for event in second.events if event["event"] == "assigned"]
        assert assigned[-1] - asked["at"] > 1.0


async def test_a_rolling_restart_of_static_members_moves_nothing(broker: BrokerProcess, admin: warmlog.Admin) -> None:
    """Scenario 10, with twenty members."""
    await admin.create_topic("wide", partitions=40)
    moved: list[tuple[str, list[tuple[str, int]]]] = []
    owned: dict[str, list[tuple[str, int]]] = {}

    def member(number: int) -> warmlog.Consumer:
        def assigned(partitions: list[tuple[str, int]]) -> None:
            owned.setdefault(name, []).extend(partitions)

        name = f"worker-{number}"
        options = {"instance_id": name, "session_timeout_ms": 20_000, "on_assigned": assigned}
        return consumer(broker, topics=["wide"], **options, on_revoked=lambda given: moved.append((name, given)))

    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(number)) for number in range(20)]
        readers = [asyncio.ensure_future(anext(each.batches())) for each in members]
        try:
            await until(lambda: all(len(each.assignment) == 2 for each in members))
            before = {number: sorted(each.assignment) for number, each in enumerate(members)}
            moved.clear()
            for number in range(20):
                readers[number].cancel()
                await members[number].close()
                moved.clear() if len(moved) == 1 else pytest.fail(f"moved: {moved}")
                members[number] = await stack.enter_async_context(member(number))
                readers[number] = asyncio.ensure_future(anext(members[number].batches()))
                await until(lambda number=number: len(members[number].assignment) == 2)  # type: ignore[misc]
            assert {number: sorted(each.assignment) for number, each in enumerate(members)} == before
            assert moved == []
        finally:
            for reader in readers:
                reader.cancel()


async def test_of_two_processes_with_one_instance_id_the_earlier_is_told(broker: BrokerProcess) -> None:
    """Scenario 11."""
    with ExitStack() as stack:
        first = stack.enter_context(MemberProcess(broker.address, instance_id="one"))
        await asyncio.to_thread(first.wait_until_it_owns, *FOUR)
        second = stack.enter_context(MemberProcess(broker.address, instance_id="one"))
        await asyncio.to_thread(second.wait_until_it_owns, *FOUR)
        fenced = await asyncio.to_thread(first.wait_for_event, "fenced")
        assert "another process has joined group 'etl' with instance id 'one'" in fenced["error"]
        await send(broker, range(8))
        await until(lambda: sorted(map(int, second.values)) == list(range(8)))
        assert first.values == []


async def test_a_killed_static_member_is_replaced_before_its_session_ends(broker: BrokerProcess) -> None:
    """Scenario 11, without a living first."""
    with MemberProcess(broker.address, instance_id="one", session_timeout_ms=60_000) as first:
        await asyncio.to_thread(first.wait_until_it_owns, *FOUR)
        first.kill()
        with MemberProcess(broker.address, instance_id="one", session_timeout_ms=60_000) as second:
            await asyncio.to_thread(second.wait_until_it_owns, *FOUR)


async def test_partitions_that_are_taken_and_given_back_before_that_was_confirmed(broker: BrokerProcess) -> None:
    """Scenario 12."""
    await send(broker, range(40))
    async with consumer(broker) as first:
        batches = first.batches()
        found = await take(batches, 1)
        epoch = first.group_metadata().member_epoch
        async with consumer(broker) as second:
            await until(lambda: first.group_metadata().member_epoch > epoch)
            assert second.assignment == []
        await asyncio.sleep(0.5)
        found += await take(batches, 39)
        assert sorted(int(batch.values[0] or b"") for batch in found) == list(range(40))
        assert len(first.assignment) == 4
    assert sum((await committed(broker)).values()) == 39


async def test_added_partitions_are_read_and_old_offsets_not_used(broker: BrokerProcess, admin: warmlog.Admin) -> None:
    """Scenario 13."""
    await send(broker, range(8))
    async with consumer(broker, commit_interval_ms=100) as client:
        batches = client.batches()
        await take(batches, 8)
        reading = asyncio.ensure_future(anext(batches))
        await admin.add_partitions("orders", 6)
        await until(lambda: len(client.assignment) == 6)
        async with warmlog.Producer(broker.address) as producer:
            await producer.send("orders", b"new", partition=5)
        assert (await asyncio.wait_for(reading, PATIENCE_S)).values == [b"new"]
        reading = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0.3)
        await admin.delete_topic("orders")
        await until(lambda: client.assignment == [])
        await admin.create_topic("orders", partitions=4)
        await until(lambda: len(client.assignment) == 4)
        await send(broker, range(100, 101))
        batch = await asyncio.wait_for(reading, PATIENCE_S)
        assert (batch.values, batch.next_offset) == ([b"100"], 1)


async def test_a_topic_recreated_at_once_is_read_from_its_start(broker: BrokerProcess, admin: warmlog.Admin) -> None:
    """Scenario 13, without a moment in between."""
    await send(broker, range(8))
    async with consumer(broker) as client:
        batches = client.batches()
        await take(batches, 8)
        await client.commit()
        reading = asyncio.ensure_future(anext(batches))
        await admin.delete_topic("orders")
        await admin.create_topic("orders", partitions=4)
        await send(broker, range(2))
        batch = await asyncio.wait_for(reading, PATIENCE_S)
        assert batch.base_offset == 0


async def test_a_committed_offset_is_not_one_of_a_recreated_topic(broker: BrokerProcess, admin: warmlog.Admin) -> None:
    """Nor is the offset where this consumer began."""

    async def read_on() -> None:
        while True:
            with suppress(warmlog.UnknownTopicId):  # of the moment without a topic
                await anext(client.batches())

    await send(broker, range(8))
    async with consumer(broker, partitions=FOUR[:1], start=1, commit="manual") as client:
        await take(client.batches(), 1)
        await client.commit()
        await admin.delete_topic("orders")
        await admin.create_topic("orders", partitions=4)
        await send(broker, range(100, 116))
        with pytest.raises(warmlog.InconsistentTopicId):
            await asyncio.wait_for(read_on(), PATIENCE_S)
        await client.seek_to_committed()
        batch = await anext(client.batches())
        assert (batch.values, batch.base_offset) == ([b"100"], 0)


async def test_a_pattern_finds_a_new_topic_soon(broker: BrokerProcess, admin: warmlog.Admin) -> None:
    """Scenario 14."""
    async with consumer(broker, pattern="clicks-.*") as client:
        reading = asyncio.ensure_future(anext(client.batches()))
        await asyncio.sleep(0.5)
        assert client.assignment == []
        await admin.create_topic("clicks-eu", partitions=4)
        await send(broker, range(1), topic="clicks-eu")
        assert (await asyncio.wait_for(reading, PATIENCE_S)).topic == "clicks-eu"


@pytest.mark.parametrize("topics", [{"topics": ["orders"]}, {"pattern": "(orders|clicks)"}])
async def test_what_is_added_while_a_group_that_starts_at_latest_is_there_is_read_from_its_start(
    broker: BrokerProcess, admin: warmlog.Admin, topics: dict[str, Any]
) -> None:
    await send(broker, range(8))
    async with consumer(broker, start="latest", **topics) as client:
        reading = asyncio.ensure_future(anext(client.records()))
        await until(lambda: len(client.assignment) == 4)
        if "pattern" in topics:
            await admin.create_topic("clicks", partitions=5)
        else:
            await admin.add_partitions("orders", 5)
        async with warmlog.Producer(broker.address) as producer:
            await producer.send("clicks" if "pattern" in topics else "orders", b"new", partition=4)
        assert (await asyncio.wait_for(reading, PATIENCE_S)).value == b"new"


@pytest.mark.parametrize("topics", [{"topics": ["orders"]}, {"pattern": "ord.*"}])
@pytest.mark.parametrize("partition", ["ordrs-0", "orders-9"])
async def test_a_start_that_names_a_partition_that_no_member_reads_is_refused(
    broker: BrokerProcess, topics: dict[str, Any], partition: str
) -> None:
    client = consumer(broker, start={partition: 5}, **topics)
    with pytest.raises(ValueError, match=f"start names {partition}, which is not read"):
        await client.start()


async def test_a_start_at_latest_is_committed_at_once_for_whoever_continues_there(broker: BrokerProcess) -> None:
    await send(broker, range(8))
    async with consumer(broker, start="latest", commit_interval_ms=60_000) as client:
        reading = asyncio.ensure_future(anext(client.records()))
        await until(lambda: len(client.assignment) == 4)
        async with asyncio.timeout(PATIENCE_S):
            while await committed(broker) != dict.fromkeys(range(4), 2):  # noqa: ASYNC110 - the broker is a process
                await asyncio.sleep(0.05)
        reading.cancel()


async def test_code_that_blocks_the_event_loop_causes_no_rebalance(broker: BrokerProcess) -> None:
    """Scenario 15, scaled: twice the session."""
    await send(broker, range(1))
    options = {"commits": True, "commit": "manual", "session_timeout_ms": 2500}
    with MemberProcess(broker.address, blocks_s=5.0, **options) as member:
        await asyncio.to_thread(member.wait_for_event, "batch")
        await asyncio.to_thread(member.wait_for_event, "committed")
        assert [event["event"] for event in member.events] == ["joined", "assigned", "batch", "committed"]


async def heartbeat(cluster: Cluster, member: str, epoch: int, **fields: Any) -> m.GroupHeartbeatResponse:
    request = m.GroupHeartbeatRequest("etl", member, epoch, **fields)
    return await cluster.call(request, m.GroupHeartbeatResponse)


async def describe(cluster: Cluster) -> m.DescribedGroup:
    """The group without the times of heartbeats."""
    (group,) = (await cluster.call(m.DescribeGroupsRequest(["etl"]), m.DescribeGroupsResponse)).groups
    members = sorted(group.members, key=lambda member: member.member_id)
    return replace(group, members=[replace(member, last_heartbeat_ms=0) for member in members])


async def test_a_lost_response_is_repeated_and_late_heartbeats_change_nothing(broker: BrokerProcess) -> None:
    """Scenarios 16 and 17."""
    cluster = Cluster(broker.address, ConnectionOptions())
    try:
        await cluster.start()
        joined = await heartbeat(cluster, "m", 0, topics=["orders"], owned=[])
        for _ in range(800):
            first = await heartbeat(cluster, "m", joined.member_epoch, owned=[])
            if first.assignment:
                break
            await asyncio.sleep(0.05)
        again = await heartbeat(cluster, "m", joined.member_epoch, owned=[])
        assert first.assignment
        assert (again.assignment, again.member_epoch) == (first.assignment, first.member_epoch)
        confirmed = await heartbeat(cluster, "m", first.member_epoch, owned=first.assignment)
        assert confirmed.assignment is None
        await heartbeat(cluster, "n", 0, topics=["orders"], owned=[])
        moved = confirmed
        while moved.member_epoch == first.member_epoch:
            await asyncio.sleep(0.05)
            moved = await heartbeat(cluster, "m", first.member_epoch, owned=first.assignment)
        before = await describe(cluster)
        late = await heartbeat(cluster, "m", first.member_epoch, owned=[])
        assert (late.member_epoch, late.assignment) == (moved.member_epoch, moved.assignment)
        with pytest.raises(warmlog.FencedMemberEpoch):
            await heartbeat(cluster, "m", moved.member_epoch + 5, owned=[])
        assert await describe(cluster) == before
        assert [sum(len(each.partitions) for each in member.revoking) for member in before.members] == [2, 0]
    finally:
        await cluster.close()


async def test_members_whose_responses_are_lost_move_their_partitions_all_the_same(broker: BrokerProcess) -> None:
    """Scenario 16, with consumers: twenty responses are lost, of whatever, while another member comes and goes."""
    proxy = Proxy(broker.host, broker.port)
    await proxy.start()
    try:
        async with warmlog.Consumer(proxy.address, topics=["orders"], group="etl", retry_backoff_ms=5) as first:
            reading = asyncio.ensure_future(anext(first.batches()))
            for _ in range(5):
                await until(lambda: len(first.assignment) == 4)
                async with consumer(broker) as second:
                    waiting = asyncio.ensure_future(anext(second.batches()))
                    for _ in range(4):
                        await asyncio.wait_for(proxy.lose_answer(), PATIENCE_S)
                    await until(lambda second=second: len(second.assignment) == 2)  # type: ignore[misc]
                    await until(lambda: len(first.assignment) == 2)
                    waiting.cancel()
            await until(lambda: len(first.assignment) == 4)
            await send(broker, range(4))
            assert len((await asyncio.wait_for(reading, PATIENCE_S)).values) == 1
    finally:
        await proxy.stop()
    assert proxy.lost_answers == 20


async def test_a_commit_from_outside_is_refused_while_the_group_has_members(broker: BrokerProcess) -> None:
    """Scenario 20."""
    await send(broker, range(8))
    async with consumer(broker, partitions=FOUR, commit="manual") as outside:
        async with consumer(broker) as member:
            await take(member.batches(), 1)
            with pytest.raises(warmlog.NonEmptyGroup, match="has members, and only they may commit"):
                await outside.commit({"orders-0": 1})
        await outside.commit({"orders-0": 1, "orders-3": 2})
        assert await outside.committed() == {
            ("orders", 0): 1,
            ("orders", 1): 0,
            ("orders", 2): 0,
            ("orders", 3): 2,
        }
        with pytest.raises(warmlog.OffsetOutOfRange):
            await outside.commit({"orders-0": 1000})
    async with consumer(broker) as member:
        assert len([batch async for batch in member.batches(until="latest")]) == 8 - 3


async def test_members_outlast_a_broker_that_is_killed(broker: BrokerProcess) -> None:
    """The group is loaded with the same epoch, and nothing moves."""
    await send(broker, range(8))
    calls: list[str] = []
    async with consumer(broker, on_revoked=lambda _: calls.append("revoked")) as client:
        batches = client.batches()
        await take(batches, 8)
        await client.commit()
        epoch = client.group_metadata().member_epoch
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.start)
        await send(broker, range(8, 12))
        await take(batches, 4)
        await client.commit()
        await asyncio.sleep(1.5)
        assert client.group_metadata().member_epoch == epoch
        assert calls == []
        assert sum(offset or 0 for offset in (await client.committed()).values()) == 12


async def test_a_table_is_committed_once_the_next_call_shows_that_it_is_finished_with(broker: BrokerProcess) -> None:
    await send(broker, range(8))
    async with consumer(broker) as client:
        assert (await client.to_arrow()).num_rows == 8
    assert await committed(broker) == {0: 0, 1: 0, 2: 0, 3: 0}
    async with consumer(broker) as client:
        assert (await client.to_arrow()).num_rows == 8
        assert [batch async for batch in client.batches(until="latest")] == []
    assert await committed(broker) == {0: 2, 1: 2, 2: 2, 3: 2}


async def test_the_blocking_consumer_has_the_same(broker: BrokerProcess) -> None:
    await send(broker, range(8))
    calls: list[Any] = []

    def use() -> None:
        def revoked(partitions: list[tuple[str, int]]) -> None:
            calls.append(("revoked", len(partitions)))
            client.commit({"orders-0": 1})

        options = {"topics": ["orders"], "group": "etl", "commit": "manual"}
        callbacks = {"on_assigned": lambda given: calls.append(("assigned", len(given))), "on_revoked": revoked}
        with warmlog.blocking.Consumer(broker.address, **options, **callbacks) as client:
            for count, record in enumerate(client, 1):
                client.commit(record)
                if count == 8:
                    break
            assert client.committed() == {("orders", number): 2 for number in range(4)}
            assert client.group_metadata().group == "etl"
            assert {lag.records for lag in client.lag().values()} == {0}
            client.pause()
            client.resume(["orders-1"])

    await asyncio.to_thread(use)
    assert calls == [("assigned", 4), ("revoked", 4)]
    assert await committed(broker) == {0: 1, 1: 2, 2: 2, 3: 2}


async def test_faults_lose_no_record_and_no_commit(broker: BrokerProcess, tell: Callable[[str], None]) -> None:
    """Scenarios 2, 3, 5 and 6 in one, by chance."""
    rng = Random(FAULT_SEED)
    options = {"commits": True, "commit": "manual", "handles_s": 0.01, "session_timeout_ms": SHORT_SESSION_MS}
    sent = 400
    with ExitStack() as stack:
        members = [stack.enter_context(MemberProcess(broker.address, **options)) for _ in range(3)]
        living = list(members)
        sending = asyncio.ensure_future(send_slowly(broker, sent))
        for fault in rng.sample(["kill", "stop", "broker"] * 2, 6):
            await asyncio.sleep(0.3 + rng.random())
            victim = rng.choice(living)
            if fault == "broker":
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            elif fault == "stop":
                victim.stop()
                await asyncio.sleep(rng.choice([0.3, 2.6]))
                victim.go_on()
            else:
                victim.kill()
                living.remove(victim)
                members.append(stack.enter_context(MemberProcess(broker.address, **options)))
                living.append(members[-1])
        await sending
        expected = {str(value) for value in range(sent)}
        await until(lambda: expected <= {value for member in members for value in member.values})
        async with asyncio.timeout(PATIENCE_S):  # a commit follows the record, and a refused one another member
            while sum((await committed(broker)).values()) < sent:  # noqa: ASYNC110 - members are processes
                await asyncio.sleep(0.05)
        acknowledged: dict[int, int] = {}
        for event in (event for member in members for event in member.events if event["event"] == "committed"):
            partition = int(event["partition"].rpartition("-")[2])
            acknowledged[partition] = max(acknowledged.get(partition, 0), event["offset"])
        for member in living:
            await asyncio.to_thread(member.close)
        found = await committed(broker)
        assert all(found[partition] >= offset for partition, offset in acknowledged.items()), (found, acknowledged)
        assert sum(found.values()) == sent
        handled = sum(len(member.values) for member in members)
        tell(f"{handled - sent} of {sent} records were handled twice, with 6 faults")


async def send_slowly(broker: BrokerProcess, count: int) -> None:
    async with warmlog.Producer(broker.address, linger_ms=0) as producer:
        for value in range(count):
            producer.send("orders", b"%d" % value, partition=value % 4)
            await asyncio.sleep(0.015)
