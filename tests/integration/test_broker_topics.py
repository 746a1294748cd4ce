"""Creating, describing and deleting topics, and the start of a log, also with a `kill -9` in between."""

import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

import warmlog
from broker_process import BrokerProcess
from broker_thread import BrokerThread
from waiting import wait_until
from warmlog_broker.storage.directory.data_dir import LOG_STARTS_NAME
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.log.local_log import LocalLog
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_protocol import messages as m
from wire_client import WireClient, batch_of

BROKER_SETTINGS = {
    "num_partitions": 2,
    "max_partitions_per_topic": 20,
    "max_partitions": 100,
    "retention_ms": 1_000_000,
}


def new_name() -> str:
    return f"t{uuid4().hex}"


def create(client: WireClient, *topics: m.NewTopic, validate_only: bool = False) -> list[m.CreatedTopic]:
    response = client.call(m.CreateTopicsRequest(list(topics), validate_only))
    return cast("m.CreateTopicsResponse", response).topics


def delete(client: WireClient, name: str) -> int:
    return cast("m.DeleteTopicsResponse", client.call(m.DeleteTopicsRequest([name]))).topics[0].error_code


def topics_of(client: WireClient, *names: str) -> m.MetadataResponse:
    return cast("m.MetadataResponse", client.call(m.MetadataRequest(list(names) if names else None)))


def test_metadata_describes_what_was_created(client: WireClient) -> None:
    name = new_name()
    (created,) = create(client, m.NewTopic(name, 3))
    assert (created.error_code, created.partitions, len(created.topic_id)) == (0, 3, 16)
    metadata = topics_of(client, name)
    (topic,) = metadata.topics
    assert topic.topic_id == created.topic_id
    assert [(found.partition, found.leader_id, found.replicas) for found in topic.partitions] == [
        (0, 1, [1]),
        (1, 1, [1]),
        (2, 1, [1]),
    ]
    (node,) = metadata.brokers
    assert (node.node_id, node.host) == (metadata.controller_id, "")
    assert name in {topic.name for topic in topics_of(client).topics}


def test_partitions_default_to_the_brokers_setting(client: WireClient) -> None:
    (created,) = create(client, m.NewTopic(new_name()))
    assert created.partitions == 2


def test_a_topic_that_does_not_exist_is_said_not_to(client: WireClient) -> None:
    (topic,) = topics_of(client, "no-such-topic").topics
    assert topic.error_code == warmlog.UnknownTopicOrPartition.code
    assert topic.partitions == []
    assert delete(client, "no-such-topic") == warmlog.UnknownTopicOrPartition.code


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (m.NewTopic("", 1), warmlog.InvalidTopic),
        (m.NewTopic("..", 1), warmlog.InvalidTopic),
        (m.NewTopic("a/b", 1), warmlog.InvalidTopic),
        (m.NewTopic("x" * 250, 1), warmlog.InvalidTopic),
        (m.NewTopic("n", 0), warmlog.InvalidPartitions),
        (m.NewTopic("n", -2), warmlog.InvalidPartitions),
        (m.NewTopic("n", 21), warmlog.InvalidPartitions),
        (m.NewTopic("n", 1, 2), warmlog.InvalidReplicationFactor),
        (m.NewTopic("n", 1, 0), warmlog.InvalidReplicationFactor),
        (m.NewTopic("n", 1, 1, {"retention.sm": "1"}), warmlog.InvalidConfig),
        (m.NewTopic("n", 1, 1, {"segment.bytes": "lots"}), warmlog.InvalidConfig),
    ],
)
def test_what_cannot_be_created_is_refused(client: WireClient, topic: m.NewTopic, error: type[Exception]) -> None:
    good = new_name()
    refused, created = create(client, topic, m.NewTopic(good, 1))
    assert refused.error_code == error.code  # type: ignore[attr-defined]
    assert refused.error_message
    assert created.error_code == 0


def test_names_that_exist_or_collide_are_refused(client: WireClient) -> None:
    name = new_name()
    client.create_topic(f"{name}.a")
    with pytest.raises(warmlog.TopicAlreadyExists):
        client.create_topic(f"{name}.a")
    with pytest.raises(warmlog.InvalidTopic, match="collides"):
        client.create_topic(f"{name}_a")
    twice = m.NewTopic(new_name(), 1)
    assert [created.error_code for created in create(client, twice, twice)] == [warmlog.InvalidRequest.code] * 2


def test_validating_creates_nothing(client: WireClient) -> None:
    name = new_name()
    (checked,) = create(client, m.NewTopic(name, 4), validate_only=True)
    assert (checked.error_code, checked.partitions) == (0, 4)
    assert topics_of(client, name).topics[0].error_code == warmlog.UnknownTopicOrPartition.code


def test_a_name_of_the_greatest_length_can_be_created_and_deleted(client: WireClient) -> None:
    name = uuid4().hex.ljust(249, "x")
    client.create_topic(name)
    client.produce(name, batch_of([b"a"]))
    assert delete(client, name) == 0


def test_the_settings_in_force_are_described(client: WireClient) -> None:
    name = new_name()
    client.create_topic(name, segment_bytes="1048576")
    response = cast("m.DescribeConfigsResponse", client.call(m.DescribeConfigsRequest([name, "no-such-topic"])))
    found, missing = response.resources
    settings = {entry.name: entry for entry in found.entries}
    assert (settings["segment.bytes"].value, settings["segment.bytes"].is_default) == ("1048576", False)
    assert (settings["retention.ms"].value, settings["retention.ms"].is_default) == ("1000000", True)
    assert all(entry.description for entry in found.entries)
    assert missing.error_code == warmlog.UnknownTopicOrPartition.code


def test_the_brokers_own_settings_are_described(client: WireClient, broker: BrokerProcess) -> None:
    response = cast("m.DescribeConfigsResponse", client.call(m.DescribeConfigsRequest([])))
    settings = {entry.name: entry for entry in response.resources[0].entries}
    assert settings["data.dir"].value == str(broker.data_dir)
    assert (settings["num.partitions"].value, settings["num.partitions"].is_default) == ("2", False)
    assert settings["flush.threads"].is_default


def test_a_deleted_topic_is_gone_and_its_name_is_free(client: WireClient, broker: BrokerProcess) -> None:
    name = new_name()
    first_id = client.create_topic(name, file_delete_delay_ms="0")
    client.produce(name, batch_of([b"old"]))
    assert delete(client, name) == 0
    with pytest.raises(warmlog.UnknownTopicOrPartition):
        client.produce(name, batch_of([b"x"]))
    assert client.create_topic(name) != first_id
    assert client.offset_at(name, m.LATEST_TIMESTAMP) == 0
    wait_until(lambda: not list(broker.data_dir.glob(f"{name}*-delete")))


def test_topics_survive_kill_9_and_deleted_ones_stay_deleted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            ids = {name: client.create_topic(name, partitions=2, flush_ms="7") for name in ("a", "b", "c")}
            for name in ids:
                client.produce(name, batch_of([b"1"]))
            assert delete(client, "b") == 0
            broker.kill()
        broker.start()
        with WireClient(broker.address) as client:
            found = {topic.name: topic.topic_id for topic in topics_of(client).topics}
            assert found == {"a": ids["a"], "c": ids["c"]}
            described = cast("m.DescribeConfigsResponse", client.call(m.DescribeConfigsRequest(["a"]))).resources[0]
            assert {entry.name: entry.value for entry in described.entries}["flush.ms"] == "7"
            client.create_topic("b")
            assert client.offset_at("b", m.LATEST_TIMESTAMP) == 0
            assert client.fetch("a", 0)[0].high_watermark == 1


def test_a_topic_made_anew_begins_at_0_also_after_kill_9(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t")
            for _ in range(10):
                client.produce("t", batch_of([b"old"]))
            recovery_points = tmp_path / "data" / "recovery-point-offset-checkpoint"
            wait_until(lambda: recovery_points.exists() and "t 0 10" in recovery_points.read_text())
            assert delete(client, "t") == 0
            client.create_topic("t")
            client.produce("t", batch_of([b"new"]))
            broker.kill()
        broker.start()
        with WireClient(broker.address) as client:
            assert client.offset_at("t", m.LATEST_TIMESTAMP) == 1
            assert client.produce("t", batch_of([b"new"])).base_offset == 1


def test_a_deletion_that_a_crash_interrupted_is_finished_at_start(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=2)
            client.create_topic("other")
            for partition in range(2):
                client.produce("t", batch_of([b"a"]), partition=partition)
            assert delete(client, "t") == 0
        broker.kill()
        for path in sorted(data_dir.glob("t-*-delete")):
            path.rename(data_dir / path.name[:3])  # as if the crash had come before they were renamed
        assert (data_dir / "t-0").is_dir()
        broker.start()
        assert not (data_dir / "t-0").exists()
        assert (data_dir / "other-0").is_dir()
        with WireClient(broker.address) as client:
            client.create_topic("t")
            assert client.offset_at("t", m.LATEST_TIMESTAMP) == 0


def test_a_partition_that_was_lost_after_its_creation_is_not_made_anew_in_silence(tmp_path: Path) -> None:
    from shutil import rmtree

    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", partitions=3)
        broker.kill()
        rmtree(data_dir / "t-1")
        (data_dir / "t-2" / "partition.metadata").unlink()
        broker.start()
        assert f"t-1 IS OFFLINE: {data_dir / 't-1'} is missing, although it was created" in broker.output
        with WireClient(broker.address) as client:
            for partition in (0, 2):
                assert client.produce("t", batch_of([b"a"]), partition=partition).base_offset == 0
            with pytest.raises(warmlog.StorageError, match="put it back, or delete the topic"):
                client.produce("t", batch_of([b"a"]), partition=1)
        assert not (data_dir / "t-1").exists()


def test_old_segments_go_and_their_files_are_unlinked(tmp_path: Path) -> None:
    settings = {"log_retention_check_interval_ms": 100}
    with BrokerProcess(tmp_path / "data", **settings) as broker, WireClient(broker.address) as client:
        client.create_topic("t", segment_bytes="2000", retention_bytes="5000", file_delete_delay_ms="200")
        for _ in range(50):
            client.produce("t", batch_of([b"x" * 500]))
        wait_until(lambda: len(list((tmp_path / "data" / "t-0").glob("*.log*"))) <= 4)
        start = client.offset_at("t", -2)
        assert start > 30
        assert client.fetch("t", start)[0].log_start_offset == start
        broker.kill()
        broker.start()
        with WireClient(broker.address) as again:
            assert again.offset_at("t", -2) >= start
            assert again.offset_at("t", m.LATEST_TIMESTAMP) == 50


BATCH = batch_of([b"x" * 90] * 10)
SETTINGS = {"segment_bytes": "2500", "retention_bytes": "5000", "file_delete_delay_ms": "0"}
SOON = {"log_retention_check_interval_ms": 50, "log_flush_offset_checkpoint_interval_ms": 3_600_000}
"""The checkpoints that housekeeping writes by itself come far too late."""


def test_the_checkpoint_of_log_starts_is_ahead_of_removals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        deadline = time.monotonic() + 60
        while len(removed) < 5:
            client.produce("t", BATCH)
            assert time.monotonic() < deadline
    assert [stored >= end for stored, end in removed] == [True] * len(removed)


def first_offset_of(directory: Path) -> int:
    return min(int(path.stem) for path in directory.glob("*.log"))


def test_a_broker_that_is_killed_while_retention_is_at_work_misses_nothing_afterwards(tmp_path: Path) -> None:
    luck = random.Random(5)
    with BrokerProcess(tmp_path, **SOON) as broker:
        with WireClient(broker.address) as client:
            client.create_topic("t", **SETTINGS)
        for number in range(5):
            until = time.monotonic() + luck.uniform(0.1, 0.4)
            with WireClient(broker.address) as client:
                while time.monotonic() < until or (number == 4 and not first_offset_of(tmp_path / "t-0")):
                    client.produce("t", BATCH)
            broker.kill()
            first_base_offset = first_offset_of(tmp_path / "t-0")
            broker.start()
            with WireClient(broker.address) as client:
                assert client.offset_at("t", -2) >= first_base_offset
        assert "segments are missing" not in broker.output
