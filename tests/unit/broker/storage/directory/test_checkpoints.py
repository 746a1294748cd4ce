"""Checkpoint files: Kafka's bytes, replaced as a whole, and refused in words when they are damaged."""

import re
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from kafka_sample import SAMPLE
from present import present
from warmlog_broker.storage.directory.leader_epochs import pack_epochs, read_epochs
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets, write_offsets
from warmlog_broker.storage.directory.partition_files import (
    pack_partition_metadata,
    read_partition_metadata,
    stored_topic_id,
)
from warmlog_broker.storage.directory.topic_partition import (
    TopicPartition,
    marked_directory_name,
    parse_directory_name,
)
from warmlog_broker.storage.io.durable_files import replace_file
from warmlog_protocol.errors import StorageError

FOO, BAR = TopicPartition("foo", 1), TopicPartition("bar", 2)


def test_offsets_are_written_as_kafka_writes_them_and_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    write_offsets(path, {FOO: 5, BAR: 10})
    assert path.read_bytes() == b"0\n2\nfoo 1 5\nbar 2 10\n"
    assert read_offsets(path) == {FOO: 5, BAR: 10}
    write_offsets(path, {FOO: 6})
    assert read_offsets(path) == {FOO: 6}
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("count", [0, 1, 10, 1000])
def test_offsets_of_any_number_come_back(tmp_path: Path, count: int) -> None:
    offsets = {TopicPartition(f"topic-{n}", n): n * 10**15 for n in range(count)}
    write_offsets(tmp_path / "c", offsets)
    assert read_offsets(tmp_path / "c") == offsets


def test_no_file_and_an_empty_one_hold_no_offsets(tmp_path: Path) -> None:
    assert read_offsets(tmp_path / "c") == {}
    (tmp_path / "c").touch()
    assert read_offsets(tmp_path / "c") == {}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"1\n0\n", "line 1: expected version 0, found '1'"),
        (b"0\n", "line 2: expected 0"),
        (b"0\n2\nfoo 1 5\n", "line 2: expected 1, the number of lines, found '2'"),
        (b"0\nx\n", "line 2"),
        (b"0\n1\nfoo 1\n", "line 3: expected topic, partition and offset, found 'foo 1'"),
        (b"0\n1\nfoo one 5\n", "line 3"),
        (b"0\n1\nfoo 1 5 6\n", "line 3"),
        (b"0\n2\nfoo 1 5\nfoo -1 5\n", "line 4"),
        (b"0\n1\nfoo 1 -5\n", "line 3"),
        (b"\xff\xfe\0", "not UTF-8"),
    ],
)
def test_a_damaged_file_is_refused_naming_file_line_and_what_was_expected(
    tmp_path: Path, content: bytes, what: str
) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(content)
    with pytest.raises(StorageError) as refused:
        read_offsets(path)
    assert str(path) in str(refused.value)
    assert what in str(refused.value)


def test_epochs_have_the_same_head_and_must_rise(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    epochs = [(0, 1), (1, 2), (2, 3)]
    replace_file(path, pack_epochs(epochs))
    assert path.read_bytes() == b"0\n3\n0 1\n1 2\n2 3\n"
    assert read_epochs(path) == epochs
    for content in (
        b"0\n2\n1 5\n1 6\n",
        b"0\n2\n1 5\n2 5\n",
        b"0\n1\n1\n",
        b"0\n1\n-1 5\n",
        b"0\n1\na b\n",
        b"0\n1\n2147483647 5\n",
    ):
        path.write_bytes(content)
        with pytest.raises(StorageError, match="leader-epoch-checkpoint, line"):
            read_epochs(path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_epochs(path)


def test_kafkas_own_files_are_read() -> None:
    assert read_epochs(SAMPLE / "flights-0" / "leader-epoch-checkpoint") == [(0, 0)]
    path = SAMPLE / "flights-0" / "partition.metadata"
    assert pack_partition_metadata(read_partition_metadata(path)) == path.read_bytes()


def test_a_topic_id_comes_back(tmp_path: Path) -> None:
    for topic_id in (uuid4(), UUID(int=0), UUID(int=2**128 - 1)):
        (tmp_path / "partition.metadata").write_bytes(pack_partition_metadata(topic_id))
        assert read_partition_metadata(tmp_path / "partition.metadata") == topic_id


@pytest.mark.parametrize(
    "content", [b"", b"version: 1\ntopic_id: x", b"version: 0\ntopic_id: !!", b"version: 0\ntopic_id: abcd"]
)
def test_damaged_partition_metadata_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "partition.metadata"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"partition.metadata"):
        read_partition_metadata(path)
    assert stored_topic_id(path) is None


def test_a_stored_topic_id_is_none_without_a_file_and_a_disk_that_does_not_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "partition.metadata"
    assert stored_topic_id(path) is None
    path.write_bytes(pack_partition_metadata(UUID(int=7)))
    assert stored_topic_id(path) == UUID(int=7)
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match=r"partition.metadata"):
        stored_topic_id(path)


HEX = "0123456789abcdef0123456789abcdef"


def test_the_last_dash_parts_topic_and_number() -> None:
    name = present(parse_directory_name("test_topic-a-143"))
    assert (name.topic_partition, name.mark) == (TopicPartition("test_topic-a", 143), "")


@pytest.mark.parametrize("mark", ["delete", "future", "stray"])
def test_a_marked_directory_is_recognised(mark: str) -> None:
    name = present(parse_directory_name(f"foo.bar-testtopic-42.{HEX}-{mark}"))
    assert (name.topic_partition, name.mark) == (TopicPartition("foo.bar-testtopic", 42), mark)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "topic",
        "-5",
        "topic-",
        "topic-1999a",
        "topic-x",
        "topic-1-delete",
        f"topic.{HEX}-delete",
        "topic-٣",
        "lost+found",
    ],
)
def test_other_names_are_not_partitions(name: str) -> None:
    assert parse_directory_name(name) is None


def test_a_deleted_partition_gets_a_name_of_its_own_that_says_what_it_was() -> None:
    partition = TopicPartition("foo", 3)
    first, second = marked_directory_name(partition, "delete"), marked_directory_name(partition, "delete")
    assert first != second
    assert re.fullmatch(r"foo-3\.[0-9a-f]{32}-delete", first)
    parsed = present(parse_directory_name(first))
    assert parsed == (partition, "delete")


def test_a_long_topic_is_cut_so_that_the_name_fits_a_file_system() -> None:
    name = marked_directory_name(TopicPartition("n" + "o" * 248, 5), "delete")
    assert len(name) == 255
    assert re.fullmatch("no{212}" + r"-5\.[0-9a-f]{32}-delete", name)
