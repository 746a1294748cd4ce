"""What tools of Kafka are told about transactions and producers, here of warmlog's clients."""

from broker_thread import BrokerThread
from kafka_client import KafkaClient, rows
from warmlog.blocking import Producer
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.kafka.schema import API


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
