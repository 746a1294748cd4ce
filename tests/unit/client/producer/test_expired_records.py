"""Records whose own timestamps are so old that their topic would delete them at once."""

import logging
import time
from typing import Any

import pytest

import warmlog
from fake_broker import FakeBroker
from warmlog.producer.record_input import WARN_AGAIN_NS, AgeCheck

pytestmark = pytest.mark.usefixtures("quick_clock")

DAY_MS = 86_400_000
DELETING = {
    "max.message.bytes": "1048576",
    "cleanup.policy": "delete",
    "retention.ms": str(DAY_MS),
    "message.timestamp.type": "CreateTime",
}
SENDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"key": b"k"},
    "headers": {"headers": {"h": b"1"}},
    "partition": {"partition": 0},
}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fake_broker(**changed: str) -> FakeBroker:
    broker = FakeBroker(t=1)
    broker.configs["t"] = {**DELETING, **{name.replace("_", "."): value for name, value in changed.items()}}
    return broker


def producer(broker: FakeBroker, **options: Any) -> warmlog.Producer:
    return warmlog.Producer(broker.address, retry_backoff_ms=5, linger_ms=50, **options)


@pytest.mark.parametrize("record", SENDS.values(), ids=SENDS)
@pytest.mark.parametrize("is_known", [True, False])
async def test_an_expired_record_is_an_error_if_that_is_asked_for(record: dict[str, Any], is_known: bool) -> None:
    async with fake_broker() as broker, producer(broker, expired="error") as client:
        if is_known:
            await client.send("t", b"known", **record)
            client.send("t", b"opens the batch", **record)
        with pytest.raises(warmlog.RecordExpired, match=f"'t'.*1970-01-21.*retention.ms={DAY_MS}.*seconds instead"):
            await client.send("t", b"old", timestamp_ms=1_790_000_000, **record)
        await client.send("t", b"young", timestamp_ms=now_ms() - DAY_MS // 2, **record)
        await client.send("t", b"future", timestamp_ms=now_ms() + DAY_MS, **record)
        assert b"old" not in broker.topics["t"][0].values()
        assert broker.topics["t"][0].values()[-2:] == [b"young", b"future"]


async def test_an_expired_record_of_an_unknown_topic_that_is_not_awaited_is_raised_by_flush() -> None:
    async with fake_broker() as broker, producer(broker, expired="error") as client:
        client.send("t", b"old", timestamp_ms=5)
        with pytest.raises(warmlog.RecordExpired):
            await client.flush()


@pytest.mark.parametrize("is_list", [True, False])
async def test_send_many_is_refused_as_a_whole_by_its_oldest_record(is_list: bool) -> None:
    old_ms = 1_500_000_000_000
    async with fake_broker() as broker, producer(broker, expired="error") as client:
        with pytest.raises(warmlog.RecordExpired, match=r"2017-07-14T02:40:00") as raised:
            await client.send_many("t", [b"a", b"b"], timestamps_ms=[now_ms(), old_ms] if is_list else old_ms)
        assert "seconds" not in str(raised.value)
        await client.send_many("t", [b"c"])
        await client.send_many("t", [], timestamps_ms=[])
        assert broker.topics["t"][0].values() == [b"c"]


async def test_by_default_expired_records_are_sent_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_broker() as broker, producer(broker) as client:
        await client.send("t", b"known", timestamp_ms=now_ms())
        await client.send("t", b"now")
        assert not caplog.records
        for number in range(20):
            client.send("t", b"%d" % number, key=b"k", timestamp_ms=number)
        await client.send_many("t", [b"many"], timestamps_ms=7)
        (warning,) = caplog.records
        assert (warning.name, warning.levelno) == ("warmlog", logging.WARNING)
        assert "topic 't'" in warning.getMessage()
        assert "1970-01-01T00:00:00.000+00:00" in warning.getMessage()
        assert len(broker.topics["t"][0].values()) == 23


@pytest.mark.parametrize("expired", ["accept", "error", "warn"])
@pytest.mark.parametrize(
    "changed",
    [
        {"retention_ms": "-1"},
        {"cleanup_policy": "compact"},
        {"message_timestamp_type": "LogAppendTime"},
    ],
)
async def test_where_nothing_is_deleted_by_its_timestamp_nothing_is_said(
    changed: dict[str, str], expired: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with fake_broker(**changed) as broker, producer(broker, expired=expired) as client:
        await client.send("t", b"v", key=b"k", timestamp_ms=5)
        await client.send_many("t", [b"v"], timestamps_ms=5)
    assert not caplog.records


async def test_accepted_records_are_sent_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_broker(cleanup_policy="compact,delete") as broker, producer(broker, expired="accept") as client:
        await client.send("t", b"v", timestamp_ms=5)
        await client.send_many("t", [b"v"], timestamps_ms=5)
    assert not caplog.records


async def test_a_topic_that_is_compacted_and_deletes_is_one_that_deletes() -> None:
    async with fake_broker(cleanup_policy="compact,delete") as broker, producer(broker, expired="error") as client:
        with pytest.raises(warmlog.RecordExpired):
            await client.send("t", b"v", timestamp_ms=5)


async def test_a_record_without_a_timestamp_that_waits_for_its_topic_is_never_expired() -> None:
    async with fake_broker(retention_ms="0") as broker, producer(broker, expired="error") as client:
        await client.send("t", b"v")
        assert broker.topics["t"][0].values() == [b"v"]


async def test_a_longer_retention_is_noticed_after_a_refusal() -> None:
    async with fake_broker() as broker, producer(broker, expired="error") as client:
        await client.send("t", b"known")
        broker.configs["t"]["retention.ms"] = "-1"
        with pytest.raises(warmlog.RecordExpired):
            client.send("t", b"v", timestamp_ms=5)
        await client.flush()
        await client.send("t", b"v", timestamp_ms=5)


def test_a_topic_is_warned_of_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_ns = [10 * WARN_AGAIN_NS]
    check = AgeCheck("warn", lambda: now_ns[0])
    for step_ns, topic, count in [(0, "a", 1), (0, "b", 2), (WARN_AGAIN_NS - 1, "a", 2), (1, "a", 3), (1, "a", 3)]:
        now_ns[0] += step_ns
        check(topic, 1, 5)
        assert len(caplog.records) == count


def test_a_record_as_old_as_the_retention_is_kept() -> None:
    check = AgeCheck("error", lambda: 2_000_000_000)
    check("t", 500, 1500)
    with pytest.raises(warmlog.RecordExpired):
        check("t", 500, 1499)


def test_the_option_is_checked() -> None:
    with pytest.raises(warmlog.InvalidConfig, match='expired=\'never\': "warn", "error" or "accept" expected'):
        warmlog.Producer("127.0.0.1:1", expired="never")  # type: ignore[arg-type]
