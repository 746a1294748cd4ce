"""The disk of the power-loss tests keeps what POSIX promises, and nothing more than luck beyond that."""

import errno
import os
import random
from pathlib import Path

import pytest

from faults.power.disk import SWEEP_EVERY, Disk, Node, PowerIsOff
from faults.power.powered import PoweredDisk, why_not

REGULAR = 0o100644
DIRECTORY = 0o040755
LUCKS = range(40)

needs_fuse = pytest.mark.skipif(bool(why_not()), reason=f"no file system in user space here: {why_not()}")


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    (tmp_path / "contents").mkdir()
    return Disk(tmp_path / "contents", tmp_path / "scratch")


def survivors(disk: Disk, target: Path, seed: int) -> dict[str, bytes]:
    """The files that are left after a cut now."""
    directory = target / f"left-{seed}"
    disk.survivors(directory, random.Random(seed))
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def synced_file(disk: Disk, path: str, content: bytes) -> Node:
    node = disk.create(path, REGULAR)
    disk.write(node, content, 0)
    disk.sync(node)
    disk.sync_directory(disk.node("/"))
    return node


def test_what_was_synced_with_its_name_survives_every_cut(disk: Disk, tmp_path: Path) -> None:
    synced_file(disk, "/a", b"kept" * 5000)
    disk.cut()
    for seed in LUCKS:
        assert survivors(disk, tmp_path, seed) == {"a": b"kept" * 5000}


def test_a_synced_file_whose_name_was_not_synced_may_be_lost(disk: Disk, tmp_path: Path) -> None:
    node = disk.create("/a", REGULAR)
    disk.write(node, b"content", 0)
    disk.sync(node)
    disk.cut()
    outcomes = [survivors(disk, tmp_path, seed) for seed in LUCKS]
    assert {} in outcomes
    assert {"a": b"content"} in outcomes


def test_of_unsynced_blocks_any_may_survive_and_the_last_in_part(disk: Disk, tmp_path: Path) -> None:
    node = synced_file(disk, "/a", b"o" * 20_480)
    disk.write(node, b"n" * 20_000, 0)
    disk.cut()
    contents = {survivors(disk, tmp_path, seed)["a"] for seed in LUCKS}
    assert b"o" * 20_480 in contents
    blocks = {bytes(content[start] for start in range(0, 16_384, 4096)) for content in contents}
    assert any(b"on" in pattern for pattern in blocks), "no later block came through before an earlier one"
    assert any(0 < content[16_384:].count(b"n") < 3616 for content in contents), "no last write was torn"


def test_renames_survive_as_a_whole_and_in_order(disk: Disk, tmp_path: Path) -> None:
    synced_file(disk, "/a", b"old")
    new = disk.create("/a.tmp", REGULAR)
    disk.write(new, b"new", 0)
    disk.sync(new)
    disk.rename("/a.tmp", "/a")
    disk.cut()
    outcomes = [survivors(disk, tmp_path, seed) for seed in LUCKS]
    assert all(outcome["a"] in (b"old", b"new") for outcome in outcomes)
    assert {"a": b"new"} in outcomes
    assert {"a": b"old"} in outcomes


def test_the_operation_that_is_under_way_when_the_power_goes_and_all_after_it_fail(disk: Disk) -> None:
    node = synced_file(disk, "/a", b"content")
    disk.cut_at = disk.operations + 2
    disk.write(node, b"x", 0)
    with pytest.raises(PowerIsOff):
        disk.sync(node)
    with pytest.raises(PowerIsOff):
        disk.write(node, b"y", 0)


def test_what_a_failed_sync_was_to_write_is_lost_although_later_syncs_succeed(disk: Disk, tmp_path: Path) -> None:
    node = synced_file(disk, "/a", b"old")
    disk.write(node, b"new", 0)
    disk.refuse_sync = lambda: True
    with pytest.raises(OSError, match="sync failed") as raised:
        disk.sync(node)
    assert raised.value.errno == errno.EIO
    disk.refuse_sync = bool
    disk.sync(node)
    disk.cut()
    assert {survivors(disk, tmp_path, seed)["a"] for seed in LUCKS} == {b"old"}


def test_a_full_disk_refuses_what_does_not_fit_and_takes_what_does(disk: Disk) -> None:
    node = synced_file(disk, "/a", b"x" * 1000)
    disk.capacity_bytes = 1500
    with pytest.raises(OSError, match="full") as raised:
        disk.write(node, b"y" * 600, 1000)
    assert raised.value.errno == errno.ENOSPC
    assert disk.write(node, b"z" * 1000, 0) == 1000
    assert disk.write(node, b"y" * 500, 1000) == 500


def test_directories_below_a_lost_name_are_lost_with_all_they_hold(disk: Disk, tmp_path: Path) -> None:
    directory = disk.create("/d", DIRECTORY)
    node = disk.create("/d/a", REGULAR)
    disk.sync(node)
    disk.sync_directory(directory)
    disk.cut()
    outcomes = [survivors(disk, tmp_path, seed) for seed in LUCKS]
    assert {} in outcomes
    assert {"d/a": b""} in outcomes


def test_files_that_nothing_can_reach_are_freed_and_all_others_kept(disk: Disk, tmp_path: Path) -> None:
    opened = synced_file(disk, "/opened", b"open")
    disk.open_nodes = lambda: [opened]
    disk.remove("/opened")
    disk.sync_directory(disk.node("/"))
    synced_file(disk, "/removed", b"may survive")
    disk.remove("/removed")
    disk.create("/busy", DIRECTORY)
    for _ in range(3 * SWEEP_EVERY):
        disk.create("/busy/new", REGULAR)
        disk.rename("/busy/new", "/busy/last")
        disk.sync_directory(disk.node("/busy"))
    assert len(list(disk)) < 2 * SWEEP_EVERY
    assert os.pread(opened.descriptor, 4, 0) == b"open"
    disk.cut()
    assert {b"may survive", None} == {survivors(disk, tmp_path, seed).get("removed") for seed in LUCKS}


@needs_fuse
def test_programs_see_an_ordinary_file_system_and_after_a_cut_what_is_left(tmp_path: Path) -> None:
    with PoweredDisk(tmp_path) as disk:
        path = disk.path / "a"
        path.write_bytes(b"first")
        for target in (path, disk.path):
            descriptor = os.open(target, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        with path.open("r+b") as file:
            file.write(b"other")
        assert path.read_bytes() == b"other"
        disk.cut()
        with pytest.raises(OSError, match="Input/output error"):
            (disk.path / "b").write_bytes(b"")
        disk.restore(seed=1)
        assert path.read_bytes() in (b"first", b"other", *(b"other"[:cut] + b"first"[cut:] for cut in range(5)))
        assert [entry.name for entry in disk.path.iterdir()] == ["a"]


@needs_fuse
def test_after_a_failed_sync_the_page_cache_and_the_disk_differ(tmp_path: Path) -> None:
    with PoweredDisk(tmp_path) as disk:
        path = disk.path / "a"
        path.write_bytes(b"old")
        with path.open("r+b", buffering=0) as file:
            os.fsync(file.fileno())
            assert file.read(3) == b"old"  # its page is in the cache from here on
            file.seek(0)
            disk.fail_syncs(1)
            file.write(b"new")
            with pytest.raises(OSError, match="Input/output error"):
                os.fsync(file.fileno())
            os.fsync(file.fileno())
            assert os.pread(file.fileno(), 3, 0) == b"new"
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), 3, 0) == b"old"
