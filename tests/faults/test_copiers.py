"""A process that copies lives through the errors of its client, and the run says so if one has ended."""

import logging
from pathlib import Path

import aiokafka
import pytest
from aiokafka.errors import KafkaError

from broker_process import BrokerProcess, port_to_keep
from faults.history.kafka.writers import started
from faults.history.transactional.work import TransactionWork
from waiting import until
from warmlog import Admin

LONG_MS = 600_000


async def test_a_consumer_of_aiokafka_that_stops_while_a_fetch_waits_raises_an_error_of_kafka(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"127.0.0.1:{port_to_keep()}"
    with BrokerProcess(tmp_path / "data", kafka_listen=address) as broker:
        async with Admin(broker.address) as admin:
            await admin.create_topic("t")
        consumer = aiokafka.AIOKafkaConsumer(
            "t", bootstrap_servers=address, auto_offset_reset="earliest", retry_backoff_ms=LONG_MS
        )

        async def stop_after_a_failed_fetch() -> None:
            async with started(consumer):
                await consumer.getmany(timeout_ms=1000)
                broker.kill()
                await until(lambda: "Failed fetch messages" in caplog.text)

        with caplog.at_level(logging.ERROR, "aiokafka"), pytest.raises(KafkaError, match="CancelledError"):
            await stop_after_a_failed_fetch()


async def test_a_copier_that_has_ended_by_itself_is_no_silent_gap_in_its_copies(tmp_path: Path) -> None:
    work = TransactionWork("127.0.0.1:1", "127.0.0.1:1", tmp_path, seed=1)
    work.jobs.directory.mkdir()
    with work.kafka_copiers as copiers:
        ended = copiers.running["dynamic-1"]
        ended.kill()
        ended.wait()
        with pytest.raises(RuntimeError, match="dynamic-1 has ended"):
            await work.finish("127.0.0.1:1", 30)
