"""Clients of a cluster follow leaders and coordinators: nothing is lost, doubled or skipped, and no call raises."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

import warmlog
from fake_broker import FakeBroker, Fault, topic_id
from fake_cluster import FakeCluster
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog_protocol import messages as m
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.wire.connection import Request, ServerConnection
from warmlog_transport import cluster as transport
from warmlog_transport.cluster import Cluster
from warmlog_transport.options import ConnectionOptions

QUICK = {"retry_backoff_ms": 5, "retry_backoff_max_ms": 20}
OPTIONS = ConnectionOptions(retry_backoff_ms=5, retry_backoff_max_ms=20, request_timeout_ms=10_000)


@pytest.fixture
async def three() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(t=1) as cluster:
        yield cluster


@pytest.fixture
async def client(three: FakeCluster) -> AsyncIterator[Cluster]:
    async with Cluster(three.addresses, OPTIONS) as cluster:
        yield cluster


def values(three: FakeCluster) -> list[bytes | None]:
    return three.topics["t"][0].values()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(25):
        while not condition():  # noqa: ASYNC110 - a fake broker
            await asyncio.sleep(0.005)


# Producing


async def test_a_producer_follows_the_leader_and_what_was_sent_is_there_once(three: FakeCluster) -> None:
    async with warmlog.Producer(three.addresses, linger_ms=0, **QUICK) as producer:
        for number in range(30):
            three.lead(number // 5 % 3, number // 5 + 1)
            await producer.send("t", b"%d" % number)
    assert values(three) == [b"%d" % number for number in range(30)]


@pytest.mark.parametrize("fault", [Fault.NOT_ENOUGH_REPLICAS, Fault.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
async def test_a_batch_that_too_few_replicas_have_is_sent_again_under_its_sequence(
    three: FakeCluster, fault: Fault
) -> None:
    three.brokers[0].faults.extend([fault] * 3)
    async with warmlog.Producer(three.addresses, linger_ms=0, **QUICK) as producer:
        sent = [await asyncio.gather(*(producer.send("t", b"%d" % number) for number in range(3)))]
    assert [each.offset for each in sent[0]] == [0, 1, 2]
    assert values(three) == [b"0", b"1", b"2"]


async def test_a_producer_waits_while_there_is_no_leader(three: FakeCluster) -> None:
    three.lead(-1, 1)
    async with warmlog.Producer(three.addresses, linger_ms=0, **QUICK) as producer:
        waiting = producer.send("t", b"a")
        await until(lambda: len([each for broker in three.brokers for each in broker.asked]) > 5)
        three.lead(2, 2)
        assert (await waiting).offset == 0


async def killed(three: FakeCluster) -> None:
    """The first broker is gone, which the others notice after a while."""
    await three.brokers[0].stop()
    await asyncio.sleep(0.2)
    three.lead(1, 1)


async def test_a_producer_goes_on_when_its_leader_is_gone(three: FakeCluster) -> None:
    async with warmlog.Producer(three.addresses, linger_ms=0, **QUICK) as producer:
        await producer.send("t", b"a")
        killing = asyncio.create_task(killed(three))
        await asyncio.sleep(0.01)
        async with asyncio.timeout(25):
            assert (await producer.send("t", b"b")).offset == 1
        await killing


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SILENT_S", 0.2)
    monkeypatch.setattr(transport, "LOOK_S", 0.05)


@pytest.mark.usefixtures("impatient")
async def test_what_waits_for_a_leader_that_hangs_is_sent_to_the_next(three: FakeCluster) -> None:
    async with warmlog.Producer(three.addresses, linger_ms=0, **QUICK) as producer:
        await producer.send("t", b"a")
        three.brokers[0].is_silent = True
        waiting = producer.send("t", b"b")
        await asyncio.sleep(0.1)
        three.lead(2, 1)
        async with asyncio.timeout(25):  # its request would wait for 30 s
            assert (await waiting).offset == 1


# Reading


async def read(consumer: warmlog.Consumer, count: int) -> list[bytes | None]:
    found = []
    async with asyncio.timeout(25):
        async for record in consumer.records():
            found.append(record.value)
            if len(found) == count:
                break
    return found


def add(three: FakeCluster, first: int, count: int) -> None:
    for number in range(first, first + count):
        three.brokers[three.view.leader("t", 0)[0]].add_batch("t", 0, encode_batch([b"%d" % number], timestamps_ms=1))


async def test_a_consumer_keeps_its_position_and_epoch_over_a_change_of_leaders(three: FakeCluster) -> None:
    add(three, 0, 4)
    async with warmlog.Consumer(three.addresses, topics=["t"], start="earliest", max_wait_ms=20, **QUICK) as consumer:
        found = await read(consumer, 4)
        three.lead(1, 7)
        add(three, 4, 4)
        found += await read(consumer, 4)
    assert found == [b"%d" % number for number in range(8)]
    first = three.brokers[1].fetches[0]
    assert (first.fetch_offset, first.current_leader_epoch, first.last_fetched_epoch) == (4, 7, 0)


async def test_a_consumer_goes_on_when_its_leader_is_gone(three: FakeCluster) -> None:
    add(three, 0, 1)
    async with warmlog.Consumer(three.addresses, topics=["t"], start="earliest", max_wait_ms=20, **QUICK) as consumer:
        assert await read(consumer, 1) == [b"0"]
        await killed(three)
        add(three, 1, 1)
        assert await read(consumer, 1) == [b"1"]


@pytest.mark.usefixtures("impatient")
async def test_a_consumer_leaves_a_leader_that_hangs(three: FakeCluster) -> None:
    add(three, 0, 1)
    async with warmlog.Consumer(three.addresses, topics=["t"], start="earliest", max_wait_ms=20, **QUICK) as consumer:
        assert await read(consumer, 1) == [b"0"]
        three.brokers[0].is_silent = True
        reading = asyncio.create_task(read(consumer, 1))
        await asyncio.sleep(0.1)
        three.lead(2, 1)
        add(three, 1, 1)
        assert await reading == [b"1"]


async def test_a_fetch_always_has_the_epoch_that_the_metadata_had(three: FakeCluster) -> None:
    three.lead(0, 3)
    add(three, 0, 2)
    async with warmlog.Consumer(three.addresses, topics=["t"], start="earliest", max_wait_ms=20, **QUICK) as consumer:
        assert await read(consumer, 2) == [b"0", b"1"]
        three.lead(0, 4)  # the leader was elected again: a fetch in the old epoch is fenced
        add(three, 2, 2)
        assert await read(consumer, 2) == [b"2", b"3"]
    assert {each.current_leader_epoch for each in three.brokers[0].fetches} == {3, 4}


async def test_a_new_leader_may_not_know_yet_what_can_be_read(three: FakeCluster) -> None:
    """It responds with OFFSET_NOT_AVAILABLE until it knows: no consumer goes back, and no call raises."""
    add(three, 0, 3)
    refused = []

    def not_yet(kind: str) -> warmlog.OffsetNotAvailable | None:
        refused.append(kind)
        return warmlog.OffsetNotAvailable("soon") if refused.count(kind) < 3 else None

    leader = three.brokers[0]

    def list_offsets(request: m.ListOffsetsRequest) -> m.ListOffsetsResponse:
        if not_yet("list") is None:
            return leader._list_offsets(request)
        code = warmlog.ErrorCode.OFFSET_NOT_AVAILABLE
        return m.ListOffsetsResponse([m.ListedOffset("t", 0, code, "soon", -1, -1, -1) for _ in request.partitions])

    leader.further_handlers[m.ListOffsetsRequest] = list_offsets
    leader.fetch_error = lambda _: not_yet("fetch")
    async with warmlog.Consumer(three.addresses, topics=["t"], start="earliest", max_wait_ms=20, **QUICK) as consumer:
        assert await read(consumer, 3) == [b"0", b"1", b"2"]
    assert (refused.count("list") >= 3, refused.count("fetch") >= 3) == (True, True)


async def test_a_consumer_waits_for_a_leader_that_does_not_know_of_its_epoch_yet(three: FakeCluster) -> None:
    add(three, 0, 1)
    three.brokers[1].own_view = three.view
    three.lead(1, 5)
    async with warmlog.Consumer(three.addresses, topics=["t"], start="earliest", max_wait_ms=20, **QUICK) as consumer:
        reading = asyncio.create_task(read(consumer, 1))
        await until(lambda: len(three.brokers[1].fetches) > 2)
        three.brokers[1].own_view = None
        assert await reading == [b"0"]


async def test_the_leader_of_the_latest_epoch_counts_whatever_a_late_broker_says(
    three: FakeCluster, client: Cluster
) -> None:
    three.lead(0, 1)
    three.brokers[2].own_view = three.view
    three.lead(1, 2)
    for _ in range(9):
        await client.learn(["t"])
        if client.leader_epoch("t", 0) == 2:
            break
    for broker in three.brokers:  # each is asked in its turn
        await client._link(transport.Address("127.0.0.1", broker.port)).connected()
    for _ in range(6):
        await client.learn(["t"])
        link = client.leader("t", 0)
        assert link is not None
        assert (link.address.port, client.leader_epoch("t", 0)) == (three.brokers[1].port, 2)
    assert all(any(isinstance(each, m.MetadataRequest) for each in broker.asked) for broker in three.brokers)


async def test_the_leader_epoch_of_a_broker_alone_may_go_back() -> None:
    """As when its disks are those of an earlier backup: no client waits for it to know of a later epoch."""
    async with FakeCluster(1, t=1) as one:
        one.lead(0, 5)
        add(one, 0, 1)
        async with warmlog.Consumer(one.addresses, topics=["t"], start="earliest", max_wait_ms=20, **QUICK) as consumer:
            assert await read(consumer, 1) == [b"0"]
            one.lead(0, 3)
            add(one, 1, 1)
            assert await read(consumer, 1) == [b"1"]


@pytest.mark.parametrize("fetches", [0, 2])
async def test_a_range_is_read_on_at_the_next_leader(three: FakeCluster, fetches: int) -> None:
    """In Spark's tasks: the leader changes after the plan, or in the middle of the range."""
    add(three, 0, 8)
    planned = OffsetRange("t", 0, 0, 8, three.brokers[0].address, topic_id("t"), leader_epoch=0)
    settings = ReadSettings(bootstrap=tuple(three.addresses.split(",")), connection=OPTIONS, fetch_bytes=1, in_flight=1)
    first = three.brokers[0]
    refuse = first.fetch_error

    def moved(asked: m.FetchPartition) -> warmlog.ApiError | None:
        if len(first.fetches) == fetches:
            three.lead(2, 9)
        return refuse(asked)

    first.fetch_error = moved
    batches = await asyncio.to_thread(lambda: list(read_ranges([planned], Projection(("value",)), settings)))
    assert [value for batch in batches for value in batch.column("value").to_pylist()] == values(three)
    assert {each.current_leader_epoch for each in three.brokers[2].fetches} == {9}


async def test_a_range_that_ends_above_the_high_watermark_of_a_new_leader_is_read_when_that_has_risen(
    three: FakeCluster,
) -> None:
    add(three, 0, 8)
    planned = OffsetRange("t", 0, 0, 8, three.brokers[0].address, topic_id("t"), leader_epoch=0)
    settings = ReadSettings(
        bootstrap=tuple(three.addresses.split(",")), connection=OPTIONS, fetch_bytes=1, in_flight=1, max_wait_ms=10
    )
    three.topics["t"][0].most_committed = 5
    three.lead(1, 4)
    reading = asyncio.create_task(
        asyncio.to_thread(lambda: list(read_ranges([planned], Projection(("value",)), settings)))
    )
    await until(lambda: sum(each.fetch_offset == 5 for each in three.brokers[1].fetches) > 2)
    three.topics["t"][0].most_committed = 8
    assert [value for batch in await reading for value in batch.column("value").to_pylist()] == values(three)


# Coordinators


def offsets(three: FakeCluster) -> None:
    """Have commits accepted."""
    three.answer(m.OffsetCommitRequest, lambda _: m.OffsetCommitResponse([]))


def committing(group: str = "g") -> m.OffsetCommitRequest:
    return m.OffsetCommitRequest(group, [])


def asked(three: FakeCluster, kind: type[m.Message]) -> list[int]:
    """How many requests of this kind each broker had."""
    return [sum(isinstance(each, kind) for each in broker.asked) for broker in three.brokers]


async def test_a_coordinator_is_looked_for_once_and_again_when_it_moves(three: FakeCluster, client: Cluster) -> None:
    offsets(three)
    three.coordinate(1, "g")
    for _ in range(3):
        await client.call(committing(), m.OffsetCommitResponse)
    assert asked(three, m.OffsetCommitRequest) == [0, 3, 0]
    assert sum(asked(three, m.FindCoordinatorRequest)) == 1
    three.coordinate(2, "g")
    await client.call(committing(), m.OffsetCommitResponse)
    assert asked(three, m.OffsetCommitRequest) == [0, 4, 1]
    assert sum(asked(three, m.FindCoordinatorRequest)) == 2


@pytest.mark.parametrize("end", ["stopped", "silent", "hangs without a connection"])
async def test_a_coordinator_that_is_gone_is_left(
    three: FakeCluster, client: Cluster, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "COORDINATOR_S", 1.0)
    monkeypatch.setattr(transport, "ANY_BROKER_S", 1.0)
    offsets(three)
    three.coordinate(1, "g")
    await client.call(committing(), m.OffsetCommitResponse)
    if end == "stopped":
        await three.brokers[1].stop()
    else:
        three.brokers[1].is_silent = True
    if end == "hangs without a connection":
        three.brokers[1].disconnect()
    waiting = asyncio.create_task(client.call(committing(), m.OffsetCommitResponse))
    await asyncio.sleep(0.05)
    three.coordinate(-1, "g")
    await asyncio.sleep(0.05)
    three.coordinate(2, "g")
    await waiting
    assert asked(three, m.OffsetCommitRequest)[2] == 1


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (m.InitProducerIdRequest("tx"), m.InitProducerIdResponse(1, 0)),
        (m.EndTransactionRequest("tx", 1, 0, True), m.EndTransactionResponse(1, 1)),
        (m.TxnOffsetCommitRequest("tx", 1, 0, "g", []), m.OffsetCommitResponse([])),
        (m.JobHeartbeatRequest("tx", 1, m.JobMember(1, 0)), m.JobHeartbeatResponse()),
        (m.OffsetFetchRequest("tx"), m.OffsetFetchResponse([])),
    ],
)
async def test_requests_go_to_the_coordinator_of_their_id(
    three: FakeCluster, client: Cluster, request_: m.Message, expected: m.Message
) -> None:
    three.answer(type(request_), lambda _: expected)
    three.coordinate(2, "tx")
    await client.call(request_, type(expected))
    assert asked(three, type(request_)) == [0, 0, 1]


async def test_a_broker_of_0_1_is_asked_itself() -> None:
    """It does not know FindCoordinator, and is a cluster alone."""
    async with FakeBroker(t=1) as broker:
        known = [m.ApiVersions(key, 0, 0) for key in m.APIS if key != m.ApiKey.FIND_COORDINATOR]
        broker._handshake = lambda _: m.HandshakeResponse("0.1.0", "c", 0, 1 << 24, known)  # type: ignore[method-assign]
        broker.further_handlers[m.OffsetCommitRequest] = lambda _: m.OffsetCommitResponse([])
        async with Cluster(broker.address, OPTIONS) as client:
            for group in ("g", "h"):
                assert await client.call(committing(group), m.OffsetCommitResponse) == m.OffsetCommitResponse([])


async def test_a_broker_alone_is_asked_where_it_was_reached() -> None:
    """As by a tunnel: the address that it advertises need not be reachable for what concerns no records."""
    async with FakeBroker(t=1) as broker:
        elsewhere = m.MetadataResponse("c", 0, [m.BrokerMetadata(0, "127.0.0.1", 1)], [])
        broker.further_handlers |= {
            m.MetadataRequest: lambda _: elsewhere,
            m.FindCoordinatorRequest: lambda _: m.FindCoordinatorResponse(
                [m.FoundCoordinator(0, "", "g", 0, "127.0.0.1", 1)], is_for_all=True
            ),
            m.ListGroupsRequest: lambda _: m.ListGroupsResponse([]),
            m.OffsetFetchRequest: lambda _: m.OffsetFetchResponse([]),
        }
        async with warmlog.Admin(broker.address, **QUICK) as admin:
            assert await admin.list_groups() == []
            assert await admin.committed_offsets("g") == {}


@pytest.mark.parametrize("is_for_all", [True, False])
async def test_a_broker_alone_that_is_slow_is_waited_for_though_it_has_two_addresses(
    monkeypatch: pytest.MonkeyPatch, *, is_for_all: bool
) -> None:
    async with FakeBroker(t=1) as broker:
        found = m.FindCoordinatorResponse([m.FoundCoordinator(0, "", "g")], is_for_all=is_for_all)
        late: dict[type[m.Message], m.Message] = {
            m.ListGroupsRequest: m.ListGroupsResponse([]),
            m.FindCoordinatorRequest: found,
            m.OffsetCommitRequest: m.OffsetCommitResponse([]),
        }
        handle = broker._handle

        def handle_late(connection: ServerConnection, writer: asyncio.StreamWriter, request: Request) -> None:
            if type(request.message) in late:
                asyncio.get_running_loop().call_later(0.05, handle, connection, writer, request)
            else:
                handle(connection, writer, request)

        broker.further_handlers = {kind: lambda _, response=response: response for kind, response in late.items()}
        broker._handle = handle_late  # type: ignore[method-assign]
        monkeypatch.setattr(transport, "ANY_BROKER_S", 0)
        monkeypatch.setattr(transport, "COORDINATOR_S", 0)
        async with Cluster([broker.address, f"localhost:{broker.port}"], OPTIONS) as client:
            await client.call(m.ListGroupsRequest(), m.ListGroupsResponse)
            for _ in range(2):
                await client.call(committing(), m.OffsetCommitResponse)
                client.forget_coordinator(committing())
            await client.call(m.ListGroupsRequest(), m.ListGroupsResponse)


async def test_an_idempotent_producer_needs_no_coordinator(three: FakeCluster, client: Cluster) -> None:
    await client.call(m.InitProducerIdRequest(), m.InitProducerIdResponse)
    assert sum(asked(three, m.FindCoordinatorRequest)) == 0


async def test_admin_asks_each_broker_for_its_groups_and_each_coordinator_for_one(three: FakeCluster) -> None:
    for node_id, name in enumerate("cab"):
        listing = m.ListGroupsResponse([m.GroupListing(name, "empty", 0)])
        three.brokers[node_id].further_handlers[m.ListGroupsRequest] = lambda _, listing=listing: listing
        three.coordinate(node_id, name)

    def describe(request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
        code = warmlog.ErrorCode.NOT_COORDINATOR if three.view.coordinators["a"] < 2 else 0
        if code:
            three.coordinate(2, "a")  # it moves while the request is on its way: only the group has the error
        return m.DescribeGroupsResponse([m.DescribedGroup(code, "", name, "empty") for name in request.groups])

    three.answer(m.DescribeGroupsRequest, describe)
    async with warmlog.Admin(three.addresses, **QUICK) as admin:
        assert [each.name for each in await admin.list_groups()] == ["a", "b", "c"]
        assert (await admin.describe_group("a")).name == "a"
    assert asked(three, m.DescribeGroupsRequest) == [0, 1, 1]


async def test_each_broker_is_asked_again_without_the_one_that_hangs(
    three: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ANY_BROKER_S", 0.1)
    monkeypatch.setattr(transport, "COORDINATOR_S", 0.1)
    three.answer(m.ListGroupsRequest, lambda _: m.ListGroupsResponse([]))
    async with warmlog.Admin(three.addresses, **QUICK) as admin:
        assert await admin.list_groups() == []
        three.brokers[2].is_silent = True
        listing = asyncio.create_task(admin.list_groups())
        await until(lambda: sum(asked(three, m.ListGroupsRequest)) > 6)
        three.brokers.pop()
        async with asyncio.timeout(25):  # its request would wait for 30 s
            assert await listing == []


async def test_who_looks_for_a_coordinator_knows_all_brokers_when_it_is_gone(three: FakeCluster) -> None:
    """As the heartbeats of a member, which need no metadata of topics."""
    offsets(three)
    async with Cluster(three.brokers[0].address, OPTIONS) as client:
        await client.call(committing(), m.OffsetCommitResponse)
        await three.brokers[0].stop()
        three.coordinate(2, "g")
        await client.call(committing(), m.OffsetCommitResponse)
    assert asked(three, m.OffsetCommitRequest) == [1, 0, 1]


async def test_a_client_from_when_there_was_one_broker_knows_the_others_when_that_is_gone(
    three: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that has been idle since, and that names no topic: as a member when its broker becomes a cluster."""
    monkeypatch.setattr(transport, "ALONE_S", 0.05)
    offsets(three)
    others = [three.brokers.pop() for _ in range(2)]
    async with Cluster(three.brokers[0].address, OPTIONS) as client:
        await client.call(committing(), m.OffsetCommitResponse)
        three.brokers += reversed(others)
        await until(lambda: len(client.addresses) == 3)
        await three.brokers[0].stop()
        three.coordinate(2, "g")
        await client.call(committing(), m.OffsetCommitResponse)
    assert asked(three, m.OffsetCommitRequest) == [1, 0, 1]


async def test_admin_moves_a_partition_where_it_is_led_and_lists_the_directories_of_all(three: FakeCluster) -> None:
    three.lead(2, 1)
    moved = m.AlterReplicaLogDirsResponse([m.PartitionResult("t", 0, 0, "")])
    three.answer(m.AlterReplicaLogDirsRequest, lambda _: moved)
    for broker in three.brokers:
        found = m.DescribeLogDirsResponse([m.LogDir(0, "", "/data", [])], broker.node_id)
        broker.further_handlers[m.DescribeLogDirsRequest] = lambda _, found=found: found
    async with warmlog.Admin(three.addresses, **QUICK) as admin:
        await admin.move_partition("t", 0, "/data/2")
        assert [(each.broker, each.path) for each in await admin.describe_log_dirs()] == [
            (0, "/data"),
            (1, "/data"),
            (2, "/data"),
        ]
    assert asked(three, m.AlterReplicaLogDirsRequest) == [0, 0, 1]


# Any broker


async def test_what_each_broker_can_tell_is_asked_of_another_if_one_is_silent(
    three: FakeCluster, client: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "ANY_BROKER_S", 0.3)
    await client.learn(["t"])
    three.brokers[0].is_silent = True
    for _ in range(3):
        await client.topics(["t"])  # the one that waits for the silent broker would raise
    assert asked(three, m.MetadataRequest)[1:] != [0, 0]


async def test_a_topic_is_unknown_only_if_no_broker_knows_it(three: FakeCluster, client: Cluster) -> None:
    for broker in three.brokers:
        await client._link(transport.Address("127.0.0.1", broker.port)).connected()
    await client.learn([])
    for broker in three.brokers[:2]:
        broker.topics = {}
    for _ in range(3):
        assert [topic.name for topic in await client.topics(["t"])] == ["t"]
    with pytest.raises(warmlog.UnknownTopicOrPartition, match="does not exist"):
        await client.topics(["none"])


async def test_one_address_is_enough_once_the_others_are_known(three: FakeCluster) -> None:
    async with Cluster(three.brokers[0].address, OPTIONS) as client:
        await client.learn(["t"])
        await three.brokers[0].stop()
        three.lead(1, 1)
        await client.learn(["t"])
        assert client.leader("t", 0) is not None
