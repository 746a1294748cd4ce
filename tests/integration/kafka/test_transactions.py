"""Transactions of both versions, and what tools of Kafka are told about transactions and producers."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from broker_process import BrokerProcess, port_to_keep
from broker_thread import BrokerThread
from group_member import GroupMember
from kafka_client import KafkaClient, rows
from kafka_transactions import JAVA_3_9, NEWEST, OLDEST, VERSION_2, KafkaTransactions
from waiting import wait_until
from warmlog.blocking import Consumer, Producer
from warmlog_broker.kafka.codes import code_in
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.schema import API
from wire_client import WireClient


def listed(client: KafkaClient, version: int = 2, **filters: object) -> list[tuple[str, str]]:
    values = {"state_filters": [], "producer_id_filters": []}
    told = client.call("ListTransactions", version, **values | filters)
    assert told.error_code == 0
    return [(each.transactional_id, each.transaction_state) for each in told.transaction_states]


def test_an_open_transaction_is_listed_and_described(broker: BrokerThread, client: KafkaClient) -> None:
    client.create("told")
    topic = API["DescribeProducers"].request.TopicRequest
    with Producer(broker.address, transactional_id="etl") as producer, producer.transaction():
        producer.send("told", b"open").result()
        assert listed(client) == listed(client, 0) == listed(client, state_filters=["Ongoing"]) == [("etl", "Ongoing")]
        assert listed(client, state_filters=["Empty", "Dead"]) == listed(client, duration_filter=60_000) == []
        assert listed(client, transactional_id_pattern="e.*") == [("etl", "Ongoing")]
        assert listed(client, transactional_id_pattern="x.*") == []
        (state, unknown) = client.call(
            "DescribeTransactions", 0, transactional_ids=["etl", "nowhere"]
        ).transaction_states
        assert (state.transaction_state, [(each.topic, each.partitions) for each in state.topics]) == (
            "Ongoing",
            [("told", [0])],
        )
        assert unknown.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        assert listed(client, producer_id_filters=[state.producer_id]) == [("etl", "Ongoing")]
        (told,) = client.call("DescribeProducers", 0, topics=[topic("told", [0, 7])]).topics
        found, missing = told.partitions
        (active,) = found.active_producers
        assert (active.producer_id, active.producer_epoch) == (state.producer_id, state.producer_epoch)
        assert (active.last_sequence, active.current_txn_start_offset) == (0, 0)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (told,) = client.call("DescribeProducers", 0, topics=[topic("told", [0])]).topics
    assert told.partitions[0].active_producers[0].current_txn_start_offset == -1
    told = client.call("ListTransactions", 2, state_filters=["Strange", "Empty"], producer_id_filters=[])
    assert told.unknown_state_filters == ["Strange"]
    wrong = client.call("ListTransactions", 2, state_filters=[], producer_id_filters=[], transactional_id_pattern="(")
    assert wrong.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION


def test_committed_readers_of_kafka_get_what_was_committed(broker: BrokerThread, client: KafkaClient) -> None:
    client.create("isolated")
    with Producer(broker.address, transactional_id="isolated") as producer:
        with producer.transaction():
            producer.send("isolated", b"committed").result()
        try:
            with producer.transaction():
                producer.send("isolated", b"aborted").result()
                raise KeyError
        except KeyError:
            pass
    client.produce("isolated", rows(b"plain"))
    part, records = client.fetch("isolated", isolation_level=1)
    assert [(each.first_offset) for each in part.aborted_transactions] == [2]
    assert part.last_stable_offset == part.high_watermark == 5
    assert records
    part, _ = client.fetch("isolated")
    assert part.aborted_transactions is None


@pytest.fixture
def producer(client: KafkaClient, request: pytest.FixtureRequest) -> KafkaTransactions:
    """A producer of version 1, with an id of its own."""
    made = KafkaTransactions(client, request.node.name)
    assert made.initialise() == 0
    return made


def committed(broker: BrokerThread, topic: str) -> list[bytes | None]:
    """What warmlog's client reads of the committed records."""
    with Consumer(broker.address, topics=[topic], isolation="read_committed") as consumer:
        return [record.value for record in consumer.records(until="latest")]


def committed_offsets(broker: BrokerThread, group: str) -> list[tuple[int, str]]:
    with WireClient(broker.address) as own:
        fetched: Any = own.call(m.OffsetFetchRequest(group))
    return [(each.offset, each.metadata) for each in fetched.partitions]


def state_of(client: KafkaClient, transactional_id: str) -> Any:
    (state,) = client.call("DescribeTransactions", 0, transactional_ids=[transactional_id]).transaction_states
    return state


# --- version 2


def test_a_client_of_kafka_writes_transactions_of_version_2(client: KafkaClient) -> None:
    client.create("v2")
    producer = KafkaTransactions(client, "v2", VERSION_2)
    assert producer.initialise() == 0
    for commits in (True, False, True):
        assert producer.send("v2", b"in") == 0
        before = producer.producer
        assert producer.end(commits=commits) == 0
        after = producer.producer
        assert after == (before[0], before[1] + 1)
        producer.producer = before
        assert producer.end(commits=not commits) == ErrorCode.INVALID_TXN_STATE
        assert producer.send("v2", b"in", sequence=0) == ErrorCode.INVALID_TXN_STATE, "a late copy"
        assert producer.end(commits=commits) == 0, "a repeated request"
        assert producer.producer == after
    part, _ = client.fetch("v2", offset=1, isolation_level=1)  # the first batch is in a segment of its own
    assert [each.first_offset for each in part.aborted_transactions] == [2]
    features = {each.name: each.max_version_level for each in client.call("ApiVersions", 4).finalized_features}
    assert features["transaction.version"] == 2


def test_offsets_are_committed_with_the_transaction(broker: BrokerThread, client: KafkaClient) -> None:
    client.create("read")
    producer = KafkaTransactions(client, "offsets", VERSION_2)
    for commits, expected in [(False, []), (True, [(7, "text")])]:
        assert producer.initialise() == 0
        assert producer.commit_offset("readers", "read", 7) == 0, "offsets after the log end are taken"
        assert producer.commit_offset("readers", "nowhere", 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert producer.end(commits=commits) == 0
        assert committed_offsets(broker, "readers") == expected
    producer.producer = (1 << 40, 0)
    assert producer.commit_offset("readers", "read", 7) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


# --- version 1


@pytest.mark.parametrize("versions", [NEWEST, OLDEST], ids=["newest", "oldest"])
def test_trap_29_transactions_of_version_1_follow_each_other_in_one_epoch(
    broker: BrokerThread, client: KafkaClient, versions: dict[str, int]
) -> None:
    topic = f"version-1-{versions['Produce']}"
    client.create(topic)
    producer = KafkaTransactions(client, topic, versions)
    assert producer.initialise() == 0
    first = producer.producer
    for number, commits in enumerate((True, False, False, True, True)):
        assert producer.add(topic, 0) == [0]
        assert producer.add(topic, 0) == [0], "a repeated request"
        for part in range(2):
            assert producer.send(topic, b"%d.%d" % (number, part)) == 0
        assert producer.add_offsets(topic) == 0
        assert producer.commit_offset(topic, topic, 10 + number) == 0
        assert producer.end(commits=commits) == 0
        assert producer.end(commits=commits) == 0, "a repeated request"
        assert producer.end(commits=not commits) == ErrorCode.INVALID_TXN_STATE
        last = (10 if number < 3 else 10 + number, "text")
        assert committed_offsets(broker, topic) == [last]
        assert state_of(client, topic).transaction_state == "Empty"
    assert producer.producer == first
    assert committed(broker, topic) == [b"0.0", b"0.1", b"3.0", b"3.1", b"4.0", b"4.1"]
    part, _ = client.fetch(topic, offset=3, isolation_level=1)
    assert [each.first_offset for each in part.aborted_transactions] == [3, 6]
    assert part.last_stable_offset == part.high_watermark == 15


def test_a_restart_goes_on_with_a_transaction_of_version_1_and_its_sequences(tmp_path: Path) -> None:
    address = f"127.0.0.1:{port_to_keep()}"
    settings = {"kafka_listen": address, "auto_create_topics_enable": "true"}
    with BrokerProcess(tmp_path / "data", **settings) as broker:
        with KafkaClient(address) as client:
            client.create("restarted")
            producer = KafkaTransactions(client, "restarted")
            assert producer.initialise() == 0
            assert producer.add("restarted", 0) == [0]
            assert producer.send("restarted", b"one") == 0
            assert producer.end(commits=True) == 0
            assert producer.add("restarted", 0) == [0]
            assert producer.send("restarted", b"two") == 0
        broker.kill()
        broker.start()
        with KafkaClient(address) as client:
            producer.client = client
            wait_until(lambda: producer.send("restarted", b"three") == 0)
            assert producer.send("restarted", b"three", sequence=2) == 0, "a repeated batch is no error"
            assert producer.end(commits=True) == 0
            part, _ = client.fetch("restarted", offset=1, isolation_level=1)
            assert (part.last_stable_offset, part.high_watermark) == (5, 5)
            broker.kill()
            broker.start()
        with KafkaClient(address) as client:
            producer.client = client
            wait_until(lambda: producer.end(commits=True) == 0)
            assert producer.end(commits=False) == ErrorCode.INVALID_TXN_STATE


def test_in_version_1_a_batch_makes_nothing_part_of_a_transaction(producer: KafkaTransactions) -> None:
    client = producer.client
    client.create("verified")
    assert producer.send("verified", b"early") == ErrorCode.INVALID_TXN_STATE
    assert producer.commit_offset("verified", "verified", 1) == ErrorCode.INVALID_TXN_STATE
    assert state_of(client, producer.transactional_id).transaction_state == "Empty"
    assert producer.add("verified", 0) == [0]
    assert producer.commit_offset("verified", "verified", 1) == ErrorCode.INVALID_TXN_STATE
    assert producer.send("verified", b"one") == 0
    assert producer.end(commits=True) == 0
    assert producer.send("verified", b"late") == ErrorCode.INVALID_TXN_STATE
    assert state_of(client, producer.transactional_id).transaction_state == "Empty"


def test_partitions_are_added_all_or_none(producer: KafkaTransactions) -> None:
    client = producer.client
    client.create("added")
    codes = producer.add("added", 0, 7)
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert producer.add("__transactions", 0) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert state_of(client, producer.transactional_id).transaction_state == "Empty"
    assert producer.end(commits=True) == ErrorCode.INVALID_TXN_STATE, "none was begun"
    assert producer.add_offsets("") == ErrorCode.INVALID_GROUP_ID
    unknown = KafkaTransactions(client, "never-used")
    assert unknown.add("added", 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert unknown.add_offsets("g") == unknown.end(commits=True) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_partition_that_another_broker_leads_is_added_like_any_other(
    broker: BrokerThread, producer: KafkaTransactions
) -> None:
    producer.client.create("elsewhere")
    local = broker.broker.services.topics.get("elsewhere").local
    partition = broker.in_loop(lambda _: local.pop(0))
    try:
        assert producer.add("elsewhere", 0) == [0]
    finally:
        broker.in_loop(lambda _: local.__setitem__(0, partition))
    assert producer.end(commits=False) == 0


def test_offsets_that_no_member_is_said_to_have_read_are_taken_for_a_group_of_any_kind(
    broker: BrokerThread, producer: KafkaTransactions
) -> None:
    producer.client.create("any-kind")
    with GroupMember(broker.address, "any-kind", "any-kind") as member:
        member.join()
        assert producer.add_offsets("any-kind") == 0
        assert producer.commit_offset("any-kind", "any-kind", 3) == 0
        assert producer.commit_offset("any-kind", "any-kind", 3, member_id="stranger") == ErrorCode.UNKNOWN_MEMBER_ID
        stale = {"member_id": member.member_id, "generation_id_or_member_epoch": member.epoch + 9}
        assert producer.commit_offset("any-kind", "any-kind", 3, **stale) == ErrorCode.ILLEGAL_GENERATION
        assert producer.end(commits=True) == 0
    assert committed_offsets(broker, "any-kind") == [(3, "text")]


def test_trap_16_an_offset_of_an_open_transaction_is_unstable_for_those_who_ask(producer: KafkaTransactions) -> None:
    client = producer.client
    for topic in ("pending", "settled"):
        client.create(topic)
    request = API["OffsetFetch"].request

    def fetched(*topics: str, needs_stable: bool) -> tuple[int, list[tuple[str, int, int]]]:
        """The error of the group, and topic, offset and error of its partitions; without topics, of all that it has."""
        wanted = [request.OffsetFetchRequestTopics(name=topic, partition_indexes=[0]) for topic in topics] or None
        asked = request.OffsetFetchRequestGroup("trap-16-stable", topics=wanted)
        (group,) = client.call("OffsetFetch", 8, groups=[asked], require_stable=needs_stable).groups
        parts = [(topic.name, part) for topic in group.topics for part in topic.partitions]
        return group.error_code, [(name, part.committed_offset, part.error_code) for name, part in parts]

    for offset, expected in ((3, []), (5, [("pending", 3, 0)])):
        unstable = ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert producer.add_offsets("trap-16-stable") == 0
        assert producer.commit_offset("trap-16-stable", "pending", offset) == 0
        each = [("pending", -1, unstable), ("settled", -1, 0)]
        assert fetched("pending", "settled", needs_stable=True) == (0, each)
        assert fetched(needs_stable=True) == (0, [(name, -1, unstable) for name, *_ in expected])
        assert fetched(needs_stable=False) == (0, expected)
        assert producer.end(commits=True) == 0
        assert fetched(needs_stable=True) == fetched("pending", needs_stable=True) == (0, [("pending", offset, 0)])


class HeldGroups:
    """The groups of a coordinator, of which the first request for offsets takes long."""

    def __init__(self, groups: Any) -> None:
        self._groups = groups
        self.is_held = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def add_pending(self, *arguments: Any) -> Any:
        if not self.is_held.is_set():
            self.is_held.set()
            await self.may_go_on.wait()
        return await self._groups.add_pending(*arguments)


def test_an_offset_that_took_longer_than_its_transaction_is_none_of_the_next(
    broker: BrokerThread, producer: KafkaTransactions, kafka_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same epoch."""
    coordinator = broker.broker.services.coordinators.transactions
    held = broker.in_loop(lambda _: HeldGroups(coordinator._groups))
    monkeypatch.setattr(coordinator, "_groups", held)
    producer.client.create("slow-offsets")
    assert producer.add_offsets("slow-offsets") == 0
    with KafkaClient(kafka_address) as other, ThreadPoolExecutor(1) as thread:
        slow = KafkaTransactions(other, producer.transactional_id)
        slow.producer = producer.producer
        answer = thread.submit(slow.commit_offset, "slow-offsets", "slow-offsets", 5)
        wait_until(held.is_held.is_set)
        assert producer.commit_offset("slow-offsets", "slow-offsets", 6) == 0
        assert producer.end(commits=True) == 0
        assert producer.add_offsets("slow-offsets") == 0
        assert producer.commit_offset("slow-offsets", "slow-offsets", 7) == 0
        broker.in_loop(lambda _: held.may_go_on.set())
        assert answer.result() == ErrorCode.INVALID_TXN_STATE
        assert producer.end(commits=True) == 0
    assert committed_offsets(broker, "slow-offsets") == [(7, "text")]


class FencedGroups:
    """The groups of a coordinator that another broker has followed, which has added offsets of its own."""

    def __init__(self, groups: Any) -> None:
        self._groups = groups

    async def add_pending(self, request: Any, check: Any) -> Any:
        later = replace(request, coordinator_epoch=request.coordinator_epoch + 1)
        await self._groups.add_pending(later, lambda: None)
        return await self._groups.add_pending(request, check)


def test_a_client_is_told_by_an_earlier_coordinator_to_look_for_the_present_one(
    broker: BrokerThread, producer: KafkaTransactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator = broker.broker.services.coordinators.transactions
    producer.client.create("fenced-offsets")
    assert producer.add_offsets("fenced-offsets") == 0
    with monkeypatch.context() as patch:
        patch.setattr(coordinator, "_groups", broker.in_loop(lambda _: FencedGroups(coordinator._groups)))
        assert producer.commit_offset("fenced-offsets", "fenced-offsets", 5) == ErrorCode.NOT_COORDINATOR


ABORTED_CODES = {
    "librdkafka": (NEWEST, ErrorCode.PRODUCER_FENCED),
    "oldest": (OLDEST, ErrorCode.INVALID_PRODUCER_EPOCH),
    "java-3.9": (JAVA_3_9, ErrorCode.TRANSACTION_ABORTABLE),
}


@pytest.mark.parametrize("client_of", ABORTED_CODES)
def test_trap_30_what_a_version_does_not_know_is_said_in_its_words(
    broker: BrokerThread, client: KafkaClient, client_of: str
) -> None:
    """An operator aborts the transaction, as its timeout would; then another producer takes the id."""
    versions, expected = ABORTED_CODES[client_of]
    written = ErrorCode.TRANSACTION_ABORTABLE if versions is JAVA_3_9 else ErrorCode.INVALID_PRODUCER_EPOCH
    topic = f"aborted-{client_of}"
    client.create(topic)
    producer = KafkaTransactions(client, topic, versions)
    assert producer.initialise() == 0
    assert producer.add(topic, 0) == [0]
    assert producer.send(topic, b"aborted") == 0
    with WireClient(broker.address) as own:
        own.call(m.AbortTransactionRequest(topic))
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if versions is OLDEST else ErrorCode.PRODUCER_FENCED
    assert producer.send(topic, b"late") == written
    assert producer.add(topic, 0) == [fenced], "no version of this one knows TRANSACTION_ABORTABLE"
    assert producer.add_offsets(topic) == producer.end(commits=True) == expected
    is_known = expected == ErrorCode.TRANSACTION_ABORTABLE
    assert producer.commit_offset(topic, topic, 1) == (expected if is_known else ErrorCode.INVALID_PRODUCER_EPOCH)
    assert producer.end(commits=False) == 0, "it is aborted"
    assert KafkaTransactions(client, topic, versions).initialise() == 0
    assert producer.send(topic, b"late") == producer.commit_offset(topic, topic, 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add(topic, 0) == [producer.add_offsets(topic)] == [producer.end(commits=False)] == [fenced]
    if versions is not OLDEST:  # which cannot say who asks
        assert producer.initialise() == ErrorCode.PRODUCER_FENCED


def test_trap_30_a_transient_error_of_the_coordinator_is_one_that_producers_repeat() -> None:
    """Produce knows no CONCURRENT_TRANSACTIONS, and old clients repeat NOT_ENOUGH_REPLICAS only."""
    codes = {code_in("Produce", version, int(each)) for each in ErrorCode for version in range(3, 14)}
    assert not codes & {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.PRODUCER_FENCED,
    }
    assert code_in("Produce", 9, ErrorCode.CONCURRENT_TRANSACTIONS) == ErrorCode.NOT_ENOUGH_REPLICAS
    assert code_in("Produce", 10, ErrorCode.TRANSACTION_ABORTABLE) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert code_in("Produce", 11, ErrorCode.TRANSACTION_ABORTABLE) == ErrorCode.TRANSACTION_ABORTABLE
    assert code_in("InitProducerId", 4, ErrorCode.TRANSACTION_ABORTABLE) == ErrorCode.PRODUCER_FENCED


def test_a_producer_of_version_1_goes_on_after_its_transaction_was_aborted(
    broker: BrokerThread, producer: KafkaTransactions
) -> None:
    """It asks for the next epoch with its own, as no other has taken its place (KIP-360)."""
    producer.client.create("goes-on")
    assert producer.add("goes-on", 0) == [0]
    assert producer.send("goes-on", b"aborted") == 0
    with WireClient(broker.address) as own:
        own.call(m.AbortTransactionRequest(producer.transactional_id))
    assert producer.send("goes-on", b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.initialise() == 0
    assert producer.add("goes-on", 0) == [0]
    assert producer.send("goes-on", b"next") == 0
    assert producer.end(commits=True) == 0
    assert committed(broker, "goes-on") == [b"next"]


@pytest.mark.parametrize("versions", [NEWEST, VERSION_2], ids=["version-1", "version-2"])
def test_trap_31_a_transaction_of_a_checkpoint_is_ended_by_another_process(
    broker: BrokerThread, kafka_address: str, versions: dict[str, int]
) -> None:
    """It knows the producer id and epoch from the checkpoint, and asks for no others before it has ended it."""
    topic = f"checkpoint-{versions['EndTxn']}"
    with KafkaClient(kafka_address) as first:
        first.create(topic)
        producer = KafkaTransactions(first, topic, versions)
        assert producer.initialise() == 0
        if versions is NEWEST:
            assert producer.add(topic, 0) == [0]
        assert producer.send(topic, b"prepared") == 0
    for _ in range(2):  # a restore may come again
        with KafkaClient(kafka_address) as second:
            resumed = KafkaTransactions(second, topic, versions)
            resumed.producer = producer.producer
            assert resumed.end(commits=True) == 0
            resumed.producer = producer.producer
            assert resumed.end(commits=False) == ErrorCode.INVALID_TXN_STATE
    assert committed(broker, topic) == [b"prepared"]


@pytest.mark.parametrize("versions", [NEWEST, VERSION_2], ids=["version-1", "version-2"])
def test_trap_31_a_producer_that_takes_the_id_fences_the_one_before_once(
    broker: BrokerThread, client: KafkaClient, versions: dict[str, int]
) -> None:
    topic = f"fenced-{versions['EndTxn']}"
    client.create(topic)
    old, new = (KafkaTransactions(client, topic, versions) for _ in range(2))
    assert old.initialise() == 0
    if versions is NEWEST:
        assert old.add(topic, 0) == [0]
    assert old.send(topic, b"aborted") == 0
    producer_id, epoch = old.producer
    assert new.initialise() == 0
    wanted = API["DescribeProducers"].request.TopicRequest(topic, [0])
    (told,) = client.call("DescribeProducers", 0, topics=[wanted]).topics
    (active,) = told.partitions[0].active_producers
    assert active.producer_epoch == epoch + 1, "the marker's: the abort raises it once, as in Kafka"
    assert new.producer == (producer_id, epoch + 2)
    assert old.end(commits=True) == ErrorCode.PRODUCER_FENCED
    assert old.send(topic, b"late") == ErrorCode.INVALID_PRODUCER_EPOCH
    assert old.add_offsets(topic) == ErrorCode.PRODUCER_FENCED
    fenced = ErrorCode.INVALID_PRODUCER_EPOCH if versions is NEWEST else ErrorCode.PRODUCER_FENCED
    assert old.commit_offset(topic, topic, 7) == fenced
    assert committed(broker, topic) == []
    assert committed_offsets(broker, topic) == []


def test_trap_32_a_timeout_above_the_maximum(client: KafkaClient) -> None:
    given = client.call("InitProducerId", 5, transactional_id="long", transaction_timeout_ms=2**31 - 1)
    assert given.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
