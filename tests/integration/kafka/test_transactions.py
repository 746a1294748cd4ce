"""Transactions of version 2 (KIP-890), and what tools of Kafka are told about transactions and producers."""

from typing import Any

from broker_thread import BrokerThread
from kafka_client import KafkaClient, produce_fields, rows
from warmlog.blocking import Producer
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


def begin(client: KafkaClient, transactional_id: str) -> dict[str, Any]:
    given = client.call("InitProducerId", 5, transactional_id=transactional_id, transaction_timeout_ms=60_000)
    assert given.error_code == 0
    return {"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}


def end(client: KafkaClient, owner: dict[str, Any], *, commits: bool) -> Any:
    return client.call("EndTxn", 5, transactional_id="v2", committed=commits, **owner)


def test_a_client_of_kafka_writes_transactions_of_version_2(client: KafkaClient) -> None:
    client.create("v2")
    owner = begin(client, "v2")
    for commits in (True, False, True):
        batch = rows(b"in", base_sequence=0, is_transactional=True, **owner)
        fields = produce_fields("v2", batch) | {"transactional_id": "v2"}
        (topic,) = client.call("Produce", 12, records=batch, **fields).responses
        assert topic.partition_responses[0].error_code == 0
        ended = end(client, owner, commits=commits)
        assert (ended.error_code, ended.producer_epoch) == (0, owner["producer_epoch"] + 1)
        assert end(client, owner, commits=commits).producer_epoch == ended.producer_epoch  # a repeated request
        assert end(client, owner, commits=not commits).error_code == ErrorCode.INVALID_TXN_STATE
        late = client.call("Produce", 12, records=batch, **fields).responses[0].partition_responses[0]
        assert late.error_code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)
        owner = {"producer_id": ended.producer_id, "producer_epoch": ended.producer_epoch}
    part, _ = client.fetch("v2", offset=1, isolation_level=1)  # the first batch is in a segment of its own
    assert [each.first_offset for each in part.aborted_transactions] == [2]
    features = {each.name: each.max_version_level for each in client.call("ApiVersions", 4).finalized_features}
    assert features["transaction.version"] == 2


def test_offsets_are_committed_with_the_transaction(broker: BrokerThread, client: KafkaClient) -> None:
    client.create("read")
    client.produce("read", rows(*[b"x"] * 8))
    request = API["TxnOffsetCommit"].request
    for commits, expected in [(False, []), (True, [(7, "text")])]:
        owner = begin(client, "v2")
        parts = [
            request.TxnOffsetCommitRequestPartition(0, 7, committed_metadata="text"),
            request.TxnOffsetCommitRequestPartition(9, 7),
        ]
        topics = [request.TxnOffsetCommitRequestTopic("read", parts)]
        fields = {"transactional_id": "v2", "group_id": "readers", "topics": topics, **owner}
        (told,) = client.call("TxnOffsetCommit", 5, **fields).topics
        assert [each.error_code for each in told.partitions] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert end(client, owner, commits=commits).error_code == 0
        with WireClient(broker.address) as own:
            fetched: Any = own.call(m.OffsetFetchRequest("readers"))
        assert [(each.offset, each.metadata) for each in fetched.partitions] == expected
    refused = client.call("TxnOffsetCommit", 5, **fields | {"producer_epoch": 0, "producer_id": 1 << 40})
    assert refused.topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_trap_32_a_timeout_above_the_maximum(client: KafkaClient) -> None:
    given = client.call("InitProducerId", 5, transactional_id="long", transaction_timeout_ms=2**31 - 1)
    assert given.error_code == ErrorCode.INVALID_TRANSACTION_TIMEOUT
