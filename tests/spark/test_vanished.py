"""Topics that go, come again or shrink under a stream and under a load(): planned against a real broker, no session."""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess
from broker_thread import BrokerThread
from lost_end import create, lose_end, produce
from spark.topics import Record, Topics
from transactions import TransactionalProducer
from warmlog.errors import LogTruncated, OffsetOutOfRange, UnknownTopicOrPartition
from warmlog.ranges.discover import Discovery
from warmlog.ranges.range_reader import read_ranges
from warmlog.ranges.read_settings import Projection, ReadSettings
from warmlog.spark.options.read_options import Admission, parse_read_options, parse_stream_options
from warmlog.spark.read.plan import Task
from warmlog.spark.read.planning import plan_batch
from warmlog.spark.stream.planner import StreamPlanner
from warmlog.spark.stream.reader import WarmlogStreamReader

TWO = "stays,goes"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        yield broker


@pytest.fixture
def topics(broker: BrokerProcess) -> Iterator[Topics]:
    """`stays` with one partition of 5 records, `goes` with two."""
    with Topics(broker.host, broker.port) as topics:
        topics.create("stays")
        topics.create("goes", partitions=2)
        for topic, partition in (("stays", 0), ("goes", 0), ("goes", 1)):
            fill(topics, topic, partition, 5)
        yield topics


def fill(topics: Topics, topic: str, partition: int, count: int) -> None:
    topics.fill(topic, partition, [Record(None, b"v")] * count)


READ = {("stays", 0): 5, ("goes", 0): 5, ("goes", 1): 5}
"""How far a stream has read."""


@contextmanager
def planner_of(broker: BrokerProcess, **given: str) -> Iterator[StreamPlanner]:
    """As a query has it that is started, or started again."""
    options = parse_stream_options({"bootstrap.servers": broker.address, **given}, 0)
    with Discovery(options.reading.bootstrap) as discovery:
        yield StreamPlanner(options, lambda: 0.0, discovery)


@pytest.mark.parametrize("choice", [{"subscribe": TWO}, {"assign": '{"stays": [0], "goes": [0, 1]}'}])
def test_a_stream_goes_on_without_a_topic_that_is_gone_where_data_loss_is_allowed(
    broker: BrokerProcess, topics: Topics, choice: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with planner_of(broker, failOnDataLoss="false", **choice) as planner:
        assert planner.next_end(READ, Admission()) == READ
        topics.delete("goes")
        fill(topics, "stays", 0, 2)
        for _ in range(2):
            end = planner.next_end(READ, Admission())
            assert end == {("stays", 0): 7}
        assert [str(planned) for task in planner.tasks(READ, end) for planned in task] == ["stays-0 offsets 5 to 7"]
    said = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert any(line.startswith("goes-1 offsets 5 to 5: the partition is gone; skipped") for line in said)
    assert sum(line.startswith("topic goes does not exist now") for line in said) == 1
    with planner_of(broker, failOnDataLoss="false", **choice) as again:
        again.set_target()
        assert again.next_end(end, Admission()) == end
        topics.create("goes", partitions=2)
        fill(topics, "goes", 1, 3)
    with planner_of(broker, failOnDataLoss="false", **choice) as again:
        new = again.next_end(end, Admission())
        assert new == {**end, ("goes", 0): 0, ("goes", 1): 3}
        assert [str(planned) for task in again.tasks(end, new) for planned in task] == ["goes-1 offsets 0 to 3"]


@pytest.mark.parametrize(
    "choice", [{"subscribe": TWO}, {"subscribePattern": "stays|goes"}, {"assign": '{"stays": [0], "goes": [0, 1]}'}]
)
def test_a_stream_ends_with_the_range_and_what_to_do_when_a_topic_is_gone(
    broker: BrokerProcess, topics: Topics, choice: dict[str, str]
) -> None:
    topics.delete("goes")
    with planner_of(broker, **choice) as planner:
        planner.set_target()
        message = "goes-0 offsets 5 to 5: the partition is gone; to continue, set failOnDataLoss to false"
        with pytest.raises(OffsetOutOfRange, match=message):
            planner.next_end(READ, Admission())
        with pytest.raises(OffsetOutOfRange, match="goes-1 offsets 5 to 6: the partition is gone"):
            planner.tasks(READ, {**READ, ("goes", 1): 6})


def test_a_stream_whose_topics_are_all_gone_waits_for_others_where_data_loss_is_allowed(
    broker: BrokerProcess, topics: Topics
) -> None:
    topics.delete("goes")
    topics.delete("stays")
    with planner_of(broker, subscribePattern="stays|goes", failOnDataLoss="false") as planner:
        assert planner.next_end(READ, Admission()) == {}
        given = {"bootstrap.servers": broker.address, "subscribePattern": "stays|goes", "failOnDataLoss": "false"}
        reader = WarmlogStreamReader(parse_stream_options(given, 0), Projection())
        assert reader.partitions({"stays": {"0": 5}}, {}) == []
        assert reader.latestOffset() == {}  # as Spark 4.0 and 4.1 ask
        reader.stop()
        topics.create("stays")
        fill(topics, "stays", 0, 1)
        assert planner.next_end({}, Admission()) == {("stays", 0): 1}
    topics.delete("stays")
    with planner_of(broker, subscribePattern="stays|goes") as planner, pytest.raises(OffsetOutOfRange, match="is gone"):
        planner.next_end(READ, Admission())


def test_a_topic_made_anew_with_fewer_partitions_is_an_error_or_goes_on_with_those(
    broker: BrokerProcess, topics: Topics
) -> None:
    assigned = '{"goes": [0, 1]}'
    read = {("goes", 0): 5, ("goes", 1): 5}
    topics.delete("goes")
    topics.create("goes", partitions=1)
    fill(topics, "goes", 0, 7)
    with planner_of(broker, assign=assigned) as planner, pytest.raises(OffsetOutOfRange, match=r"goes-1 .* is gone"):
        planner.next_end(read, Admission())
    with planner_of(broker, assign=assigned, failOnDataLoss="false") as planner:
        assert planner.next_end(read, Admission()) == {("goes", 0): 7}


def test_a_partition_that_was_never_there_is_an_error_unless_data_loss_is_allowed(
    broker: BrokerProcess, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    wrong = {"assign": '{"goes": [0, 9]}'}
    read = {("goes", 0): 5}
    message = "topic goes has the partitions 0 to 1, not 9"
    with planner_of(broker, **wrong) as planner, pytest.raises(UnknownTopicOrPartition, match=message):
        planner.next_end(read, Admission())
    with planner_of(broker, failOnDataLoss="false", **wrong) as planner:
        with pytest.raises(UnknownTopicOrPartition, match=message):
            planner.initial()
        assert planner.next_end(read, Admission()) == read
    assert "partition goes-9 does not exist now" in caplog.text
    assert sum(record.levelno == logging.WARNING for record in caplog.records) == 1
    offsets = '{"goes": {"0": 1, "1": 1}}'
    with pytest.raises(UnknownTopicOrPartition, match="topic goes has the partitions 0 to 1, not 2"):
        plan_of(broker, "goes", startingOffsets=offsets, partitions="0-9", failOnDataLoss="false")


def test_a_topic_that_goes_between_the_end_and_the_tasks_of_a_micro_batch_is_lost_data(
    broker: BrokerProcess, topics: Topics
) -> None:
    begin = dict.fromkeys(READ, 0)
    with planner_of(broker, subscribe=TWO, failOnDataLoss="false", minPartitions="4") as planner:
        assert planner.next_end(begin, Admission()) == READ
        topics.delete("goes")
        assert {planned.topic for task in planner.tasks(begin, READ) for planned in task} == {"stays"}
    with planner_of(broker, subscribe=TWO) as planner, pytest.raises(OffsetOutOfRange, match=r"goes-0 .* is gone"):
        planner.tasks(begin, READ)


def test_a_topic_made_anew_between_the_end_and_the_tasks_of_a_micro_batch_is_lost_data(
    broker: BrokerProcess, topics: Topics
) -> None:
    """Its records are no part of that micro-batch, whose offsets they have: they come later, from the first on."""
    begin = dict.fromkeys(READ, 0)
    anew = {("stays", 0): 5, ("goes", 0): 9}
    for fails in ("true", "false"):
        with planner_of(broker, subscribe=TWO, failOnDataLoss=fails) as planner:
            end = planner.next_end(begin, Admission())
            topics.delete("goes")
            topics.create("goes")
            fill(topics, "goes", 0, 9)
            if fails == "true":
                with pytest.raises(OffsetOutOfRange, match=r"goes-0 offsets 0 to 5: .* its topic was recreated"):
                    planner.tasks(begin, end)
                begin = dict.fromkeys(anew, 0)
                continue
            assert {planned.topic for task in planner.tasks(begin, end) for planned in task} == {"stays"}
            read = planner.next_end(end, Admission())
            assert read == {("stays", 0): 5, ("goes", 0): 0}
            following = planner.next_end(read, Admission())
            assert following == anew
            assert [str(planned) for task in planner.tasks(read, following) for planned in task] == [
                "goes-0 offsets 0 to 9"
            ]


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_goes_while_bytes_are_counted_is_lost_data(
    broker: BrokerProcess, topics: Topics, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    begin, admission = dict.fromkeys(READ, 0), Admission(max_bytes=1 << 20)
    with planner_of(broker, subscribe=TWO, failOnDataLoss=fails) as planner:
        count = planner._discovery.splits
        deleted = []

        def delete_and_count(*arguments: Any, **more: Any) -> Any:
            if not deleted:
                deleted.append("goes")
                topics.delete("goes")
            return count(*arguments, **more)

        monkeypatch.setattr(planner._discovery, "splits", delete_and_count)
        if fails == "true":
            with pytest.raises(OffsetOutOfRange, match=r"goes-0 .* is gone"):
                planner.next_end(begin, admission)
        else:
            assert planner.next_end(begin, admission) == {("stays", 0): 5}
        assert deleted


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_was_never_there_is_an_error_whatever_may_be_lost(
    broker: BrokerProcess, topics: Topics, fails: str
) -> None:
    with (
        planner_of(broker, subscribe="stays,gose", failOnDataLoss=fails) as planner,
        pytest.raises(UnknownTopicOrPartition, match=r"topic gose does not exist; did you mean goes\?"),
    ):
        planner.initial()
    with pytest.raises(UnknownTopicOrPartition, match="topic gose does not exist"):
        plan_of(broker, "stays,gose", failOnDataLoss=fails)


def test_a_stream_that_goes_on_wants_a_topic_that_it_has_not_read_to_be_there(
    broker: BrokerProcess, topics: Topics
) -> None:
    with (
        planner_of(broker, subscribe="stays,gose") as planner,
        pytest.raises(UnknownTopicOrPartition, match="topic gose does not exist"),
    ):
        planner.next_end({("stays", 0): 5}, Admission())


def plan_of(broker: BrokerProcess, names: str, **given: str) -> list[str]:
    options = parse_read_options({"bootstrap.servers": broker.address, "subscribe": names, **given}, 0)
    return [str(planned) for task in plan_batch(options) for planned in task]


def test_a_load_from_offsets_of_a_topic_that_is_gone_is_an_error_or_reads_the_others(
    broker: BrokerProcess, topics: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topics.delete("goes")
    offsets = json.dumps({"stays": {"0": 3}, "goes": {"0": 5, "1": 5}})
    with pytest.raises(UnknownTopicOrPartition, match="topic goes does not exist"):
        plan_of(broker, TWO, startingOffsets=offsets)
    assert plan_of(broker, TWO, startingOffsets=offsets, failOnDataLoss="false") == ["stays-0 offsets 3 to 5"]
    assert "goes-1 offsets 0 to 0: there is no such partition; skipped" in caplog.text
    with pytest.raises(UnknownTopicOrPartition, match="topic goes does not exist"):
        plan_of(broker, TWO, failOnDataLoss="false")


def test_a_stream_of_committed_records_ends_where_a_transaction_is_open(tmp_path: Path) -> None:
    with BrokerThread(tmp_path) as thread:
        host, port = thread.address.split(":")
        with Topics(host, int(port)) as topics:
            topics.create("t")
            fill(topics, "t", 0, 3)
        producer = TransactionalProducer(thread, "t", 1)
        producer.send(b"open")
        given = {"bootstrap.servers": thread.address, "subscribe": "t", "startingOffsets": "earliest"}
        found = {}
        for isolation in ("read_committed", "read_uncommitted"):
            options = parse_stream_options({**given, "isolation.level": isolation}, 0)
            reader = WarmlogStreamReader(options, Projection())
            found[isolation] = reader.latestOffset()
            reader.stop()
        assert found == {"read_committed": {"t": {"0": 3}}, "read_uncommitted": {"t": {"0": 4}}}


# --- a log that is cut ----------------------------------------------------------------------------------------------


def values_of(tasks: Sequence[Task], settings: ReadSettings) -> list[bytes]:
    batches = [batch for task in tasks for batch in read_ranges(task, Projection(("value",)), settings)]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@pytest.mark.parametrize("may_lose", [False, True])
def test_what_is_written_in_place_of_what_a_load_had_planned_is_not_read(broker: BrokerProcess, may_lose: bool) -> None:
    kept, lost, new = [b"kept"] * 10, [b"lost"] * 10, [b"new"] * 15
    create(broker, "cut", kept)
    produce(broker, "cut", lost)
    given = {"bootstrap.servers": broker.address, "subscribe": "cut", "failOnDataLoss": str(not may_lose)}
    options = parse_read_options(given, 0)
    tasks = plan_batch(options)
    lose_end(broker, "cut", 12)
    produce(broker, "cut", new)
    if may_lose:
        assert values_of(tasks, options.reading) == kept + lost[:2]
    else:
        with pytest.raises(
            LogTruncated, match=r"cut at 12 after these ranges were planned, .*; load\(\) again, or set f"
        ):
            values_of(tasks, options.reading)
    assert values_of(plan_batch(options), options.reading) == kept + lost[:2] + new


def test_a_stream_whose_log_is_cut_while_its_tasks_are_to_run_reads_what_is_new_once(
    broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    kept, lost, new = [b"kept"] * 10, [b"lost"] * 10, [b"new"] * 15
    create(broker, "cut", kept)
    produce(broker, "cut", lost)
    place = ("cut", 0)
    options = parse_stream_options(
        {"bootstrap.servers": broker.address, "subscribe": "cut", "failOnDataLoss": "false"}, 0
    )
    with planner_of(broker, subscribe="cut", failOnDataLoss="false") as planner:
        end = planner.next_end({place: 0}, Admission())
        assert end == {place: 20}
        lose_end(broker, "cut", 12)
        produce(broker, "cut", new)
        assert values_of(planner.tasks({place: 0}, end), options.reading) == kept + lost[:2]
        back = planner.next_end(end, Admission())
        assert back == {place: 12}
        assert planner.tasks(end, back) == []
        last = planner.next_end(back, Admission())
        assert last == {place: 27}
        assert values_of(planner.tasks(back, last), options.reading) == new
    assert "cut-0 offsets 12 to 20: gone: the log was cut at 12 after these ranges were planned" in caplog.text
    assert "cut-0: the log was cut at 12 after it had been read up to 20" in caplog.text
