"""Quotas over real sockets: clients are slowed to their rates and told so, others are not, and none times out."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import warmlog
import warmlog.blocking
from broker_thread import BrokerThread
from warmlog.admin.access.user_changes import creation
from warmlog.consumer import offset_commits
from warmlog.ranges.arrow_reader import arrow_reader
from warmlog.ranges.read_settings import ReadSettings
from warmlog.spark.options.write_options import parse_write_options
from warmlog.spark.write.task import write_batches
from warmlog_broker.tools.access import respond
from warmlog_protocol.messages import AlterUsersRequest, AuthenticateRequest, MetadataRequest
from warmlog_protocol.sasl.scram import ClientExchange
from wire_client import WireClient, batch_of

KB = 1000
RATE = 100 * KB
SLOW: Any = {"client_name": "slow"}
VALUE = bytes(5 * KB)
AT_LEAST = 0.8
"""Of the time that the rate needs: the rest may be saved before."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path / "data") as running:
        with warmlog.blocking.Admin(running.address) as admin:
            admin.create_topic("t")
        yield running


def limit(broker: BrokerThread, client_id: str = "slow", **limits: int | None) -> None:
    with warmlog.blocking.Admin(broker.address) as admin:
        admin.alter_quotas(limits, client_id=client_id)


def fill(broker: BrokerThread, size_bytes: int) -> None:
    with warmlog.blocking.Producer(broker.address, batch_bytes=20 * KB) as producer:
        producer.send_many("t", [VALUE] * (size_bytes // len(VALUE)))


async def test_a_producer_is_slowed_to_its_rate_and_told(broker: BrokerThread) -> None:
    await asyncio.to_thread(limit, broker, producer_byte_rate=RATE)
    async with (
        warmlog.Producer(
            broker.address,
            batch_bytes=20 * KB,
            delivery_timeout_ms=2_500,
            request_timeout_ms=2_500,
            max_in_flight=1,
            **SLOW,
        ) as slow,
        warmlog.Producer(broker.address, batch_bytes=20 * KB, client_name="other") as other,
    ):
        began_s = time.monotonic()
        sending = asyncio.create_task(slow.send_many("t", [VALUE] * 80))
        await other.send_many("t", [VALUE] * 60)
        assert not sending.done()
        await sending
        elapsed_s = time.monotonic() - began_s
        assert elapsed_s > (4 - 1 - 0.2) * AT_LEAST, "of 400 KB, 100 are saved, and the last batch is not waited for"
        assert 0 < slow.throttled_ms / 1000 < 1.5 * elapsed_s
        assert other.throttled_ms == 0


async def test_records_are_delivered_although_their_delay_is_longer_than_every_timeout(broker: BrokerThread) -> None:
    """Two batches that exceed the rate by far: the second waits for 4 s, with timeouts of 2.5 s."""
    await asyncio.to_thread(limit, broker, producer_byte_rate=10 * KB)
    async with warmlog.Producer(
        broker.address, linger_ms=0, max_in_flight=1, delivery_timeout_ms=2_500, request_timeout_ms=2_500, **SLOW
    ) as slow:
        began_s = time.monotonic()
        await slow.send("t", bytes(50 * KB))
        assert (await slow.send("t", b"x")).offset == 1
        assert time.monotonic() - began_s > 4 * AT_LEAST


async def test_a_consumer_is_slowed_to_its_rate_and_told(broker: BrokerThread) -> None:
    await asyncio.to_thread(fill, broker, 300 * KB)
    await asyncio.to_thread(limit, broker, consumer_byte_rate=RATE)
    options: Any = {"topics": ["t"], "start": "earliest", "partition_max_bytes": 20 * KB, "prefetch_bytes": 40 * KB}
    async with (
        warmlog.Consumer(broker.address, request_timeout_ms=2000, **options, **SLOW) as slow,
        warmlog.Consumer(broker.address, **options) as other,
    ):
        assert len([record async for record in other.records(until="latest")]) == 60
        began_s = time.monotonic()
        assert len([record async for record in slow.records(until="latest")]) == 60
        assert time.monotonic() - began_s > (3 - 1 - 0.4) * AT_LEAST
        assert slow.throttled_ms > 1000
        assert other.throttled_ms == 0


async def test_requests_are_slowed_to_their_rate(broker: BrokerThread) -> None:
    await asyncio.to_thread(limit, broker, request_rate=10)
    async with warmlog.Admin(broker.address, **SLOW) as admin, warmlog.Admin(broker.address) as other:
        began_s = time.monotonic()
        for _ in range(25):
            await admin.topic_names()
        assert time.monotonic() - began_s > (2.5 - 1 - 0.1) * AT_LEAST
        assert admin.throttled_ms > 1000
        for _ in range(25):
            await other.topic_names()
        assert other.throttled_ms == 0


def test_bulk_readers_are_slowed_to_their_rate(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    fill(broker, 300 * KB)
    limit(broker, consumer_byte_rate=RATE)
    caplog.set_level("INFO")
    began_s = time.monotonic()
    settings = ReadSettings(fetch_bytes=20 * KB)
    with arrow_reader(broker.address, ["t"], settings=settings, request_timeout_ms=2000, **SLOW) as reader:
        assert reader.read_all().num_rows == 60
    assert time.monotonic() - began_s > (3 - 1 - 0.4) * AT_LEAST
    assert "brokers have delayed reading by" in caplog.text


def test_spark_writes_at_its_rate(broker: BrokerThread, caplog: pytest.LogCaptureFixture) -> None:
    with warmlog.blocking.Admin(broker.address) as admin:
        admin.alter_quotas({"producer_byte_rate": RATE}, user="ANONYMOUS")
    caplog.set_level("INFO")
    rows = pa.record_batch({"value": pa.array([VALUE] * 20, pa.binary())})
    given = {"bootstrap.servers": broker.address, "topic": "t", "batch.size": str(20 * KB)}
    assert write_batches(iter([rows] * 3), {"value": 0}, parse_write_options(given)).records == 60
    assert "brokers have delayed writing by" in caplog.text


def test_a_client_that_does_not_wait_is_slowed_too(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address) as admin:
        admin.alter_quotas({"request_rate": 10}, user="ANONYMOUS")
    with WireClient(broker.address) as client:
        began_s = time.monotonic()
        delays_ms = [client.call(MetadataRequest([])).throttle_ms for _ in range(25)]  # type: ignore[attr-defined]
        assert time.monotonic() - began_s > (2.5 - 1 - 0.2) * AT_LEAST
        assert delays_ms[0] == 0
        assert all(0 < delay_ms <= 300 for delay_ms in delays_ms[-5:])


def exceed(broker: BrokerThread, **user: Any) -> None:
    """Leave a debt of 4 s."""
    with warmlog.blocking.Admin(broker.address, **user) as admin:
        admin.create_topic("t")
        admin.alter_quotas({"producer_byte_rate": 10 * KB}, user=user.get("username", "ANONYMOUS"))
    with warmlog.blocking.Producer(broker.address, **user) as producer:
        producer.send("t", bytes(50 * KB)).result()


def test_another_connection_does_not_help_a_client_that_has_exceeded_its_rate(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broker:
        began_s = time.monotonic()
        exceed(broker)
        with warmlog.blocking.Producer(broker.address, delivery_timeout_ms=2000, request_timeout_ms=2000) as producer:
            producer.send("t", b"x").result()
            assert producer.throttled_ms > 1000
        assert time.monotonic() - began_s > 4 * AT_LEAST


def test_a_request_that_is_sent_with_the_login_waits_too(tmp_path: Path) -> None:
    respond(tmp_path / "data", AlterUsersRequest([creation("alice", "geheim")]))
    with BrokerThread(tmp_path / "data", listeners="main=sasl_plaintext://127.0.0.1:0") as broker:
        began_s = time.monotonic()
        exceed(broker, username="alice", password="geheim")
        with WireClient(broker.address) as client:
            exchange = ClientExchange("SCRAM-SHA-256", "alice", "geheim")
            first: Any = client.call(AuthenticateRequest("SCRAM-SHA-256", exchange.first()))
            login = client.send(AuthenticateRequest("SCRAM-SHA-256", exchange.final(first.data)))
            produced = client.send_produce("t", batch_of([b"x"]))
            told: Any = client.receive(login)[0]
            assert 1000 < told.throttle_ms < 5000
            told_s = time.monotonic()
            client.produced(produced)
            assert time.monotonic() - told_s > 1
        assert time.monotonic() - began_s > 4 * AT_LEAST


async def test_a_quota_is_changed_and_removed_while_its_client_is_connected(broker: BrokerThread) -> None:
    async with warmlog.Producer(broker.address, linger_ms=0, **SLOW) as producer:
        await producer.send("t", VALUE)
        await asyncio.to_thread(limit, broker, producer_byte_rate=20 * KB)
        assert producer.throttled_ms == 0
        await producer.send("t", bytes(30 * KB))
        await asyncio.to_thread(limit, broker, producer_byte_rate=None)
        await producer.send("t", VALUE)
        told_ms = producer.throttled_ms
        assert told_ms == pytest.approx(500, rel=0.3)
        await producer.send("t", bytes(500 * KB))
        await producer.send("t", VALUE)
        assert producer.throttled_ms == told_ms


def test_quotas_are_there_after_a_restart(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as first, warmlog.blocking.Admin(first.address) as admin:
        admin.alter_quotas({"request_rate": 10, "producer_byte_rate": 20}, client_id="slow")
        admin.alter_quotas({"connections": 5}, user="*")
        before = admin.describe_quotas()
    with BrokerThread(tmp_path / "data") as second, warmlog.blocking.Admin(second.address, **SLOW) as admin:
        assert admin.describe_quotas() == before
        assert [quota.limits for quota in before] == [
            {"producer_byte_rate": 20, "request_rate": 10},
            {"connections": 5},
        ]
        for _ in range(200):
            if not admin.throttled_ms:
                admin.topic_names()
        assert admin.throttled_ms > 0


async def test_a_member_of_a_group_keeps_its_place_while_it_is_throttled(tmp_path: Path) -> None:
    """Its fetches are delayed for longer than its session lasts."""
    settings = {"group_min_session_timeout_ms": 300, "group_heartbeat_interval_ms": 50}
    lost = []
    with BrokerThread(tmp_path / "data", group_initial_rebalance_delay_ms=0, **settings) as broker:
        await asyncio.to_thread(_create_and_limit, broker)
        async with warmlog.Consumer(
            broker.address, topics=["t"], group="g", start="earliest", session_timeout_ms=3000, on_lost=lost.append
        ) as consumer:
            batches = aiter(consumer.batches())
            await anext(batches)
            async with warmlog.Producer(broker.address) as producer:
                await producer.send("t", b"x")
            await anext(batches)
            await consumer.commit()
            assert consumer.throttled_ms > 3000
    assert lost == []


def _create_and_limit(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address) as admin:
        admin.create_topic("t")
        fill(broker, 50 * KB)
        admin.alter_quotas({"consumer_byte_rate": 10 * KB, "request_rate": 100}, user="ANONYMOUS")


# --- connections ----------------------------------------------------------------------------------------------------


async def test_a_last_commit_waits_for_its_delay(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commits, "LAST_COMMIT_TIMEOUT_S", 1.5)
    await asyncio.to_thread(fill, broker, 60 * KB)
    await asyncio.to_thread(limit, broker, consumer_byte_rate=20 * KB)
    reading: Any = {"topics": ["t"], "group": "g", "start": "earliest"}
    async with warmlog.Consumer(broker.address, **reading, **SLOW) as consumer:
        records = consumer.records()
        for _ in range(5):
            await anext(records)
    assert consumer.throttled_ms > 1500
    async with warmlog.Admin(broker.address) as admin:
        committed = await admin.committed_offsets("g")
    assert committed["t", 0].offset >= 4


async def test_one_connection_of_a_user_too_many_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("alice", "bob"):
        respond(tmp_path, AlterUsersRequest([creation(name, "geheim")]))
    alice: Any = {"username": "alice", "password": "geheim", "request_timeout_ms": 2000}
    bob: Any = {"username": "bob", "password": "geheim"}
    with BrokerThread(tmp_path, listeners="main=sasl_plaintext://127.0.0.1:0") as broker:
        async with warmlog.Admin(broker.address, **bob) as admin:
            await admin.alter_quotas({"connections": 2}, user="alice")
            async with warmlog.Admin(broker.address, **alice) as first, warmlog.Admin(broker.address, **alice):
                with pytest.raises(warmlog.TooManyConnections, match="User:alice has 2 connections open"):
                    await warmlog.Admin(broker.address, **alice).start()
                assert "refused: User:alice has 2 connections open, as many as its quota allows" in caplog.text
                async with warmlog.Admin(broker.address, **bob):
                    await first.topic_names()
                await admin.alter_quotas({"connections": 3}, user="alice")
                async with warmlog.Admin(broker.address, **alice) as third:
                    await third.topic_names()
            async with warmlog.Admin(broker.address, **alice):
                pass


def test_clients_that_do_not_authenticate_share_one_bound(broker: BrokerThread) -> None:
    with warmlog.blocking.Admin(broker.address) as admin:
        admin.alter_quotas({"connections": 1}, user="ANONYMOUS")
        with pytest.raises(warmlog.TooManyConnections, match="User:ANONYMOUS has 1 connections open"):
            warmlog.blocking.Admin(broker.address).start()
        admin.alter_quotas({"connections": None}, user="ANONYMOUS")
        with warmlog.blocking.Admin(broker.address) as second:
            second.topic_names()
