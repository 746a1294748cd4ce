"""An export: a crash at any step loses and repeats nothing, and each record is in the file of its day."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from unit.client.ranges.scripted_broker import TOPIC_ID, ScriptedBroker
from warmlog.errors import CorruptBatch
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.read_settings import ReadSettings
from warmlog.spark.export import files as export_files
from warmlog.spark.export.files import export_ranges
from warmlog.spark.export.manifest import Commit, ExportedFile, ExportRefused, Manifest
from warmlog_protocol.batch import encode_batch


class Crash(Exception):
    """The process ends here."""


def stage(manifest: Manifest, number: int) -> Commit:
    """Two staged files of commit `number`, and the commit that lists them."""
    files = []
    for day in ("date=2026-11-20", "date=2026-11-21"):
        path = f"{day}/part-{number}.parquet"
        target = manifest.staging / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{number}")
        files.append(ExportedFile(path, records=1, size_bytes=1))
    return Commit("t", "ab", {0: number + 1}, tuple(files))


def seen(path: Path) -> list[str]:
    """What readers see: the content of all files, each of which stands for one record."""
    return sorted(file.read_text() for file in path.glob("date=*/*.parquet"))


def export_once(path: Path, number: int) -> None:
    """What a run does: nothing when that commit is there already."""
    with Manifest(path).locked() as manifest:
        if manifest.last is None or manifest.last.positions[0] <= number:
            manifest.commit(stage(manifest, number))


def test_commits_are_read_again_and_their_files_are_where_readers_see_them(tmp_path: Path) -> None:
    for number in range(3):
        export_once(tmp_path, number)
    with Manifest(tmp_path).locked() as manifest:
        assert manifest.last is not None
        assert manifest.last.positions == {0: 3}
        assert [each.path for each in manifest.last.files] == [
            "date=2026-11-20/part-2.parquet",
            "date=2026-11-21/part-2.parquet",
        ]
    assert seen(tmp_path) == ["0", "0", "1", "1", "2", "2"]
    assert not list((tmp_path / "_warmlog" / "staging").rglob("*.parquet"))


def test_leader_epochs_are_kept_with_the_positions_and_a_commit_of_before_has_none(tmp_path: Path) -> None:
    with Manifest(tmp_path).locked() as manifest:
        manifest.commit(Commit("t", "ab", {0: 5, 1: 7}, epochs={0: 3, 1: 0}))
    (path,) = (tmp_path / "_warmlog" / "commits").glob("*.json")
    assert Commit.of_json(path).epochs == {0: 3, 1: 0}
    document = json.loads(path.read_text())
    del document["epochs"]
    path.write_text(json.dumps(document))
    assert Commit.of_json(path) == Commit("t", "ab", {0: 5, 1: 7})


def test_what_attempts_that_failed_have_left_is_removed_after_each_commit(tmp_path: Path) -> None:
    with Manifest(tmp_path).locked() as manifest:
        for number in range(2):
            commit = stage(manifest, number)
            stage(manifest, 5)  # no commit lists these
            manifest.commit(commit)
            assert not (tmp_path / "_warmlog" / "staging").exists()
    assert seen(tmp_path) == ["0", "0", "1", "1"]


def test_a_staging_area_that_stays_does_not_undo_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_rmdir = os.rmdir

    def rmdir(path: str, **options: int) -> None:
        if "date=2026-11-21" in str(path):
            raise OSError(errno.ENOTEMPTY, "an attempt writes on", path)
        real_rmdir(path, **options)

    with Manifest(tmp_path).locked() as manifest:
        with monkeypatch.context() as patched:
            patched.setattr(os, "rmdir", rmdir)
            manifest.commit(stage(manifest, 0))
        assert manifest.staging.parent.exists()
        manifest.commit(stage(manifest, 1))
        assert not manifest.staging.parent.exists()
    assert seen(tmp_path) == ["0", "0", "1", "1"]


def test_whether_there_are_headers_is_remembered_and_unknown_where_a_commit_does_not_say(tmp_path: Path) -> None:
    with Manifest(tmp_path).locked() as manifest:
        manifest.commit(replace(stage(manifest, 0), has_headers=True))
    with Manifest(tmp_path).locked() as manifest:
        assert manifest.last is not None
        assert manifest.last.has_headers is True
    (commit,) = (tmp_path / "_warmlog" / "commits").iterdir()
    document = json.loads(commit.read_text())
    del document["has_headers"]
    commit.write_text(json.dumps(document))
    with Manifest(tmp_path).locked() as manifest:
        assert manifest.last is not None
        assert manifest.last.has_headers is None


@pytest.mark.parametrize("step", range(24))
def test_a_crash_at_any_step_loses_and_repeats_none(tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are the renames, the syncs and what removes the staging area.

    A sync that did not happen may have lost what it was to keep.
    """
    export_once(tmp_path, 0)
    steps = iter(range(1_000))
    real_rename, real_fsync, real_rmdir = Path.rename, os.fsync, os.rmdir

    def rename(source: Path, target: Path) -> Path:
        if next(steps) == step:
            raise Crash
        return real_rename(source, target)

    def fsync(descriptor: int) -> None:
        if next(steps) == step:
            raise Crash
        real_fsync(descriptor)

    def rmdir(path: str, **options: int) -> None:
        if next(steps) == step:
            raise Crash
        real_rmdir(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", rename)
        patched.setattr(os, "fsync", fsync)
        patched.setattr(os, "rmdir", rmdir)
        try:
            export_once(tmp_path, 1)
        except Crash:
            assert seen(tmp_path)[:2] == ["0", "0"]
    export_once(tmp_path, 1)
    assert seen(tmp_path) == ["0", "0", "1", "1"]


def test_each_staged_file_is_on_disk_before_a_commit_lists_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[Path] = set()
    real_rename, real_fsync = Path.rename, os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        real_fsync(descriptor)

    def rename(source: Path, target: Path) -> Path:
        if target.suffix == ".json":
            staging = tmp_path / "_warmlog" / "staging"
            days = (staging / "0" / f"date=2026-11-{day}" for day in (20, 21))
            assert {*days, staging / "0", staging, staging.parent, tmp_path} <= synced
        return real_rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        patched.setattr(Path, "rename", rename)
        export_once(tmp_path, 0)
    assert seen(tmp_path) == ["0", "0"]


def test_what_no_commit_lists_is_removed(tmp_path: Path) -> None:
    with Manifest(tmp_path).locked() as manifest:
        stage(manifest, 0)
    export_once(tmp_path, 5)
    assert seen(tmp_path) == ["5", "5"]
    assert not list((tmp_path / "_warmlog").rglob("*.parquet"))


def test_damage_is_refused_and_not_guessed_away(tmp_path: Path) -> None:
    for number in range(3):
        export_once(tmp_path, number)
    commits = tmp_path / "_warmlog" / "commits"
    last = commits / f"{2:020}.json"
    text = last.read_text()
    for damaged, message in (
        ("", "is not a commit of an export"),
        (text[:50], "is not a commit of an export"),
        (text.replace('"positions"', '"places"'), "is not a commit of an export"),
        (text.replace('"version": 1', '"version": 9'), "has version 9, expected 1"),
    ):
        last.write_text(damaged)
        with pytest.raises(ExportRefused, match=message), Manifest(tmp_path).locked():
            pass
    last.write_text(text)
    (tmp_path / "date=2026-11-21" / "part-2.parquet").unlink()
    with (
        pytest.raises(ExportRefused, match=r"part-2.parquet is gone, though it was committed"),
        Manifest(tmp_path).locked(),
    ):
        pass
    (commits / f"{1:020}.json").unlink()
    with pytest.raises(ExportRefused, match="commits are missing, there are 2 up to 2"), Manifest(tmp_path).locked():
        pass


def test_two_at_the_same_time_are_refused(tmp_path: Path) -> None:
    message = f"another export .process {os.getpid()} on .* is writing there"
    with Manifest(tmp_path).locked(), pytest.raises(ExportRefused, match=message), Manifest(tmp_path).locked():
        pass
    export_once(tmp_path, 0)


DAY_MS = 86_400_000


def log_of(times_ms: list[int], per_batch: int) -> list[bytes]:
    return [
        encode_batch(
            [b"%d" % offset for offset in range(base, min(base + per_batch, len(times_ms)))],
            timestamps_ms=times_ms[base : base + per_batch],
            headers=[[("h", b"v")]] * len(times_ms[base : base + per_batch]),
            base_offset=base,
        )
        for base in range(0, len(times_ms), per_batch)
    ]


@pytest.mark.parametrize("has_headers", [False, True])
def test_mixed_days_part_with_few_files(tmp_path: Path, has_headers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_files, "MOST_OPEN_FILES", 3)
    monkeypatch.setattr(export_files, "ROW_GROUP_BYTES", 2_000)
    random = Random(1)
    times_ms = [random.randrange(8) * DAY_MS + random.randrange(DAY_MS) for _ in range(1_000)]
    with ScriptedBroker(log_of(times_ms, 50)) as broker:
        ranges = [OffsetRange("t", 2, start, start + 500, broker.address, TOPIC_ID) for start in (0, 500)]
        files, losses = export_ranges(ranges, tmp_path, ReadSettings(), has_headers=has_headers, compression="zstd")
    assert losses == []
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")} == {
        each.path for each in files
    }
    offsets = []
    for each in files:
        table = pq.ParquetFile(tmp_path / each.path).read()
        assert (table.num_rows, (tmp_path / each.path).stat().st_size) == (each.records, each.size_bytes)
        assert ("headers" in table.schema.names) == has_headers
        own = table.column("offset").to_pylist()
        assert own == sorted(own)
        assert {f"date=1970-01-0{1 + times_ms[offset] // DAY_MS}" for offset in own} == {each.path.split("/")[0]}
        assert table.column("value").to_pylist() == [b"%d" % offset for offset in own]
        offsets += own
    assert sorted(offsets) == list(range(1_000))


def test_an_attempt_that_fails_leaves_no_file(tmp_path: Path) -> None:
    batches = log_of([0] * 100, 50)
    batches[1] = batches[1][:-1] + bytes([batches[1][-1] ^ 1])
    with ScriptedBroker(batches) as broker, pytest.raises(CorruptBatch):
        export_ranges(
            [OffsetRange("t", 2, 0, 100, broker.address, TOPIC_ID)],
            tmp_path,
            ReadSettings(),
            has_headers=False,
            compression="none",
        )
    assert not list(tmp_path.rglob("*.parquet"))
