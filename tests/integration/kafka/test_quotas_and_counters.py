"""Quotas hold at the listener of Kafka's clients, and metrics say by which protocol a request came."""

import time

import pytest

from broker_thread import BrokerThread
from kafka_client import KafkaClient, rows
from warmlog.blocking import Admin
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
                client.produce("slow", rows(bytes(2 * RATE)))
                began_s = time.monotonic()
                client.call("ApiVersions", 0)
                assert time.monotonic() - began_s > 0.5
        finally:
            admin.alter_quotas({"producer_byte_rate": None}, user="ANONYMOUS")


def test_requests_and_errors_are_counted_by_protocol(broker: BrokerThread, client: KafkaClient) -> None:
    assert client.produce("counted", rows(b"a")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    counters = broker.broker.services.counters
    assert counters.errors[Wire.KAFKA, "Produce", "UnknownTopicOrPartition"] == 1
    assert (Wire.KAFKA, "Produce") in counters.request_seconds
