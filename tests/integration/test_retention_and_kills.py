"""Where a log starts is on disk before retention removes a segment: after a kill, nothing seems to have been lost."""

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from warmlog_broker.storage.directory.data_dir import LOG_STARTS_NAME
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.segment.segment import LogSegment
from wire_client import WireClient, batch_of

BATCH = batch_of([b"x" * 90] * 10)
SETTINGS = {"segment_bytes": "2500", "retention_bytes": "5000", "file_delete_delay_ms": "0"}
SOON = {"log_retention_check_interval_ms": 50, "log_flush_offset_checkpoint_interval_ms": 3_600_000}
"""The checkpoints that housekeeping writes by itself come far too late."""


def test_the_checkpoint_of_log_starts_is_ahead_of_what_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = TopicPartition("t", 0)
    removed: list[tuple[int, int]] = []
    drop_segments: Callable[..., None] = LocalLog.drop_segments

    def noted(log: LocalLog, segments: Iterable[LogSegment], reason: str) -> None:
        gone = list(segments)
        following = log.segments.higher(gone[-1].base_offset)
        assert following is not None
        removed.append((read_offsets(tmp_path / LOG_STARTS_NAME).get(key, 0), following.base_offset))
        drop_segments(log, gone, reason)

    monkeypatch.setattr(LocalLog, "drop_segments", noted)
    with BrokerThread(tmp_path, **SOON) as broker, WireClient(broker.address) as client:
        client.create_topic("t", **SETTINGS)
        deadline = time.monotonic() + 30
        while len(removed) < 5:
            client.produce("t", BATCH)
            assert time.monotonic() < deadline
    assert [stored >= end for stored, end in removed] == [True] * len(removed)


def test_a_broker_that_is_killed_while_retention_is_at_work_misses_nothing_afterwards(tmp_path: Path) -> None:
    luck = random.Random(5)
    with BrokerProcess(tmp_path, **SOON) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", **SETTINGS)
        for _ in range(5):
            until = time.monotonic() + luck.uniform(0.1, 0.4)
            with WireClient(broker.address) as client:
                while time.monotonic() < until:
                    client.produce("t", BATCH)
            broker.kill()
            first_base_offset = min(int(path.stem) for path in (tmp_path / "t-0").glob("*.log"))
            broker.start()
            with WireClient(broker.address) as client:
                assert client.offset_at("t", -2) >= first_base_offset
        assert "segments are missing" not in broker.output
        assert first_base_offset > 0, "retention has removed something"
