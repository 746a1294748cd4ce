"""A broker whose clock jumps while it runs: by a day, to 1970, and far into the future."""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker_thread import BrokerThread
from waiting import wait_until
from warmlog_broker import Broker
from warmlog_broker.maintenance import housekeeping
from warmlog_broker.maintenance.housekeeping import UNLINK_INTERVAL_MS
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import InvalidTimestamp
from warmlog_protocol.messages import LATEST_TIMESTAMP, DeleteRecordsPartition, DeleteRecordsRequest
from wire_client import WireClient, batch_of

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS
real_time_ns = time.time_ns


class Clock:
    """What `time.time_ns` says in this process."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def time_ns(self) -> int:
        return max(0, real_time_ns() + self.ahead_ms * 1_000_000)

    @property
    def now_ms(self) -> int:
        return self.time_ns() // 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "time_ns", clock.time_ns)
    monkeypatch.setattr(housekeeping, "PRODUCER_EXPIRATION_INTERVAL_MS", 20)
    return clock


JUMPS_MS = [DAY_MS, -DAY_MS, -100 * YEAR_MS, 50 * YEAR_MS, 0]
SETTINGS = {
    "segment_bytes": 1024,
    "log_retention_check_interval_ms": 20,
    "retention_ms": 3_600_000,
}


def test_nothing_is_given_up_and_the_time_of_appending_never_goes_back(tmp_path: Path, clock: Clock) -> None:
    with BrokerThread(tmp_path, **SETTINGS) as broker, WireClient(broker.address) as client:
        client.create_topic("sent")
        client.create_topic("stamped", message_timestamp_type="LogAppendTime")
        producer = client.producer_id()
        times: list[int] = []
        sequence = 0
        for jump_ms in [0, *JUMPS_MS]:
            clock.ahead_ms = jump_ms
            for _ in range(4):
                batch = batch_of([b"x" * 400], timestamp_ms=clock.now_ms, producer=producer, base_sequence=sequence)
                assert client.produce("sent", batch).base_offset == sequence
                sequence += 1
                times.append(client.produce("stamped", batch_of([b"x" * 400])).log_append_time_ms)
            time.sleep(0.2)  # retention and expiry have looked several times
        assert times == sorted(times)
        for topic in ("sent", "stamped"):
            result, payload = client.fetch(topic, 0)
            assert (result.log_start_offset, result.high_watermark, bool(payload)) == (0, sequence, True)
            assert client.offset_at(topic, LATEST_TIMESTAMP) == sequence
    assert broker.was_clean
    clock.ahead_ms = -DAY_MS
    with BrokerThread(tmp_path, **SETTINGS) as broker, WireClient(broker.address) as client:
        time.sleep(0.2)
        assert client.produce("stamped", batch_of([b"x"])).log_append_time_ms >= times[-1]
        batch = batch_of([b"x"], timestamp_ms=clock.now_ms, producer=producer, base_sequence=sequence)
        assert client.produce("sent", batch).base_offset == sequence
        assert client.fetch("sent", 0)[0].log_start_offset == 0


def test_removed_files_stay_for_their_delay_whatever_the_clock_says(tmp_path: Path, clock: Clock) -> None:
    ways = {
        "deleted": {},
        "retained": {"retention_bytes": "1000"},
        "compacted": {"cleanup_policy": "compact"},
    }
    directories = [tmp_path / f"{topic}-0" for topic in ways]

    def removed() -> list[set[Path]]:
        return [set(directory.glob("*.deleted")) for directory in directories]

    def stop_waiting(broker: Broker) -> None:
        for partition in broker.topics.partitions:
            partition.log.update_config(replace(partition.log.local.config, file_delete_delay_ms=0))

    settings = {"segment_bytes": 1024, "log_retention_check_interval_ms": 20, "log_cleaner_backoff_ms": 20}
    with BrokerThread(tmp_path, **settings) as broker, WireClient(broker.address) as client:
        clock.ahead_ms = 50 * YEAR_MS  # and is not believed from here on
        for topic, configs in ways.items():
            client.create_topic(topic, **configs)
            for _ in range(8):
                client.produce(topic, encode_batch([b"x" * 400], keys=[b"key"], timestamps_ms=clock.now_ms))
        client.call(DeleteRecordsRequest([DeleteRecordsPartition("deleted", 0, 6)]))
        wait_until(lambda: all(removed()))
        before = removed()
        clock.ahead_ms = 100 * YEAR_MS
        time.sleep(2.5 * UNLINK_INTERVAL_MS / 1000)
        assert all(now >= then for now, then in zip(removed(), before, strict=True))
        broker.in_loop(stop_waiting)
        wait_until(lambda: not any(removed()))


def test_requests_that_wait_are_timed_by_a_clock_that_nobody_can_set(tmp_path: Path, clock: Clock) -> None:
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client, WireClient(broker.address) as other:
        client.create_topic("t")
        for jump_ms in JUMPS_MS:
            begin_s = time.monotonic()
            clock.ahead_ms = jump_ms
            assert client.fetch("t", client.offset_at("t", LATEST_TIMESTAMP), max_wait_ms=300)[0].size_bytes == 0
            assert time.monotonic() - begin_s >= 0.25
            other.produce("t", batch_of([b"x"], timestamp_ms=clock.now_ms))


def test_with_a_clock_of_1970_records_of_today_are_refused_with_the_reason(tmp_path: Path, clock: Clock) -> None:
    with BrokerThread(tmp_path) as broker, WireClient(broker.address) as client:
        client.create_topic("t")
        clock.ahead_ms = -100 * YEAR_MS
        with pytest.raises(InvalidTimestamp):
            client.produce("t", batch_of([b"x"]))
        clock.ahead_ms = 0
        assert client.produce("t", batch_of([b"x"])).base_offset == 0
