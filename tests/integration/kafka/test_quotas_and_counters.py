"""Quotas hold at the listener of clients of Kafka; metrics say what came by which protocol, and what was converted."""

import time

import pytest

from broker_thread import BrokerThread
from kafka_client import KafkaClient, rows
from warmlog.blocking import Admin, Producer
from warmlog_broker.config.listeners import Wire
from warmlog_protocol.errors import ErrorCode

RATE = 100_000


@pytest.mark.parametrize("client_id", ["", "slow"])
def test_a_producer_above_its_quota_is_told_and_not_read(
    broker: BrokerThread, kafka_address: str, client_id: str
) -> None:
    with Admin(broker.address) as admin:
        admin.alter_quotas({"producer_byte_rate": RATE}, user="ANONYMOUS")
        try:
            with KafkaClient(kafka_address, client_id=client_id) as client:
                client.create("slow")
                began_s = time.monotonic()
                client.produce("slow", rows(bytes(2 * RATE)))
                client.call("ApiVersions", 0)
                assert time.monotonic() - began_s > 0.5
        finally:
            admin.alter_quotas({"producer_byte_rate": None}, user="ANONYMOUS")


def test_requests_and_errors_are_counted_by_protocol(broker: BrokerThread, client: KafkaClient) -> None:
    assert client.produce("counted", rows(b"a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    counters = broker.broker.services.counters
    assert counters.errors[Wire.KAFKA, "Produce", "UnknownTopicOrPartition"] == 1
    assert (Wire.KAFKA, "Produce") in counters.request_seconds


def test_conversions_are_counted(broker: BrokerThread, client: KafkaClient) -> None:
    client.create("columns")
    with Producer(broker.address) as producer:
        producer.send("columns", bytes(1000)).result()
    counted = broker.broker.services.counters.conversions
    before = counted.batches, counted.hits
    for hits in range(2):
        assert len(client.fetch("columns")[1]) > 1000
        assert (counted.batches, counted.hits) == (before[0] + 1, before[1] + hits)
    assert counted.kept_bytes > 1000
    assert counted.seconds > 0
