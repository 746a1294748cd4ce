"""Names of partition directories."""

import re
from uuid import UUID

import pytest

from warmlog_broker.storage.directory.topic_partition import (
    TopicPartition,
    deleted_directory_name,
    parse_directory_name,
)

HEX = "0123456789abcdef0123456789abcdef"


def test_the_last_dash_parts_topic_and_number() -> None:
    name = parse_directory_name("test_topic-a-143")
    assert name is not None
    assert (name.topic_partition, name.mark) == (TopicPartition("test_topic-a", 143), "")


@pytest.mark.parametrize("mark", ["delete", "future", "stray"])
def test_a_marked_directory_is_recognised(mark: str) -> None:
    name = parse_directory_name(f"foo.bar-testtopic-42.{HEX}-{mark}")
    assert name is not None
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
    first, second = deleted_directory_name(partition), deleted_directory_name(partition)
    assert first != second
    assert re.fullmatch(r"foo-3\.[0-9a-f]{32}-delete", first)
    parsed = parse_directory_name(first)
    assert parsed is not None
    assert parsed == (partition, "delete")


def test_a_long_topic_is_cut_so_that_the_name_fits_a_file_system() -> None:
    name = deleted_directory_name(TopicPartition("n" + "o" * 248, 5), UUID(HEX))
    assert len(name) == 255
    assert name == "n" + "o" * 212 + f"-5.{HEX}-delete"
