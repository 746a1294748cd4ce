"""DescribeStatus, DescribePartitions and TraceIndex, and the commands that show them: a real broker."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmlog
from broker_thread import BrokerThread
from integration.command_line import CommandLine
from warmlog.blocking import Admin, Producer
from warmlog_broker.handlers import inspection
from warmlog_protocol import messages as m
from wire_client import WireClient

TOPIC = "t"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    """A broker with a topic of two partitions: 100 records of 5,000 bytes in segments of 100,000 bytes, and none."""
    with BrokerThread(tmp_path_factory.mktemp("inspected") / "data") as running:
        with Admin(running.address) as admin, Producer(running.address) as producer:
            admin.create_topic(TOPIC, partitions=2, configs={"segment.bytes": 100_000})
            for _ in range(100):
                producer.send(TOPIC, b"x" * 5000, partition=0).result()
        yield running


@pytest.fixture
def admin(broker: BrokerThread) -> Iterator[Admin]:
    with Admin(broker.address) as admin:
        yield admin


def test_the_status_counts_what_was_appended_and_flushed(admin: Admin) -> None:
    status = admin.describe_status()
    assert (status.is_ready, status.problems) == (True, [])
    assert 1 <= status.connections <= status.connections_limit
    (counts,) = (each for each in status.topics if each.name == TOPIC)
    assert counts.appended_records == 100
    assert 500_000 < counts.appended_bytes < 520_000
    (flushes,) = status.flushes
    assert sum(flushes.counts) >= 100
    assert len(flushes.counts) == len(flushes.bounds_us) + 1


def test_a_directory_that_has_failed_is_a_problem(tmp_path: Path) -> None:
    with BrokerThread(tmp_path / "data") as broken, Admin(broken.address) as admin:
        admin.create_topic(TOPIC)

        def fail(running: object) -> None:
            (directory,) = broken.broker.services.directories
            directory.failure = "pulled out"

        broken.in_loop(fail)
        assert any("pulled out" in problem for problem in admin.describe_status().problems)


def test_partitions_have_offsets_sizes_and_their_newest_segments(admin: Admin) -> None:
    found = admin.describe_partitions([TOPIC], max_segments=2)
    full, empty = found[TOPIC, 0], found[TOPIC, 1]
    assert not isinstance(full, Exception)
    assert not isinstance(empty, Exception)
    assert (full.log_start_offset, full.high_watermark, full.log_end_offset) == (0, 100, 100)
    assert full.segment_count == 6
    assert [each.base_offset for each in full.segments] == [76, 95]
    assert 0 < sum(each.size_bytes for each in full.segments) < full.size_bytes
    assert (empty.high_watermark, empty.segment_count, empty.size_bytes) == (0, 1, 0)


def test_one_request_gets_a_bounded_number_of_segments(
    admin: Admin, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with WireClient(broker.address) as client:
        named = [m.InspectedPartition(TOPIC, 0)] * 2
        with pytest.raises(warmlog.InvalidRequest, match="twice"):
            client.call(m.DescribePartitionsRequest(named, 1000))
    monkeypatch.setattr(inspection, "MAX_SEGMENTS_TOLD", 4)
    found = admin.describe_partitions([TOPIC], max_segments=6)
    assert [len(each.segments) for each in found.values() if not isinstance(each, Exception)] == [4, 0]


def test_without_names_there_are_all_topics_and_no_segments(admin: Admin) -> None:
    found = admin.describe_partitions()
    assert found.keys() == {(TOPIC, 0), (TOPIC, 1)}
    assert [each.segments for each in found.values() if not isinstance(each, Exception)] == [[], []]


def test_an_index_is_searched_in_the_segment_that_holds_the_offset(admin: Admin) -> None:
    found = admin.trace_index(TOPIC, 0, 30)
    assert (found.base_offset, found.offset) == (19, 30)
    classic, warm = found.searches
    assert (classic.name, warm.name) == ("classic", "warm/cold")
    assert classic.lower == warm.lower
    assert classic.slots[0] == 0
    assert all(0 <= slot < found.entries for slot in (*classic.slots, *warm.slots))


def test_a_partition_without_an_index_and_one_that_does_not_exist_are_refused(admin: Admin) -> None:
    with pytest.raises(warmlog.InvalidRequest, match="no index entry"):
        admin.trace_index(TOPIC, 1)
    with pytest.raises(warmlog.UnknownTopicOrPartition, match="0 to 1"):
        admin.trace_index(TOPIC, 2)


def test_the_commands_show_it(broker: BrokerThread) -> None:
    run = CommandLine(broker.address)
    state = json.loads(run("status", "--interval", "0s", "--json").stdout)["state"]
    assert state["connections"] >= 1
    described = json.loads(run("topic", "describe", TOPIC, "--segments", "1", "--json").stdout)
    assert [row["segments"][0]["base_offset"] for row in described["partitions"]] == [95, 0]
    traced = json.loads(run("index", "trace", "--partition", f"{TOPIC}-0", "--target", "30", "--json").stdout)
    assert traced["target"] == "offset 30"
    assert run("index", "trace", "--partition", f"{TOPIC}-0", "--index", "time").returncode == 2
