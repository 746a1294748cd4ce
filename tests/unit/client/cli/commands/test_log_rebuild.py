"""`warmlog log rebuild-index`: whose directory it may touch."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from kafka_sample import SAMPLE
from unit.broker.data_directories import open_directory
from warmlog.cli.app import build_program
from warmlog_broker.metadata.metadata_log import ClusterCreated, TopicCreated, pack_file
from warmlog_broker.storage.directory.data_dir import DirectoryLocked
from warmlog_broker.storage.directory.dir_lock import exclusive_lock, shared_lock

INDEX = Path("transfers-0", "00000000000000000000.index")


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    return shutil.copytree(SAMPLE, tmp_path / "kafka", ignore=shutil.ignore_patterns("*.dump", "*.md"))


def rebuild(*arguments: object) -> Result:
    return CliRunner().invoke(build_program(), ["log", "rebuild-index", *map(str, arguments)])


def test_the_settings_of_each_topic_say_how_dense(kafka: Path) -> None:
    topic = TopicCreated("transfers", UUID(int=1).bytes, 1, {"index.interval.bytes": "512"})
    (kafka / "metadata.log").write_bytes(pack_file([ClusterCreated("c", 0, 0), topic]))
    (kafka / INDEX).unlink()
    done = rebuild(kafka)
    assert done.exit_code == 0
    assert f"{kafka / 'transfers-0'}: 1 segment, 375 batches, 3 files written" in done.stdout
    assert (kafka / INDEX).read_bytes() == (SAMPLE / INDEX).read_bytes()
    rebuild(kafka / "transfers-0", "--index-interval-bytes", 5_000)
    assert (kafka / INDEX).stat().st_size < (SAMPLE / INDEX).stat().st_size


def test_a_directory_that_a_broker_uses_is_refused_naming_it(kafka: Path) -> None:
    before = (kafka / INDEX).stat().st_mtime_ns
    directory = open_directory(kafka)
    try:
        for path in (kafka, kafka / "transfers-0"):
            done = rebuild(path)
            assert done.exit_code == 1
            assert f"process {os.getpid()} holds the lock {kafka / '.lock'}" in done.stderr
    finally:
        directory.close()
    assert (kafka / INDEX).stat().st_mtime_ns == before


def test_a_lock_as_kafka_holds_it_is_seen_and_its_holder_named(kafka: Path) -> None:
    (kafka / ".lock").touch()
    holding = "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX); print(); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holding, str(kafka / ".lock")], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        for lock in (exclusive_lock, shared_lock):
            with pytest.raises(DirectoryLocked, match=f"process {holder.pid} holds"), lock(kafka):
                pass
        holder.communicate(b"\n")
    with shared_lock(kafka), shared_lock(kafka):
        pass


def test_no_broker_starts_meanwhile(kafka: Path) -> None:
    with exclusive_lock(kafka), pytest.raises(DirectoryLocked, match=str(os.getpid())):
        open_directory(kafka)
    with exclusive_lock(kafka), open(kafka / ".lock", "r+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_shared_lock_creates_nothing(kafka: Path) -> None:
    with shared_lock(kafka):
        pass
    assert not (kafka / ".lock").exists()


def test_a_directory_of_something_else_is_misuse(tmp_path: Path) -> None:
    assert rebuild(tmp_path).exit_code == 2


def test_directories_that_are_only_named_like_partitions_are_left_alone(kafka: Path, tmp_path: Path) -> None:
    other = "blockmgr-4ab80a79-7b6f-4c4c-9ab1-123456789012"
    for above in (tmp_path / "tmp", kafka):
        (above / other / "0c").mkdir(parents=True)
        (above / other / "spark.log").touch()
    for path in (tmp_path / "tmp", tmp_path / "tmp" / other):
        assert rebuild(path).exit_code == 2
    assert not list(tmp_path.rglob(".lock"))
    done = rebuild(kafka)
    assert done.exit_code == 0
    assert other not in done.stdout
    assert sorted(path.name for path in (kafka / other).iterdir()) == ["0c", "spark.log"]


def test_a_damaged_log_is_named_in_the_summary_and_ends_with_exit_code_1(kafka: Path) -> None:
    log = (kafka / INDEX).with_suffix(".log")
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    done = rebuild(kafka)
    assert done.exit_code == 1
    assert f"{log}" in done.stderr
    flights, transfers = done.stdout.splitlines()
    assert flights.endswith(" files written")
    assert transfers.startswith(f"{kafka / 'transfers-0'}: 1 segment, 374 batches, ")
    assert transfers.endswith(f" written, damaged: {log.name}")


def test_room_behind_the_end_of_the_newest_log_is_no_damage(kafka: Path) -> None:
    with (kafka / INDEX).with_suffix(".log").open("ab") as log:
        log.write(bytes(10_000))
    done = rebuild(kafka)
    assert (done.exit_code, done.stderr) == (0, "")
