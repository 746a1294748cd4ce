"""What a start makes of the directories of a deleted topic, whatever has become of them: it never ends there."""

import errno
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from unit.broker.data_dirs.test_loader import TOPIC, Opened, append, write_entries
from warmlog_broker.data_dirs import deletion
from warmlog_broker.metadata.metadata_log import TopicCreated, TopicDeleted
from warmlog_broker.storage.directory.partition_files import pack_partition_metadata, read_partition_metadata
from warmlog_broker.storage.directory.topic_partition import TopicPartition, marked_directory_name
from warmlog_protocol.errors import StorageError

TOPIC_ID = UUID(bytes=TOPIC.topic_id)
DELETED = TopicDeleted(TOPIC.topic_id, "t", 2)
CONTENT = pack_partition_metadata(TOPIC_ID)
OTHER = pack_partition_metadata(UUID(int=4711))
METADATA = "partition.metadata"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A broker was killed after it had deleted the topic: t-0 holds a record, t-1 holds none."""
    path = tmp_path / "data"
    write_entries(path, TOPIC)
    with Opened(path) as opened:
        append(opened.logs[0])
    write_entries(path, DELETED)
    return path


def content(data: bytes) -> Callable[[Path], object]:
    return lambda path: (path / METADATA).write_bytes(data)


def remove(path: Path) -> None:
    (path / METADATA).unlink()


def make_unreadable(path: Path) -> None:
    """ELOOP, which is refused to root as well."""
    remove(path)
    (path / METADATA).symlink_to(METADATA)


def outcome(data_dir: Path, name: str) -> str:
    found = [path.name for path in data_dir.iterdir() if path.name.split(".")[0] == name]
    assert len(found) == 1
    return "renamed" if found[0].endswith("-delete") else "stays"


@pytest.mark.parametrize(
    ("damage", "with_a_record", "without", "is_finished"),
    [
        pytest.param(content(CONTENT), "renamed", "renamed", True, id="intact"),
        pytest.param(content(CONTENT.replace(b"\n", b"\r\n")), "renamed", "renamed", True, id="of Kafka on Windows"),
        pytest.param(content(OTHER), "stays", "stays", True, id="another topic's"),
        pytest.param(remove, "stays", "renamed", True, id="missing"),
        pytest.param(content(b""), "stays", "renamed", True, id="empty"),
        pytest.param(content(CONTENT[:-1]), "stays", "renamed", True, id="cut"),
        pytest.param(content(CONTENT.replace(b"version", b"wersion")), "stays", "renamed", True, id="bit in line 1"),
        pytest.param(content(CONTENT.replace(b"topic", b"topib")), "stays", "renamed", True, id="bit in line 2"),
        pytest.param(content(b"\0" * len(CONTENT)), "stays", "renamed", True, id="zeros"),
        pytest.param(content(b"\xff" * 4096), "stays", "renamed", True, id="no text"),
        pytest.param(make_unreadable, "stays", "stays", False, id="unreadable"),
    ],
)
def test_only_what_is_certainly_the_deleted_topics_or_holds_nothing_is_renamed(
    data_dir: Path, damage: Callable[[Path], object], with_a_record: str, without: str, is_finished: bool
) -> None:
    for name in ("t-0", "t-1"):
        damage(data_dir / name)
    record = (data_dir / "t-0" / f"{0:020d}.log").read_bytes()
    with Opened(data_dir) as opened:
        assert opened.logs == []
        assert (outcome(data_dir, "t-0"), outcome(data_dir, "t-1")) == (with_a_record, without)
        assert (opened.metadata_log.state.deleted == {}) == is_finished
    if with_a_record == "stays":
        assert (data_dir / "t-0" / f"{0:020d}.log").read_bytes() == record


def test_a_flipped_bit_at_any_place_stops_no_start(data_dir: Path, tmp_path: Path) -> None:
    for position in range(len(CONTENT)):
        copy = tmp_path / f"copy-{position}"
        shutil.copytree(data_dir, copy)
        flipped = bytearray(CONTENT)
        flipped[position] ^= 1 << position % 8
        (copy / "t-0" / METADATA).write_bytes(flipped)
        try:
            is_ours = read_partition_metadata(copy / "t-0" / METADATA) == TOPIC_ID
        except StorageError:
            is_ours = False
        with Opened(copy):
            assert outcome(copy, "t-0") == ("renamed" if is_ours else "stays")
            assert outcome(copy, "t-1") == "renamed"


def test_what_is_left_because_nobody_knows_whose_it_is_is_named_in_the_log(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (data_dir / "t-0" / METADATA).write_bytes(b"")
    with Opened(data_dir):
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(str(data_dir / "t-0") in line and "left alone" in line and METADATA in line for line in said)


def test_what_could_not_be_read_is_renamed_by_the_next_start(data_dir: Path) -> None:
    make_unreadable(data_dir / "t-0")
    with Opened(data_dir):
        assert (outcome(data_dir, "t-0"), outcome(data_dir, "t-1")) == ("stays", "renamed")
    remove(data_dir / "t-0")
    (data_dir / "t-0" / METADATA).write_bytes(CONTENT)
    with Opened(data_dir) as opened:
        assert outcome(data_dir, "t-0") == "renamed"
        assert opened.metadata_log.state.deleted == {}


@pytest.mark.parametrize("call", ["rename", "listdir", "scandir"])
def test_a_disk_that_refuses_stops_no_start_and_the_next_one_goes_on(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    remove(data_dir / "t-1")  # so that it must be listed what it holds
    honest = getattr(os, call)

    def refuse(path: os.PathLike[str] | str, *more: object) -> object:
        if Path(path).name in ("t-0", "t-1"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), os.fspath(path))
        return honest(path, *more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with Opened(data_dir) as opened:
            is_finished = opened.metadata_log.state.deleted == {}
            assert is_finished == (outcome(data_dir, "t-1") == "renamed")
    with Opened(data_dir) as opened:
        assert (outcome(data_dir, "t-0"), outcome(data_dir, "t-1")) == ("renamed", "renamed")
        assert opened.metadata_log.state.deleted == {}


def test_an_empty_directory_that_does_not_say_whose_it_is_stays_with_the_topic_that_has_the_name_now(
    data_dir: Path,
) -> None:
    again = TopicCreated("t", bytes(14) + b"\x02\x02", 2, {})
    for name in ("t-0", "t-1"):
        shutil.rmtree(data_dir / name)
    write_entries(data_dir, again)
    with Opened(data_dir) as opened:
        assert all(log is not None for log in opened.logs)
    write_entries(data_dir, TopicDeleted(TOPIC.topic_id, "t", 2))
    remove(data_dir / "t-0")
    content(b"damaged")(data_dir / "t-1")
    with Opened(data_dir) as opened:
        assert [log.topic_id.bytes if log and log.topic_id else b"" for log in opened.logs] == [again.topic_id] * 2


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        pytest.param(content(CONTENT), "renamed", id="intact"),
        pytest.param(content(OTHER), "stays", id="another topic's"),
        pytest.param(content(b"damaged"), "stays", id="damaged"),
        pytest.param(remove, "stays", id="missing"),
        pytest.param(make_unreadable, "stays", id="unreadable"),
    ],
)
def test_a_copy_goes_only_if_it_says_that_it_is_the_deleted_topics(
    data_dir: Path, damage: Callable[[Path], object], expected: str
) -> None:
    copy = data_dir / marked_directory_name(TopicPartition("t", 0), "future")
    shutil.copytree(data_dir / "t-0", copy)
    damage(copy)
    with Opened(data_dir):
        assert copy.exists() == (expected == "stays")
        assert outcome(data_dir, "t-1") == "renamed"


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_data_directory_is_synced_once_for_all_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    synced = []

    def sync(path: Path) -> None:
        synced.append(path)
        if is_refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    data_dirs = [tmp_path / "one", tmp_path / "other", tmp_path / "empty"]
    for number, name in enumerate(["one", "one", "one", "other", "other"]):
        path = tmp_path / name / f"t-{number}"
        path.mkdir(parents=True)
        (path / METADATA).write_bytes(CONTENT)
    data_dirs[2].mkdir()
    monkeypatch.setattr(deletion, "sync_directory", sync)
    renamed = deletion.rename_deleted(data_dirs, TopicDeleted(TOPIC.topic_id, "t", 5))
    assert synced == data_dirs[:2]
    assert len(renamed.paths) == 5
    assert renamed.is_finished == (not is_refused)
