"""Where a start finds partitions, whatever a crash has left of moving one."""

import logging
from collections.abc import Iterator
from errno import EIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from unit.broker.data_directories import open_directory
from warmlog_broker.data_dirs import assignment as placement
from warmlog_broker.data_dirs.assignment import Assigned, Assignments, Lost, find_assignments
from warmlog_broker.data_dirs.directory_set import DirectorySet, OfflineDirectory
from warmlog_broker.metadata.metadata_log import (
    DirectoryKnown,
    MetadataState,
    PartitionMoved,
    PartitionsAssigned,
    TopicCreated,
)
from warmlog_broker.storage.directory.data_dir import DataDirectory
from warmlog_broker.storage.directory.partition_files import pack_partition_metadata
from warmlog_broker.storage.directory.topic_partition import (
    TopicPartition,
    marked_directory_name,
)
from wire_client import batch_of

TOPIC = TopicCreated("t", UUID(int=7).bytes, 1, {})
KEY = TopicPartition("t", 0)


class Room:
    """Two data directories, and what the metadata log says of them."""

    def __init__(self, root: Path) -> None:
        self.one, self.two = (open_directory(root / name) for name in ("one", "two"))
        self.directories = DirectorySet([self.one, self.two], [])
        self.state = MetadataState()
        self.state.apply(TOPIC)
        self.here = [0]
        self.cluster: Any = SimpleNamespace(state=self.state, here=lambda topic: self.here)
        for directory in self.directories.live:
            self.state.apply(DirectoryKnown(directory.directory_id.bytes, str(directory.path)))

    def assign(self, directory: DataDirectory) -> None:
        self.state.apply(PartitionsAssigned(TOPIC.topic_id, directory.directory_id.bytes, [0]))

    def moved(self) -> None:
        """From the first to the second."""
        ids = self.one.directory_id.bytes, self.two.directory_id.bytes
        self.state.apply(PartitionMoved(TOPIC.topic_id, 0, *ids))

    def make(self, directory: DataDirectory, name: str = "t-0") -> Path:
        path = directory.path / name
        path.mkdir()
        (path / "partition.metadata").write_bytes(pack_partition_metadata(UUID(int=7)))
        return path

    def make_copy(self) -> Path:
        return self.make(self.two, marked_directory_name(KEY, "future"))

    def find(self) -> Assignments:
        assignments = find_assignments(self.directories, self.cluster, self.state)
        for entry in assignments.changes:
            self.state.apply(entry)
        return assignments

    def path(self, assignments: Assignments) -> Path:
        assigned = assignments.by_key[KEY]
        assert isinstance(assigned, Assigned), assigned
        return assigned.directory.partition_path(KEY)

    def reason(self, assignments: Assignments) -> str:
        assigned = assignments.by_key[KEY]
        assert isinstance(assigned, Lost), assigned
        return assigned.reason

    @property
    def current(self) -> list[str]:
        """The directories in which there is a partition of that name."""
        return [each.path.name for each in self.directories.live if (each.path / "t-0").exists()]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    made.directories.close()


def test_a_copy_that_was_not_decided_upon_is_a_copy(room: Room) -> None:
    room.assign(room.one)
    room.make(room.one)
    copy = room.make_copy()
    assignments = room.find()
    assert room.path(assignments) == room.one.path / "t-0"
    assert assignments.futures == [(KEY, room.two, copy)]


@pytest.mark.parametrize("has_old", [True, False])
@pytest.mark.parametrize("is_named", [True, False])
def test_a_move_that_was_decided_upon_is_finished_whatever_was_done_of_it(
    room: Room, has_old: bool, is_named: bool
) -> None:
    room.moved()
    if has_old:
        room.make(room.one)
    else:
        room.make(room.one, marked_directory_name(KEY, "delete"))
    copy = room.make(room.two) if is_named else room.make_copy()
    (copy / "content").touch()
    for _ in range(2):
        assignments = room.find()
        assert room.path(assignments) == room.two.path / "t-0"
        assert (room.two.path / "t-0" / "content").exists()
        assert room.current == ["two"]
        assert assignments.futures == []
        assert room.state.leaving == {}
        assert len(room.one.deleted_partitions()) == 1


def test_what_was_left_in_a_directory_that_was_away_goes_when_it_is_back(room: Room, tmp_path: Path) -> None:
    room.moved()
    room.make(room.one)
    room.make_copy()
    room.directories = DirectorySet([room.two], [OfflineDirectory(room.one.path, room.one.directory_id, "away")])
    assert room.path(room.find()) == room.two.path / "t-0"
    assert room.state.leaving
    room.directories = DirectorySet([room.one, room.two], [])
    assert room.path(room.find()) == room.two.path / "t-0"
    assert room.current == ["two"]
    assert not room.state.leaving


def test_while_the_directory_is_away_an_older_one_is_not_served_in_its_place(room: Room) -> None:
    room.moved()
    room.make(room.one)
    room.directories = DirectorySet([room.one], [OfflineDirectory(room.two.path, room.two.directory_id, "not mounted")])
    assert "is not the latest, that one is away: not mounted" in room.reason(room.find())
    assert room.current == ["one"]
    room.directories = DirectorySet([room.one], [])
    assert f"last seen at {room.two.path}, is not in data.dirs" in room.reason(room.find())


def test_one_that_nobody_had_noted_is_taken_where_it_lies(room: Room) -> None:
    room.make(room.two)
    assignments = room.find()
    assert room.path(assignments) == room.two.path / "t-0"
    assert assignments.is_unrecorded(KEY)
    room.assign(room.two)
    assert not room.find().is_unrecorded(KEY)
    room.assign(room.one)
    assert room.find().is_unrecorded(KEY)


def test_one_that_was_never_made_is_made_where_the_fewest_are(room: Room) -> None:
    room.make(room.one, "other-0")
    assert room.path(room.find()) == room.two.path / "t-0"


def test_one_that_was_made_and_is_gone_is_lost(room: Room) -> None:
    room.assign(room.one)
    assert f"{room.one.path / 't-0'} is missing, although it was created" in room.reason(room.find())


@pytest.mark.parametrize("content", [b"damaged", None])
def test_a_copy_that_does_not_say_whose_it_is_goes_by_its_name(room: Room, content: bytes | None) -> None:
    room.make(room.one)
    copy = room.make_copy()
    (copy / "partition.metadata").unlink()
    if content is not None:
        (copy / "partition.metadata").write_bytes(content)
    assert room.find().futures == [(KEY, room.two, copy)]


def test_copies_go_by_the_topics_id_and_strangers_are_left_alone(room: Room, caplog: pytest.LogCaptureFixture) -> None:
    long = TopicCreated("x" * 249, UUID(int=8).bytes, 1, {})
    key = TopicPartition(long.name, 0)
    room.state.apply(long)
    room.assign(room.one)
    room.make(room.one)
    room.make(room.one, key.directory_name)
    copy = room.make(room.two, marked_directory_name(key, "future"))
    (copy / "partition.metadata").write_bytes(pack_partition_metadata(UUID(int=8)))
    stranger = room.make(room.two, marked_directory_name(TopicPartition("u", 0), "future"))
    (stranger / "partition.metadata").write_bytes(pack_partition_metadata(UUID(int=9)))
    with caplog.at_level(logging.WARNING):
        assert room.find().futures == [(key, room.two, copy)]
    assert f"{stranger} is the copy of no partition" in caplog.text
    assert stranger.exists()


EMPTY_LOG = "00000000000000000000.log"


def begun(room: Room, directory: DataDirectory) -> Path:
    """As a creation leaves it that failed late."""
    path = room.make(directory)
    (path / EMPTY_LOG).touch()
    return path


@pytest.mark.parametrize("has_id", [True, False])
@pytest.mark.parametrize("has_records", [True, False])
def test_what_a_creation_left_behind_goes_and_the_partition_stays(room: Room, has_id: bool, has_records: bool) -> None:
    room.assign(room.two)
    leftover = begun(room, room.one)
    if not has_id:
        (leftover / "partition.metadata").unlink()
    right = begun(room, room.two)
    if has_records:
        (right / EMPTY_LOG).write_bytes(batch_of([b"x"]))
    assignments = room.find()
    assert room.path(assignments) == right
    assert room.current == ["two"]
    assert len(room.one.deleted_partitions()) == 1


@pytest.mark.parametrize("has_records", [True, False])
def test_before_it_was_decided_where_a_partition_lies_the_one_with_records_is_it_or_any(
    room: Room, has_records: bool
) -> None:
    begun(room, room.one)
    right = begun(room, room.two)
    if has_records:
        (right / EMPTY_LOG).write_bytes(batch_of([b"x"]))
    assignments = room.find()
    assert room.path(assignments) == (right if has_records else room.one.path / "t-0")
    assert len(room.current) == 1
    assert assignments.is_unrecorded(KEY)


@pytest.mark.parametrize("what", ["records", "preallocated", "later offsets", "kept aside", "another topic's"])
def test_a_second_directory_stays_unless_it_certainly_holds_nothing(room: Room, what: str) -> None:
    room.assign(room.two)
    begun(room, room.two)
    other = begun(room, room.one)
    match what:
        case "records":
            (other / EMPTY_LOG).write_bytes(batch_of([b"x"]))
        case "preallocated":
            (other / EMPTY_LOG).write_bytes(bytes(1000))
        case "later offsets":
            (other / EMPTY_LOG).rename(other / "00000000000000000007.log")
        case "kept aside":
            (other / (EMPTY_LOG + ".cut")).write_bytes(b"x")
        case _:
            (other / "partition.metadata").write_bytes(pack_partition_metadata(UUID(int=8)))
    assignments = room.find()
    if what == "preallocated":
        assert room.path(assignments) == room.two.path / "t-0"
        return
    reason = room.reason(assignments)
    assert f"{room.one.path / 't-0'} and {room.two.path / 't-0'}" in reason
    assert f"the metadata log says {room.two.path}. Move all but the right one out" in reason
    assert room.current == ["one", "two"]


def test_an_empty_directory_does_not_take_the_place_of_one_with_records_that_was_not_decided_on(room: Room) -> None:
    room.assign(room.one)
    begun(room, room.one)
    (begun(room, room.two) / EMPTY_LOG).write_bytes(batch_of([b"x"]))
    assert "more than once" in room.reason(room.find())


def test_a_leftover_that_cannot_be_removed_does_not_keep_the_partition_offline(
    room: Room, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room.assign(room.two)
    begun(room, room.one)
    begun(room, room.two)

    def refuse(path: Path, key: TopicPartition) -> Path:
        raise OSError(EIO, "Input/output error")

    monkeypatch.setattr(placement, "rename_to_deleted", refuse)
    assert room.path(room.find()) == room.two.path / "t-0"
    assert "cannot be removed, and is left alone" in caplog.text


def test_a_partition_that_is_on_other_brokers_is_neither_created_nor_lost(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.here = []
    assert room.find().by_key == {}
    assert not room.one.partition_path(KEY).exists()
