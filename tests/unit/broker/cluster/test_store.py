"""The facts of a cluster in etcd, as two brokers change and see them."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from fake_coordination import FakeCoordination
from waiting import until
from warmlog_broker.cluster import keys
from warmlog_broker.cluster.keys import Keys, NodeValue, OrderValue, Registration, to_bytes
from warmlog_broker.cluster.records import PartitionKey
from warmlog_broker.cluster.store import EtcdStore
from warmlog_broker.cluster.view import Applied, View
from warmlog_broker.etcd import coordination as etcd_calls
from warmlog_broker.etcd.coordination import Compare, Delete, Outcome, Put
from warmlog_broker.metadata.metadata_log import (
    AclsCreated,
    AclsDeleted,
    Entry,
    PartitionsAdded,
    QuotaAltered,
    TopicAltered,
    TopicCreated,
    TopicDeleted,
    UserAltered,
    UserDeleted,
    UserSecretMade,
)
from warmlog_broker.metadata.store import BLOCK_IDS, Changed, ProducerIds
from warmlog_broker.replication import record as records
from warmlog_broker.topics.topics import wanted_replicas
from warmlog_protocol.errors import (
    InvalidReplicaAssignment,
    InvalidReplicationFactor,
    RequestTimedOut,
    StorageError,
    UnsupportedVersion,
)
from warmlog_protocol.messages import AclBinding, NewTopic, Operation, ResourceType
from warmlog_protocol.sasl.credential import MIN_ITERATIONS
from warmlog_protocol.sasl.derivation import make_credential

CLUSTER = Keys("test")


def topic(name: str = "a.b", number: int = 1, partitions: int = 3, factor: int = 2) -> TopicCreated:
    return TopicCreated(name, bytes([number]) * 16, partitions, {"retention.ms": "5"}, replication_factor=factor)


class Broker:
    """The store of one broker, which follows the changes of the others."""

    def __init__(self, etcd: FakeCoordination, node: int) -> None:
        self.view = View(etcd, CLUSTER, node)
        self.store = EtcdStore(etcd, self.view)
        self.applied: list[Applied] = []
        self.view.on_applied.append(self.applied.append)

    async def __aenter__(self) -> "Broker":
        await self.view.read()
        self.following = asyncio.create_task(self.view.follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.following.cancel()
        await asyncio.wait([self.following])

    async def knows(self, other: "Broker") -> None:
        """Returns once this broker has seen all that `other` has."""
        await until(lambda: self.view.revision >= other.view.revision)


@pytest.fixture
async def etcd() -> FakeCoordination:
    etcd = FakeCoordination()
    for node in (1, 2, 3):
        value = Registration(uuid=f"u{node}", endpoints={}, peer_listener="", directories=[], rack=f"r{node}")
        mark = NodeValue(incarnation=1, beat=1, directories=[])
        await etcd.txn([], [Put(CLUSTER.node(node), to_bytes(mark)), Put(CLUSTER.broker(node), to_bytes(value))])
    return etcd


@pytest.fixture
async def one(etcd: FakeCoordination) -> AsyncIterator[Broker]:
    async with Broker(etcd, 1) as broker:
        yield broker


@pytest.fixture
async def two(etcd: FakeCoordination) -> AsyncIterator[Broker]:
    async with Broker(etcd, 2) as broker:
        yield broker


async def test_a_topic_is_there_for_all_brokers_with_a_record_for_each_partition(one: Broker, two: Broker) -> None:
    await one.store.commit([topic()], expected=one.store.version)
    assert one.store.state.topics == {"a.b": topic()}
    await two.knows(one)
    assert two.store.state.topics == {"a.b": topic()}
    records = [two.view.records[PartitionKey(topic().topic_id, number)].record for number in range(3)]
    assert [len(set(record.replicas)) for record in records] == [2, 2, 2]
    assert all(record.leader == record.replicas[0] and record.isr == record.replicas for record in records)
    assert {record.min_isr for record in records} == {2}
    assert len({record.leader for record in records}) == 3, "leaders are spread"
    for broker in (one, two):
        node = broker.view.node
        assert broker.store.here(topic()) == [n for n, record in enumerate(records) if node in record.replicas]


async def test_of_two_brokers_that_create_names_that_collide_one_succeeds(one: Broker, two: Broker) -> None:
    read = [(broker, broker.store.version) for broker in (one, two)]
    names = ["a.b", "a_b"]
    results = await asyncio.gather(
        *(
            broker.store.commit([topic(name, number)], expected=version)
            for number, ((broker, version), name) in enumerate(zip(read, names, strict=True))
        ),
        return_exceptions=True,
    )
    assert sorted(map(type, results), key=str) == sorted([type(None), Changed], key=str)
    await one.knows(two)
    await two.knows(one)
    assert one.store.state.topics.keys() == two.store.state.topics.keys()
    assert len(one.store.state.topics) == 1


async def test_a_change_decided_from_what_another_broker_has_changed_is_refused(one: Broker, two: Broker) -> None:
    await one.store.commit([topic()])
    await two.knows(one)
    read = two.store.version
    await one.store.commit([TopicAltered(topic().topic_id, "a.b", {})], expected=one.store.version)
    late: list[Entry] = [
        TopicAltered(topic().topic_id, "a.b", {"retention.ms": "7"}),
        PartitionsAdded(topic().topic_id, "a.b", 5),
        TopicDeleted(topic().topic_id, "a.b", 3),
        topic(number=2),
    ]
    for change in late:
        with pytest.raises(Changed):
            await two.store.commit([change], expected=read)
        assert two.store.version > read, "the state has what was changed"
    assert two.store.state.topics["a.b"].settings == {}


async def test_partitions_are_added_and_a_deleted_topic_leaves_its_id(one: Broker, two: Broker) -> None:
    await one.store.commit([topic()])
    await one.store.commit([PartitionsAdded(topic().topic_id, "a.b", 120)])
    await two.knows(one)
    assert two.store.state.topics["a.b"].partitions == 120
    assert len(two.view.records) == 120
    assert not two.store.is_deleted(topic().topic_id)
    await two.store.commit([TopicDeleted(topic().topic_id, "a.b", 120)], expected=two.store.version)
    await one.knows(two)
    assert one.store.state.topics == {}
    assert one.view.records == {}
    assert one.store.is_deleted(topic().topic_id)
    assert one.store.deleted_of([topic().topic_id, b"x"]) == [TopicDeleted(topic().topic_id, "a.b", 120)]
    await one.store.commit([topic("a_b", 2)], expected=one.store.version)


class Late(FakeCoordination):
    """etcd as one broker reaches it: a transaction that puts a key arrives when the test lets it."""

    def __init__(self, etcd: FakeCoordination, key: str) -> None:
        super().__init__()
        self.store = etcd.store
        self.key = key
        self.is_on_its_way, self.arrives = asyncio.Event(), asyncio.Event()

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[etcd_calls.Operation], read: Sequence[str] = ()
    ) -> Outcome:
        if any(isinstance(each, Put) and each.key == self.key for each in operations):
            self.is_on_its_way.set()
            await self.arrives.wait()
        return await super().txn(compares, operations, read)


async def test_a_late_addition_replaces_no_record_of_partitions_that_another_broker_has_added(
    etcd: FakeCoordination,
) -> None:
    key = PartitionKey(topic().topic_id, 1)
    first, second = Late(etcd, CLUSTER.topic("a.b")), Late(etcd, CLUSTER.partition(*key))
    added = PartitionsAdded(topic().topic_id, "a.b", 2)
    async with Broker(etcd, 3) as three, Broker(first, 1) as one, Broker(second, 2) as two:
        await three.store.commit([topic(partitions=1)])
        await one.knows(three)
        first_addition = asyncio.create_task(one.store.commit([added], expected=one.store.version))
        await first.is_on_its_way.wait()
        record = one.view.records[key].record
        await etcd.txn([], [Delete(CLUSTER.broker(record.leader))])
        await until(lambda: two.view.revision == etcd.store.revision)
        second_addition = asyncio.create_task(two.store.commit([added], expected=two.store.version))
        await second.is_on_its_way.wait()
        first.arrives.set()
        await first_addition
        second.arrives.set()
        with pytest.raises(Changed):
            await second_addition
        await one.knows(two)
        assert one.store.state.topics["a.b"].partitions == 2
        assert one.view.records[key].record == record


async def test_a_deleted_topic_leaves_no_orders(etcd: FakeCoordination, one: Broker) -> None:
    await one.store.commit([topic(), topic("other", 2)])
    for number, partition in ((1, 0), (1, 2), (2, 0)):
        order = Put(CLUSTER.order(topic(number=number).topic_id, partition), to_bytes(OrderValue(leader=1)))
        await etcd.txn([], [order])
    await one.store.commit([TopicDeleted(topic().topic_id, "a.b", 3)])
    assert set(one.view.orders) == {PartitionKey(topic(number=2).topic_id, 0)}


async def test_rules_about_many_resources_are_several_transactions(etcd: FakeCoordination, one: Broker) -> None:
    names = [f"t{number}" for number in range(500)] * 2
    operations = [Operation.READ] * 500 + [Operation.WRITE] * 500
    rules = [
        AclBinding("User:u", operation, ResourceType.TOPIC, name)
        for name, operation in zip(names, operations, strict=True)
    ]
    await one.store.commit([AclsCreated(rules)], expected=one.store.version)
    assert set(one.store.state.acls) == set(rules)
    await one.store.commit([AclsDeleted(rules)], expected=one.store.version)
    assert one.store.state.acls == {}
    assert max(len(operations) for _, operations in etcd.transactions) <= 128, "as many as etcd takes"


@pytest.mark.parametrize("lost", [1, 2, 3])
async def test_a_change_whose_outcome_is_lost_is_made_once(etcd: FakeCoordination, one: Broker, lost: int) -> None:
    await one.store.commit([topic()])
    etcd.lose_outcomes = lost
    await one.store.commit([TopicAltered(topic().topic_id, "a.b", {})], expected=one.store.version)
    etcd.lose_outcomes = lost
    assert await one.store.reserve_producer_ids(10) == 0
    etcd.lose_outcomes = lost
    await one.store.commit([UserDeleted("never there")])
    assert one.store.state.topics["a.b"].settings == {}
    assert one.store.state.next_producer_id == 10


async def test_while_etcd_is_away_a_change_waits_and_then_says_that_its_outcome_is_not_known(
    etcd: FakeCoordination, one: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("warmlog_broker.cluster.settling.OUTCOME_TIMEOUT_S", 0.1)
    etcd.is_away = True
    with pytest.raises(RequestTimedOut, match="not known"):
        await one.store.commit([QuotaAltered("u", None, {"connections": 1})])
    etcd.is_away = False
    await one.store.commit([QuotaAltered("u", None, {"connections": 2})])
    assert one.store.state.quotas == {("u", None): {"connections": 2}}


async def test_users_rules_and_quotas_are_those_of_all_brokers(one: Broker, two: Broker) -> None:
    credential = make_credential("SCRAM-SHA-256", "secret", iterations=MIN_ITERATIONS)
    user = UserAltered("a/ü", [credential], False, 5, [credential], 9)
    read = AclBinding("User:a/ü", Operation.READ, ResourceType.TOPIC, "x/y")
    write = AclBinding("User:a/ü", Operation.WRITE, ResourceType.TOPIC, "x/y")
    other = AclBinding("User:*", Operation.READ, ResourceType.GROUP, "*", is_prefix=True)
    await one.store.commit([UserSecretMade(b"\0secret"), user, AclsCreated([read, other])])
    await one.store.commit([AclsCreated([write]), QuotaAltered(None, "", {"connections": 5})])
    await two.knows(one)
    state = two.store.state
    assert (state.users, state.user_secret) == ({"a/ü": user}, b"\0secret")
    assert set(state.acls) == {read, write, other}
    assert state.quotas == {(None, ""): {"connections": 5}}
    await two.store.commit([AclsDeleted([read, other]), UserDeleted("a/ü"), QuotaAltered(None, "", {})])
    await one.knows(two)
    state = one.store.state
    assert (state.users, set(state.acls), state.quotas) == ({}, {write}, {})
    assert any(applied.is_access for applied in one.applied)


async def test_brokers_give_out_producer_ids_of_blocks_of_their_own(one: Broker, two: Broker) -> None:
    ids = [ProducerIds(broker.store) for broker in (one, two)]
    found = await asyncio.gather(*(ids[n % 2].give_out() for n in range(6)))
    assert len(set(found)) == 6
    assert {each // BLOCK_IDS for each in found} == {0, 1}
    await one.knows(two)
    assert one.store.state.next_producer_id == 2 * BLOCK_IDS


async def test_no_change_is_no_transaction_and_many_topics_are_several(etcd: FakeCoordination, one: Broker) -> None:
    count = len(etcd.transactions)
    await one.store.commit([], expected=one.store.version)
    assert len(etcd.transactions) == count
    topics = [TopicCreated(f"t{n}", n.to_bytes(16), 1, {}) for n in range(1, 121)]
    await one.store.commit(topics, expected=one.store.version)
    assert one.store.state.topics == {topic.name: topic for topic in topics}
    assert max(len(operations) for _, operations in etcd.transactions) <= 128, "as many as etcd takes"


async def test_a_topic_has_at_most_as_many_replicas_as_brokers_are_ready(one: Broker) -> None:
    assert wanted_replicas(NewTopic("t"), one.store) == 3
    assert wanted_replicas(NewTopic("t", replication_factor=2), one.store) == 2
    for wrong in (0, 4, -2):
        with pytest.raises(InvalidReplicationFactor, match="1 to 3"):
            wanted_replicas(NewTopic("t", replication_factor=wrong), one.store)


async def test_a_topic_without_a_number_has_a_majority_of_the_replicas_or_is_refused(
    etcd: FakeCoordination, one: Broker
) -> None:
    await etcd.txn([], [Delete(CLUSTER.broker(3))])
    await until(lambda: len(one.store.ready) == 2)
    assert wanted_replicas(NewTopic("t"), one.store) == 2
    await etcd.txn([], [Delete(CLUSTER.broker(2))])
    await until(lambda: len(one.store.ready) == 1)
    with pytest.raises(InvalidReplicationFactor, match="1 of 3 brokers"):
        wanted_replicas(NewTopic("t"), one.store)
    assert wanted_replicas(NewTopic("t", replication_factor=1), one.store) == 1


async def test_partitions_get_the_brokers_that_were_chosen_and_others_as_many_as_the_first(
    etcd: FakeCoordination, one: Broker
) -> None:
    new = topic(partitions=2)
    await one.store.commit([new], chosen={new.name: [[3, 1], [2, 3]], "another": [[1]]})
    added = PartitionsAdded(new.topic_id, new.name, 3)
    await one.store.commit([added], chosen={new.name: [[1, 2]]})
    record = one.view.records[PartitionKey(new.topic_id, 0)].record
    grown = replace(record, replicas=(3, 1, 2), adding=(2,))
    await etcd.txn([], [Put(CLUSTER.partition(new.topic_id, 0), records.to_bytes(grown))])
    await until(lambda: one.store.replication_factor(new) == 3)
    await one.store.commit([PartitionsAdded(new.topic_id, new.name, 4)])
    found = [one.view.records[PartitionKey(new.topic_id, number)].record for number in range(4)]
    assert [each.replicas for each in found[:3]] == [(3, 1, 2), (2, 3), (1, 2)]
    assert sorted(found[3].replicas) == [1, 2, 3]
    assert [(each.leader, each.isr) for each in found[1:3]] == [(2, (2, 3)), (1, (1, 2))]


@pytest.mark.parametrize("wrong", [[[]], [[1, 1]], [[1, 9]], [[1, 2], [3]]])
async def test_replicas_are_on_brokers_that_are_ready_and_as_many_for_each_partition(
    one: Broker, wrong: list[list[int]]
) -> None:
    with pytest.raises(InvalidReplicaAssignment, match="each once"):
        wanted_replicas(NewTopic("t", replicas=wrong), one.store)


async def test_a_view_whose_history_is_compacted_lists_again(etcd: FakeCoordination, one: Broker) -> None:
    await one.store.commit([topic(), topic("gone", 2)])
    one.following.cancel()
    async with Broker(etcd, 2) as two:
        await two.store.commit([TopicDeleted(topic(number=2).topic_id, "gone", 3), topic("new", 3)])
        etcd.store.compact()
        one.following = asyncio.create_task(one.view.follow())
        await one.knows(two)
        assert one.store.state.topics == two.store.state.topics == {"a.b": topic(), "new": topic("new", 3)}
        assert one.view.records == two.view.records
        assert one.applied[-1].topics == {"gone", "new"}


async def test_a_view_of_an_etcd_that_has_gone_back_is_frozen(etcd: FakeCoordination, one: Broker) -> None:
    await one.store.commit([topic()])
    one.following.cancel()
    etcd.store.__init__()  # type: ignore[misc] # as one that lost its data
    one.following = asyncio.create_task(one.view.follow())
    await until(lambda: bool(one.view.frozen))
    with pytest.raises(StorageError, match="gone back"):
        await one.store.commit([topic("b", 2)])
    assert one.store.state.topics == {"a.b": topic()}


async def test_a_value_of_a_newer_version_is_refused_by_a_start_and_named(etcd: FakeCoordination) -> None:
    await etcd.txn([], [Put(CLUSTER.topic("n"), b'{"v":2}')])
    with pytest.raises(UnsupportedVersion, match=r"topics/n.*version 2"):
        await View(etcd, CLUSTER, 1).read()


def test_values_that_are_read_again_are_the_same() -> None:
    value = keys.TopicValue(id="00", partitions=1, replication_factor=3, settings={"a": "b"})
    assert keys.from_bytes("k", to_bytes(value), keys.TopicValue) == value
    assert keys.author_of(to_bytes(value)) == value.by
    assert keys.unquoted(keys.quoted("a/=ü")) == "a/=ü"
    assert keys.unquoted(keys.quoted(None)) is None
    assert keys.unquoted(keys.quoted("")) == ""
