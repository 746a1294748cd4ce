"""Backing up one partition's directory while its files are replaced, removed and added."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from warmlog_broker.storage.segment.segment_files import segment_file_name
from warmlog_broker.tools.backup.manifest import MANIFEST_NAME, VERSION, BackupError, Identity, Manifest
from warmlog_broker.tools.backup.partition import ATTEMPTS, back_up_partition
from warmlog_broker.tools.backup.storing import BackupFiles

NAME = "data-0/flights-0"


def log(directory: Path, base_offset: int, suffix: str = "") -> Path:
    return directory / segment_file_name(base_offset, ".log", suffix)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Segments at 0, 10 and 20, each with an offset index; the last one's is preallocated."""
    directory = tmp_path / "flights-0"
    directory.mkdir()
    for base_offset in (0, 10, 20):
        log(directory, base_offset).write_bytes(b"old %d" % base_offset)
        index = log(directory, base_offset).with_suffix(".index")
        index.write_bytes(bytes(range(1, 9)) + (b"\0" * 800 if base_offset == 20 else b""))
    return directory


class Interrupted(BackupFiles):
    """Does something once, before the segment at `base_offset` is taken."""

    def __init__(self, root: Path, base_offset: int, action: Callable[[], object]) -> None:
        root.mkdir()
        super().__init__(root, None, lambda _name, _count: None)
        self._name = log(Path(NAME), base_offset).as_posix()
        self._actions = [action]

    def take_final(self, source: Path, name: str, listed: Identity) -> None:
        self._interrupt(name)
        super().take_final(source, name, listed)

    def take_growing(self, source: Path, name: str) -> None:
        self._interrupt(name)
        super().take_growing(source, name)

    def _interrupt(self, name: str) -> None:
        if name == self._name and self._actions:
            self._actions.pop()()


def backed_up(files: BackupFiles) -> dict[str, bytes]:
    """The names and contents of the log files in a backup."""
    return {path.name: path.read_bytes() for path in sorted((files.root / NAME).glob("*.log"))}


def test_a_compaction_meanwhile_leaves_the_new_segments_only(source: Path, tmp_path: Path) -> None:
    def compact() -> None:
        for base_offset in (0, 10):
            log(source, base_offset).rename(log(source, base_offset, ".deleted"))
            log(source, base_offset).with_suffix(".index").unlink()
        log(source, 0, ".new").write_bytes(b"compacted")
        log(source, 0, ".new").rename(log(source, 0))

    files = Interrupted(tmp_path / "backup", 10, compact)
    assert back_up_partition(source, NAME, 20, files, pause=lambda: None) == 0
    assert backed_up(files) == {log(source, 0).name: b"compacted", log(source, 20).name: b"old 20"}
    assert sorted(files.entries) == sorted(f"{NAME}/{path.name}" for path in (files.root / NAME).iterdir())
    assert log(source, 0, ".deleted").read_bytes() == b"old 0"


@pytest.mark.parametrize("recovery_point", [0, 10, 20])
def test_a_segment_that_was_replaced_by_one_of_the_same_size_is_listed_again(
    source: Path, tmp_path: Path, recovery_point: int
) -> None:
    def compact() -> None:
        for base_offset in (0, 10):
            log(source, base_offset, ".new").write_bytes(b"new %d" % base_offset)
            log(source, base_offset, ".new").rename(log(source, base_offset))

    files = Interrupted(tmp_path / "backup", 10, compact)
    back_up_partition(source, NAME, recovery_point, files, pause=lambda: None)
    assert list(backed_up(files).values()) == [b"new 0", b"new 10", b"old 20"]


def test_retention_meanwhile_keeps_segments_that_were_taken_and_the_rest_that_is_there(
    source: Path, tmp_path: Path
) -> None:
    def retain() -> None:
        for base_offset in (0, 10):
            log(source, base_offset).unlink()

    files = Interrupted(tmp_path / "backup", 10, retain)
    assert back_up_partition(source, NAME, 20, files, pause=lambda: None) == 20
    assert backed_up(files) == {log(source, 20).name: b"old 20"}


def test_segments_that_are_being_exchanged_are_waited_for(source: Path, tmp_path: Path) -> None:
    swap = log(source, 0, ".swap")
    swap.write_bytes(b"compacted")
    files = Interrupted(tmp_path / "backup", 0, lambda: None)
    assert back_up_partition(source, NAME, 20, files, pause=lambda: swap.unlink(missing_ok=True) or None) == 0
    assert backed_up(files)[log(source, 0).name] == b"old 0"
    swap.write_bytes(b"compacted")
    pauses: list[None] = []
    with pytest.raises(BackupError, match="start the broker, which finishes it"):
        back_up_partition(source, NAME, 20, files, pause=lambda: pauses.append(None))
    assert len(pauses) == ATTEMPTS


def test_only_settled_segments_are_linked_and_reserved_parts_of_indexes_left_out(source: Path, tmp_path: Path) -> None:
    files = Interrupted(tmp_path / "backup", 0, lambda: None)
    back_up_partition(source, NAME, 15, files, pause=lambda: None)
    linked = {
        base_offset: log(source, base_offset).samefile(log(files.root / NAME, base_offset))
        for base_offset in (0, 10, 20)
    }
    assert linked == {0: True, 10: False, 20: False}
    index = log(files.root / NAME, 20).with_suffix(".index")
    assert index.read_bytes() == bytes(range(1, 9))


def test_a_snapshot_after_the_last_segment_is_left_out(source: Path, tmp_path: Path) -> None:
    for offset in (20, 30):
        (source / segment_file_name(offset, ".snapshot")).write_bytes(b"producers")
    files = Interrupted(tmp_path / "backup", 0, lambda: None)
    back_up_partition(source, NAME, 20, files, pause=lambda: None)
    assert [path.name for path in (files.root / NAME).glob("*.snapshot")] == [segment_file_name(20, ".snapshot")]


def test_a_partition_that_is_taken_again_is_copied_only_where_it_has_changed(source: Path, tmp_path: Path) -> None:
    files = Interrupted(tmp_path / "backup", 0, lambda: None)
    for _ in range(2):
        back_up_partition(source, NAME, 10, files, pause=lambda: None)
        assert files.copied_bytes == len(b"old 10") + len(b"old 20")
    with log(source, 20).open("ab") as file:
        file.write(b" and more")
    back_up_partition(source, NAME, 10, files, pause=lambda: None)
    assert files.copied_bytes == len(b"old 10") + len(b"old 20") + len(b"old 20 and more")
    assert backed_up(files)[log(source, 20).name] == b"old 20 and more"


def no_links(*_: object) -> NoReturn:
    raise PermissionError("the file system has no hard links, or the other file is on another one")


@pytest.mark.parametrize("damage", ["missing", "cut off", "no links"])
def test_a_file_that_cannot_be_linked_to_the_backup_before_is_copied(
    damage: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", no_links)
        first = Interrupted(tmp_path / "first", 0, lambda: None)
        back_up_partition(source, NAME, 20, first, pause=lambda: None)
    manifest = Manifest(VERSION, 0, "cluster", (), first.entries)
    (first.root / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
    taken = log(first.root / NAME, 0)
    if damage == "missing":
        taken.unlink()
    elif damage == "cut off":
        taken.write_bytes(b"old")
    else:
        monkeypatch.setattr(os, "link", no_links)
    (tmp_path / "second").mkdir()
    second = BackupFiles(tmp_path / "second", first.root, lambda _name, _count: None)
    back_up_partition(source, NAME, 20, second, pause=lambda: None)
    assert backed_up(second) == {log(source, base).name: b"old %d" % base for base in (0, 10, 20)}


def test_a_directory_that_does_not_exist_is_told(tmp_path: Path) -> None:
    files = Interrupted(tmp_path / "backup", 0, lambda: None)
    with pytest.raises(FileNotFoundError):
        back_up_partition(tmp_path / "missing-0", NAME, 0, files, pause=lambda: None)
