"""What may be changed of a topic, who learns of it, and what a disk that refuses leaves."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from unit.broker.conftest import NOW_MS
from unit.broker.topics.test_creation_errors import each_call_failing, holders, started
from unit.broker.topics.test_topics import Room
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.log_file import MetadataLog
from warmlog_broker.metadata.metadata_log import Entry, TopicCreated
from warmlog_broker.metadata.store import Changed, Version
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.topics.topic_changes import TopicChanges, changed_settings
from warmlog_broker.topics.topics import InternalTopic
from warmlog_protocol import errors
from warmlog_protocol.messages import ACKS_ALL, AlteredTopic, NewPartitions
from wire_client import batch_of

CONFIG = BrokerConfig(max_partitions_per_topic=10, max_partitions=12)
DEFAULTS = LogConfig(min_compaction_lag_ms=50)


class ChangingRoom(Room):
    """Topics on real data directories, and what changes them."""

    def __init__(self, *paths: Path) -> None:
        super().__init__(*paths)
        self.altered = 0
        self.changes = TopicChanges(
            self.topics, self.cluster, config=CONFIG, directories=self.directories, on_altered=self._note_altered
        )

    def _note_altered(self) -> None:
        self.altered += 1

    async def alter(self, name: str, settings: dict[str, str], *unset: str) -> errors.ApiError | None:
        (result,) = await self.changes.alter([AlteredTopic(name, settings, list(unset))], validate_only=False)
        return result

    async def add(self, name: str, total: int) -> errors.ApiError | None:
        (result,) = await self.changes.add_partitions([NewPartitions(name, total)], validate_only=False)
        return result


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[ChangingRoom]:
    made = ChangingRoom(tmp_path / "data")
    await made.create("t")
    yield made
    await made.close()


def append(partition: Partition, value: bytes = b"x") -> list[errors.ApiError | None]:
    outcome: list[errors.ApiError | None] = []
    partition.append(batch_of([value], timestamp_ms=NOW_MS), ACKS_ALL, outcome.append, now_ms=NOW_MS)
    return outcome


async def test_a_change_that_was_too_late_is_decided_again(room: ChangingRoom, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if another broker had changed the topic between the check and the commit."""
    commit, refused = room.cluster.commit, 0

    async def refuse_every_other(changes: Sequence[Entry], *, expected: Version | None = None, **more: Any) -> None:
        nonlocal refused
        if expected is not None and refused % 2 == 0:
            refused += 1
            raise Changed
        refused += expected is not None
        await commit(changes, expected=expected, **more)

    monkeypatch.setattr(room.cluster, "commit", refuse_every_other)
    assert isinstance(await room.create("u"), TopicCreated)
    assert await room.alter("u", {"retention.ms": "1"}) is None
    assert await room.add("u", 3) is None
    assert (await room.topics.internal(InternalTopic("__state", 2, {}))).is_internal
    assert room.cluster.state.topics["u"].partitions == room.topics.get("u").count == 3
    assert room.topics.get("u").config.retention_ms == 1
    await room.topics.delete("u")
    assert "u" not in room.cluster.state.topics
    assert refused == 10


def test_a_change_keeps_what_it_does_not_name() -> None:
    own = {"flush.ms": "5", "retention.ms": "7"}
    change = AlteredTopic("t", {"segment.bytes": "1MiB", "flush.ms": "1s"}, ["retention.ms", "preallocate"])
    assert changed_settings(own, change, defaults=DEFAULTS) == {"flush.ms": "1000", "segment.bytes": "1048576"}
    assert own == {"flush.ms": "5", "retention.ms": "7"}


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (AlteredTopic("t", {"retention.msec": "1"}), errors.InvalidConfig),
        (AlteredTopic("t", {}, ["retention.msec"]), errors.InvalidConfig),
        (AlteredTopic("t", {"retention.ms": "7 days"}), errors.InvalidConfig),
        (AlteredTopic("t", {"max.compaction.lag.ms": "49"}), errors.InvalidConfig),
        (AlteredTopic("t", {"flush.ms": "1"}, ["flush.ms"]), errors.InvalidRequest),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(change: AlteredTopic, error: type[errors.ApiError]) -> None:
    with pytest.raises(error):
        changed_settings({}, change, defaults=DEFAULTS)


async def test_altered_settings_are_stored_and_reach_every_log(room: ChangingRoom) -> None:
    assert await room.alter("t", {"retention.ms": "7d", "segment.bytes": "1MiB"}) is None
    assert await room.alter("t", {"max.message.bytes": "100"}, "retention.ms") is None
    topic = room.topics.get("t")
    assert topic.entry.settings == {"segment.bytes": "1048576", "max.message.bytes": "100"}
    assert room.altered == 2
    for partition in topic.local.values():
        assert partition.config == partition.log.local.config == topic.config
        with pytest.raises(errors.MessageTooLarge):
            append(partition, bytes(200))
    stored, _ = MetadataLog.open(room.data_dir)
    assert stored.state.topics["t"] == topic.entry
    stored.close()


async def test_nothing_is_written_without_a_change(room: ChangingRoom) -> None:
    size_bytes = (room.data_dir / "metadata.log").stat().st_size
    assert await room.alter("t", {}, "retention.ms") is None
    (checked,) = await room.changes.alter([AlteredTopic("t", {"flush.ms": "1"})], validate_only=True)
    (counted,) = await room.changes.add_partitions([NewPartitions("t", 5)], validate_only=True)
    assert (checked, counted, room.altered) == (None, None, 0)
    assert (room.data_dir / "metadata.log").stat().st_size == size_bytes
    assert room.topics.get("t").count == 2
    assert not list(room.data_dir.glob("t-[2-9]"))


async def test_one_topic_that_cannot_be_changed_leaves_the_others_alone(room: ChangingRoom) -> None:
    await room.topics.internal(InternalTopic("__state", 1, {}))
    changes = [AlteredTopic(name, {"flush.ms": "1"}) for name in ("no-such", "t", "__state")]
    unknown, none, internal = await room.changes.alter(changes, validate_only=False)
    assert isinstance(unknown, errors.UnknownTopicOrPartition)
    assert none is None
    assert isinstance(internal, errors.InvalidTopic)
    assert room.topics.get("t").config.flush_ms == 1
    assert room.topics.get("__state").config.flush_ms == 100
    unknown, internal = await room.changes.add_partitions(
        [NewPartitions("no-such", 3), NewPartitions("__state", 3)], validate_only=False
    )
    assert isinstance(unknown, errors.UnknownTopicOrPartition)
    assert isinstance(internal, errors.InvalidTopic)
    with pytest.raises(errors.InvalidRequest, match="more than once"):
        await room.changes.alter([changes[1], changes[1]], validate_only=False)
    with pytest.raises(errors.InvalidRequest, match="more than once"):
        await room.changes.add_partitions([NewPartitions("t", 3), NewPartitions("t", 4)], validate_only=False)


async def test_what_was_acknowledged_under_write_caching_is_on_disk_when_it_is_turned_off(room: ChangingRoom) -> None:
    await room.alter("t", {"write.caching": "true", "flush.ms": "1h"})
    partition = room.topics.partition("t", 0)
    append(partition)
    assert (partition.log.high_watermark, partition.log.recovery_point) == (1, 0)
    assert await room.alter("t", {"write.caching": "false"}) is None
    assert (partition.log.high_watermark, partition.log.recovery_point) == (1, 1)


async def test_a_shorter_time_to_flush_applies_to_what_is_written_already(room: ChangingRoom) -> None:
    await room.alter("t", {"flush.ms": "1h"})
    partition = room.topics.partition("t", 0)
    partition.append(batch_of([b"x"], timestamp_ms=NOW_MS), 1, None, now_ms=NOW_MS)
    assert partition.log.recovery_point == 0
    is_flushed = asyncio.Event()

    class Reader:
        def partition_moved(self, partition: Partition) -> None:
            is_flushed.set()

    partition.add_reader(Reader(), "high_watermark")
    await room.alter("t", {"flush.ms": "0"})
    await asyncio.wait_for(is_flushed.wait(), 25)
    assert partition.log.recovery_point == 1


async def test_added_partitions_are_served_and_their_watchers_told(room: ChangingRoom) -> None:
    led: list[int] = []

    class Watcher:
        def loaded(self, partition: Partition) -> None:
            led.append(partition.key.partition)

        def unloaded(self, partition: Partition) -> None:
            raise AssertionError

    room.topics.watch("t", Watcher())
    old = list(room.topics.get("t").local.values())
    assert await room.alter("t", {"flush.ms": "7"}) is None
    assert await room.add("t", 5) is None
    partitions = list(room.topics.get("t").local.values())
    assert led == [0, 1, 2, 3, 4]
    assert partitions[:2] == old
    assert {partition.config.flush_ms for partition in partitions} == {7}
    append(partitions[4])
    assert partitions[4].log.log_end_offset == 1
    topic = room.topics.get("t")
    assert sorted(room.node.state.assignments[topic.topic_id]) == [0, 1, 2, 3, 4]
    assert room.cluster.state.topics["t"].partitions == topic.entry.partitions == 5
    await room.topics.delete("t")
    assert len(room.remover) == 5


@pytest.mark.parametrize(
    ("total", "text"),
    [
        (1, "topic 't' has 2 partitions, 1 were asked for: the new total must be greater"),
        (2, "topic 't' has 2 partitions, 2 were asked for"),
        (-1, "has 2 partitions, -1 were asked for"),
        (11, "11 partitions, 1 to 10 are allowed"),
        (10, "8 more partitions, 5 exist and max.partitions is 12"),
    ],
)
async def test_a_number_that_is_not_allowed_is_refused(room: ChangingRoom, total: int, text: str) -> None:
    await room.create("u", 3)
    result = await room.add("t", total)
    assert isinstance(result, errors.InvalidPartitions)
    assert text in str(result)
    assert room.cluster.state.topics["t"].partitions == 2


async def test_partitions_of_two_topics_count_together(room: ChangingRoom) -> None:
    await room.create("u", 3)
    results = await room.changes.add_partitions([NewPartitions("t", 8), NewPartitions("u", 5)], validate_only=True)
    assert results[0] is None
    assert "2 more partitions, 11 exist and max.partitions is 12" in str(results[1])


async def test_a_directory_in_the_way_of_a_new_partition_is_not_touched(room: ChangingRoom) -> None:
    (room.data_dir / "t-3").mkdir()
    result = await room.add("t", 4)
    assert isinstance(result, errors.InvalidTopic)
    assert str(room.data_dir / "t-3") in str(result)
    assert not (room.data_dir / "t-2").exists()
    assert room.cluster.state.topics["t"].partitions == 2


@pytest.mark.parametrize("goes_on", [False, True])
async def test_whatever_fails_while_partitions_are_added_no_start_stumbles_over_it(
    tmp_path: Path, goes_on: bool
) -> None:
    """The disk of the new partitions fails at each of its calls; the metadata log is on another one."""
    outcomes = set()
    async for paths, error in each_call_failing(
        tmp_path, ChangingRoom, "t", lambda room: room.add("t", 2), goes_on=goes_on
    ):
        outcomes.add(type(error))
        for _ in range(2):
            failures, _ = started(paths)
            assert len(failures["t"]) in ((2,) if error is None else (1, 2))
            assert set(failures["t"]) == {""}, (paths, failures)
            assert len(holders(paths, "t-1")) == len(failures["t"]) - 1
    assert type(None) in outcomes


async def test_partitions_that_cannot_be_created_are_taken_back(tmp_path: Path) -> None:
    room = ChangingRoom(tmp_path / "data")
    await room.create("t", 1)
    room.fails_to_open = True  # of partition 1
    assert isinstance(await room.add("t", 3), errors.StorageError)
    assert room.cluster.state.topics["t"].partitions == 1
    room.fails_to_open = False
    assert await room.add("t", 3) is None
    await room.close()
    assert started([tmp_path / "data"])[0] == {"t": ["", "", ""]}


@pytest.mark.parametrize("times", [1, 2])
async def test_an_addition_whose_places_cannot_be_written_is_taken_back_or_finished_by_the_next_start(
    tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata log refuses the second commit of the addition, or that one and the one that takes it back."""
    room = ChangingRoom(tmp_path / "a", tmp_path / "b")
    await room.create("t", 1)
    room.refuse_commits(monkeypatch, times)
    assert isinstance(await room.add("t", 3), errors.StorageError)
    again = await room.add("t", 3)
    await room.close()
    assert started([tmp_path / "a", tmp_path / "b"])[0] == {"t": ["", "", ""]}
    assert (again is None) == (times == 1)
    if times == 2:
        assert "the next start finishes it" in str(again)
