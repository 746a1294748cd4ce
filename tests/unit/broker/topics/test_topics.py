"""What may become a topic, and what becomes of topics."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from unit.broker.conftest import NOW_MS, flush
from unit.broker.data_directories import open_directory
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.metadata.log_file import MetadataLog
from warmlog_broker.metadata.metadata_log import ClusterCreated, TopicCreated
from warmlog_broker.metadata.store import LoneClusterStore, NodeStore
from warmlog_broker.replica.partition import Partition
from warmlog_broker.replica.partition_state import PartitionState
from warmlog_broker.replica.served_directories import DataDirectories, ServedDirectory
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.topics.topics import InternalTopic, Topics, check_new_topic, lead_alone
from warmlog_protocol import errors
from warmlog_protocol.messages import NewTopic
from wire_client import batch_of

CONFIG = BrokerConfig(num_partitions=2, max_partitions_per_topic=10, max_partitions=15)


def check(new: NewTopic, existing: Sequence[str] = (), partition_count: int = 0) -> TopicCreated:
    return check_new_topic(new, existing=existing, partition_count=partition_count, config=CONFIG)


def test_a_topic_gets_an_id_of_its_own_and_keeps_its_own_settings_only() -> None:
    first, second = (check(NewTopic("t", -1, -1, {"flush.ms": "5"})) for _ in range(2))
    assert first.topic_id != second.topic_id
    assert (first.name, first.partitions, first.settings, first.leader_epoch) == ("t", 2, {"flush.ms": "5"}, 0)


@pytest.mark.parametrize(
    ("new", "error"),
    [
        (NewTopic("a", 1), errors.TopicAlreadyExists),
        (NewTopic("a.b", 1), errors.InvalidTopic),
        (NewTopic("", 1), errors.InvalidTopic),
        (NewTopic("__n", 1), errors.InvalidTopic),
        (NewTopic("n", 0), errors.InvalidPartitions),
        (NewTopic("n", 11), errors.InvalidPartitions),
        (NewTopic("n", 6), errors.InvalidPartitions),
        (NewTopic("n", 1, 1, {"no.such": "1"}), errors.InvalidConfig),
    ],
)
def test_what_cannot_be_a_topic_is_refused(new: NewTopic, error: type[errors.ApiError]) -> None:
    with pytest.raises(error):
        check(new, existing=["a", "a_b"], partition_count=10)


class Room:
    """Topics on real data directories."""

    def __init__(self, *paths: Path) -> None:
        self.data_dir = paths[0]
        self.metadata_log, _ = MetadataLog.open(_made(self.data_dir))
        self.threads = ThreadPoolExecutor(2)
        self.node = NodeStore(self.metadata_log, self.threads)
        self.cluster = LoneClusterStore(self.node)
        self.cluster.state.cluster = ClusterCreated("test", 1, 0)
        config = BrokerConfig(data_dirs=",".join(map(str, paths)), max_partitions_per_topic=30)
        self.directories = DataDirectories(
            [ServedDirectory(open_directory(path), config, threads=self.threads, trying=self.threads) for path in paths]
        )
        self.remover: list[Path] = []
        self.open_files = OpenFiles(64)
        self.fails_to_open = False
        self.broken: list[Path] = []
        self.leads = True
        self.topics = Topics(
            self.cluster,
            self.node,
            config=config,
            directories=self.directories,
            open_log=self.open_log,
            threads=self.threads,
            on_deleted=lambda paths, delay_ms: self.remover.extend(paths),
            take_role=lambda *added: lead_alone(self.cluster, *added) if self.leads else None,
        )

    def refuse_commits(self, patch: pytest.MonkeyPatch, times: int) -> None:
        """Let the metadata log refuse as many commits from the second one on."""
        write, commits = self.metadata_log.append, count(1)

        def refuse(entries: Any) -> None:
            if 2 <= next(commits) < 2 + times:
                raise errors.StorageError("no room")
            write(entries)

        patch.setattr(self.metadata_log, "append", refuse)

    def open_log(self, directory: DataDirectory, entry: TopicCreated, index: int, config: LogConfig) -> Log:
        if directory.path in self.broken or (self.fails_to_open and index == 1):
            raise errors.StorageError("the disk is full")
        key = TopicPartition(entry.name, index)
        return Log.open(
            directory.partition_path(key),
            key=key,
            topic_id=UUID(bytes=entry.topic_id),
            config=config,
            open_files=self.open_files,
            now_ms=NOW_MS,
        )

    async def close(self) -> None:
        await self.node.close()
        for directory in self.directories:
            await directory.wait_for_probe()
        self.directories.close()
        self.threads.shutdown()

    async def create(self, name: str, partitions: int = 2, **settings: str) -> TopicCreated | errors.ApiError:
        """Settings have underscores for dots."""
        configs = {key.replace("_", "."): value for key, value in settings.items()}
        (result,) = await self.topics.create([NewTopic(name, partitions, configs=configs)], validate_only=False)
        return result


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(tmp_path / "data")
    yield made
    await made.close()


@pytest.fixture
async def three_disks(tmp_path: Path) -> AsyncIterator[Room]:
    made = Room(*(tmp_path / name for name in "abc"))
    yield made
    await made.close()


async def test_a_topic_that_was_created_is_found_and_on_disk(room: Room) -> None:
    entry = await room.create("t")
    assert room.topics.get("t").entry == entry
    assert room.topics.partition("t", 1).key == TopicPartition("t", 1)
    assert room.topics.partition_count == 2
    stored, _ = MetadataLog.open(room.data_dir)
    assert stored.state.topics == {"t": entry}
    stored.close()
    for index in (-1, 2):
        with pytest.raises(errors.UnknownTopicOrPartition):
            room.topics.partition("t", index)


async def test_those_who_create_the_same_topic_at_once_get_it_once(room: Room) -> None:
    results = await asyncio.gather(*(room.create("t") for _ in range(5)))
    assert sum(isinstance(result, TopicCreated) for result in results) == 1
    assert sum(isinstance(result, errors.TopicAlreadyExists) for result in results) == 4


async def test_a_topic_whose_logs_cannot_be_made_is_taken_back(room: Room) -> None:
    room.fails_to_open = True
    assert isinstance(await room.create("t"), errors.StorageError)
    room.fails_to_open = False
    assert room.cluster.state.topics == {}
    assert not list(room.data_dir.glob("t-[0-9]"))
    assert isinstance(await room.create("t"), TopicCreated)


async def test_a_directory_that_is_in_the_way_is_not_touched(room: Room) -> None:
    (room.data_dir / "t-1").mkdir()
    result = await room.create("t")
    assert isinstance(result, errors.InvalidTopic)
    assert "t-1" in str(result)
    assert room.cluster.state.topics == {}


async def test_deleting_renames_the_directories_and_frees_the_name(room: Room) -> None:
    await room.create("t")
    partition = room.topics.partition("t", 0)
    await room.topics.delete("t")
    assert partition.state is PartitionState.DELETED
    assert sorted(path.name[:3] for path in room.remover) == ["t-0", "t-1"]
    assert not list(room.data_dir.glob("t-[0-9]"))
    with pytest.raises(errors.UnknownTopicOrPartition):
        await room.topics.delete("t")
    assert isinstance(await room.create("t"), TopicCreated)


async def test_a_topic_with_an_offline_partition_can_be_deleted(room: Room) -> None:
    await room.create("t")
    room.topics.partition("t", 0).take_offline("the disk is broken")
    await room.topics.delete("t")
    assert not list(room.data_dir.glob("t-[0-9]"))
    assert isinstance(await room.create("t"), TopicCreated)


async def test_checkpoints_of_a_deleted_topic_are_gone_before_its_name_is_used_again(room: Room) -> None:
    await room.create("t", 1)
    partition = room.topics.partition("t", 0)
    partition.append(batch_of([b"x"], timestamp_ms=NOW_MS), -1, None, now_ms=NOW_MS)
    flush(partition)
    await room.directories.checkpoint([partition])
    path = room.data_dir / "recovery-point-offset-checkpoint"
    assert "t 0 1" in path.read_text()
    await room.topics.delete("t")
    await room.create("t", 1)
    assert "t 0 1" not in path.read_text()
    await room.directories.write_checkpoints()
    assert "t 0 0" in path.read_text()


async def test_every_partition_goes_where_the_fewest_are(three_disks: Room) -> None:
    """LM-08."""
    for number in range(20):
        assert isinstance(await three_disks.create(f"t{number}", 1 + number % 3), TopicCreated)
        counts = [len(list(each.path.glob("t*-*"))) for each in three_disks.directories]
        assert counts == [len(each.partitions) for each in three_disks.directories]
        assert max(counts) - min(counts) <= 1
    await three_disks.topics.delete("t2")
    await three_disks.create("again", 3)
    counts = [len(each.partitions) for each in three_disks.directories]
    assert max(counts) - min(counts) <= 1


async def test_a_directory_that_refuses_a_partition_leaves_it_to_the_next(three_disks: Room) -> None:
    """LM-05."""
    directories = list(three_disks.directories)
    three_disks.broken = [directories[0].path, directories[2].path]
    entry = await three_disks.create("t", 4)
    assert isinstance(entry, TopicCreated)
    assert [len(each.partitions) for each in directories] == [0, 4, 0]
    places = three_disks.node.state.assignments[entry.topic_id]
    assert places == dict.fromkeys(range(4), directories[1].data.directory_id.bytes)
    three_disks.broken.append(directories[1].path)
    assert isinstance(await three_disks.create("u"), errors.StorageError)
    assert "u" not in three_disks.cluster.state.topics


async def test_a_directory_that_failed_gets_no_partition_and_takes_its_own_offline(three_disks: Room) -> None:
    await three_disks.create("t", 3)
    first, second, third = three_disks.directories
    second.fail("the disk is broken")
    offline = [partition for partition in three_disks.topics.partitions if partition.state is PartitionState.OFFLINE]
    assert offline == list(second.partitions)
    await three_disks.create("u", 4)
    assert [len(each.partitions) for each in three_disks.directories] == [3, 1, 3]
    assert not three_disks.directories.all_have_failed.is_set()
    first.fail("this one too")
    third.fail("and this one")
    assert three_disks.directories.all_have_failed.is_set()
    assert isinstance(await three_disks.create("v", 1), errors.StorageError)


async def test_names_as_long_as_a_topic_may_have_can_be_created_and_deleted(room: Room) -> None:
    """LM-11."""
    name = "x" * 249
    assert isinstance(await room.create(name), TopicCreated)
    await room.topics.delete(name)
    assert len(room.remover) == 2
    assert all(len(path.name) <= 255 and path.name.endswith("-delete") and path.is_dir() for path in room.remover)


async def test_an_internal_topic_that_cannot_be_created_is_created_by_a_later_use(room: Room) -> None:
    state = InternalTopic("__state", 2, {"flush.ms": "5"})
    room.fails_to_open = True
    with pytest.raises(errors.StorageError, match="the disk is full"):
        await room.topics.internal(state)
    assert room.topics.find("__state") is None
    room.fails_to_open = False
    topic = await room.topics.internal(state)
    assert (topic.is_internal, topic.config.flush_ms) == (True, 5)
    assert await room.topics.internal(state) is topic


async def test_an_internal_topic_with_an_invalid_setting_is_not_created(room: Room) -> None:
    with pytest.raises(errors.InvalidConfig):
        await room.topics.internal(InternalTopic("__state", 2, {"flush.sm": "5"}))
    assert room.topics.find("__state") is None


class Coordinator:
    """Notes what this broker leads."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int, int]] = []

    def loaded(self, partition: Partition) -> None:
        self.heard.append(("loaded", partition.key.partition, partition.leader_epoch))

    def unloaded(self, partition: Partition) -> None:
        self.heard.append(("unloaded", partition.key.partition, partition.leader_epoch))


async def test_a_coordinator_is_told_of_the_partitions_that_this_broker_leads(room: Room) -> None:
    before, after = Coordinator(), Coordinator()
    room.topics.watch("t", before)
    await room.create("u")
    assert before.heard == []
    await room.create("t")
    room.topics.watch("t", after)
    assert before.heard == after.heard == [("loaded", 0, 0), ("loaded", 1, 0)]
    room.topics.partition("t", 1).take_offline("the disk is broken")
    assert after.heard[2:] == [("unloaded", 1, 0)]
    late = Coordinator()
    room.topics.watch("t", late)
    assert late.heard == [("loaded", 0, 0)]
    await room.topics.delete("t")
    assert after.heard[2:] == [("unloaded", 1, 0), ("unloaded", 0, 0)]
    await room.create("t", 1)
    assert after.heard[4:] == [("loaded", 0, 0)]
    assert before.heard == after.heard
    room.topics.partition("t", 0).set_read_only("the disk takes no writes")
    assert after.heard[5:] == [("unloaded", 0, 0)]


async def test_a_coordinator_that_fails_keeps_neither_others_nor_the_topic_from_their_way(room: Room) -> None:
    class Broken(Coordinator):
        def loaded(self, partition: Partition) -> None:
            raise RuntimeError("a bug")

        unloaded = loaded

    sound = Coordinator()
    room.topics.watch("t", Broken())
    room.topics.watch("t", sound)
    assert isinstance(await room.create("t"), TopicCreated)
    await room.topics.delete("t")
    assert sound.heard == [("loaded", 0, 0), ("loaded", 1, 0), ("unloaded", 0, 0), ("unloaded", 1, 0)]
    assert len(room.remover) == 2


async def test_a_partition_that_is_on_other_brokers_is_not_an_unknown_one(room: Room) -> None:
    entry = TopicCreated("t", bytes([7]) * 16, 3, {})
    await room.cluster.commit([entry])
    await room.topics.assigned(entry, [1])
    topic = room.topics.get("t")
    assert (topic.count, list(topic.local), room.topics.partition_count) == (3, [1], 1)
    assert room.topics.partition("t", 1) is topic.partition(1)
    for number in (0, 2):
        with pytest.raises(errors.NotLeaderOrFollower, match=f"t-{number} is not on this broker"):
            room.topics.partition("t", number)
    with pytest.raises(errors.UnknownTopicOrPartition, match="no partition 3, it has 3"):
        room.topics.partition("t", 3)
    await room.topics.assigned(entry, [2])
    assert list(room.topics.get("t").local) == [1, 2]
    await room.topics.delete("t")
    assert room.topics.partitions == []


async def test_a_topic_is_served_before_its_partitions_have_a_role_and_watchers_hear_of_each_that_is_led(
    room: Room,
) -> None:
    told: list[tuple[str, int]] = []

    class Watcher:
        def loaded(self, partition: Partition) -> None:
            told.append(("loaded", partition.key.partition))

        def unloaded(self, partition: Partition) -> None:
            told.append(("unloaded", partition.key.partition))

    room.leads = False
    room.topics.watch("t", Watcher())
    assert isinstance(await room.create("t"), TopicCreated)
    partition = room.topics.partition("t", 1)
    with pytest.raises(errors.NotLeaderOrFollower):
        partition.append(batch_of([b"x"]), -1, lambda _: None, now_ms=NOW_MS)
    assert told == []
    partition.become_leader(4)
    late = len(told)
    room.topics.watch("t", Watcher())
    partition.become_follower(5, lambda: 0)
    await room.topics.delete("t")
    assert (told[:late], told[late:]) == ([("loaded", 1)], [("loaded", 1), ("unloaded", 1), ("unloaded", 1)])


async def test_a_topic_that_another_broker_has_just_created_is_not_unknown(room: Room) -> None:
    entry = TopicCreated("new", bytes(16), 1, {})
    room.cluster.state.topics["new"] = entry
    with pytest.raises(errors.UnknownTopicOrPartition):
        room.topics.get("new")
    room.cluster.is_alone = False
    with pytest.raises(errors.NotLeaderOrFollower, match="just created"):
        room.topics.partition("new", 0)
    with pytest.raises(errors.NotLeaderOrFollower):
        room.topics.identified("new", bytes(16))
    with pytest.raises(errors.UnknownTopicOrPartition):
        room.topics.get("never")
