"""`warmlog log verify`, `rebuild-index` and `adopt`: what they print, whose directory they touch, their exit codes."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from kafka_sample import SAMPLE, copy_sample
from other_user import NOBODY, copy_open_to_all, directory_open_to_all
from unit.broker.data_directories import open_directory
from warmlog.cli.app import build_program
from warmlog.cli.terminal import status
from warmlog_broker.metadata.log_file import pack_file
from warmlog_broker.metadata.metadata_log import ClusterCreated, DirectoryKnown, PartitionsAssigned, TopicCreated
from warmlog_broker.storage.directory.dir_lock import DirectoryLocked, exclusive_lock, shared_lock
from warmlog_broker.storage.directory.offset_checkpoint import write_offsets
from warmlog_broker.storage.directory.partition_files import pack_partition_metadata
from warmlog_broker.storage.directory.topic_partition import TopicPartition

LOG = "00000000000000000000.log"


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    return shutil.copytree(SAMPLE, tmp_path / "kafka", ignore=shutil.ignore_patterns("*.dump", "*.md"))


def verify(*arguments: object) -> Result:
    return CliRunner().invoke(build_program(), ["log", "verify", *map(str, arguments)])


def flip_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_clean_directory_is_summed_up(kafka: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "INTERVAL_S", 600.0)  # on a busy machine it takes longer than a second
    done = verify(kafka)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == (
        "2 partitions, 3 segments, 909 batches, 8,907 records, 984 KiB, 597 index entries, 4 snapshots: 0 findings\n"
    )
    assert verify(kafka / "transfers-0", kafka / "flights-0").stdout == done.stdout


def test_findings_are_printed_with_their_place_and_end_with_exit_code_1(kafka: Path) -> None:
    log = kafka / "transfers-0" / LOG
    flip_last_byte(log)
    done = verify(kafka)
    assert done.exit_code == 1
    first = done.stdout.splitlines()[0]
    assert first.startswith(f"{log}, position 30963, offset 374: expected a valid batch, found ")
    assert done.stdout.splitlines()[-1].endswith(" findings")


def test_scripts_get_json(kafka: Path) -> None:
    flip_last_byte(kafka / "transfers-0" / "00000000000000000375.snapshot")
    done = verify("--json", kafka / "transfers-0")
    assert done.exit_code == 1
    document = json.loads(done.stdout)
    assert document["counts"]["batches"] == 375
    (finding,) = document["findings"]
    assert finding["path"].endswith("00000000000000000375.snapshot")
    assert (finding["expected"], finding["position"]) == ("a producer snapshot", None)


def test_a_directory_of_something_else_is_misuse(tmp_path: Path) -> None:
    assert verify(tmp_path).exit_code == 2
    assert verify(tmp_path / "missing").exit_code == 2
    assert verify().exit_code == 2


def test_what_the_metadata_log_knows_is_held_against_the_directories(kafka: Path) -> None:
    topics = [
        TopicCreated("transfers", UUID(int=1).bytes, 1, {}),
        TopicCreated("gone", UUID(int=2).bytes, 1, {}),
    ]
    (kafka / "metadata.log").write_bytes(pack_file([ClusterCreated("c", 0, 0), *topics]))
    (kafka / "transfers-0" / "partition.metadata").write_bytes(pack_partition_metadata(UUID(int=3)))
    write_offsets(kafka / "recovery-point-offset-checkpoint", {TopicPartition("gone", 0): 5})
    done = verify(kafka)
    assert done.exit_code == 1
    assert f"expected topic id {UUID(int=1)}, found {UUID(int=3)}" in done.stdout
    assert "gone-0: expected a log with records up to offset 5, found no directory" in done.stdout
    assert f"found {UUID(int=3)}" in verify(kafka / "transfers-0").stdout
    (kafka / "metadata.log").write_bytes(b"something else")
    assert "metadata.log: expected a metadata log" in verify(kafka).stdout


def test_a_partition_that_was_moved_to_another_data_directory_is_not_missed(kafka: Path, tmp_path: Path) -> None:
    entries = [
        ClusterCreated("c", 0, 0),
        TopicCreated("moved", UUID(int=2).bytes, 1, {}),
        DirectoryKnown(UUID(int=9).bytes, str(tmp_path / "elsewhere")),
        PartitionsAssigned(UUID(int=2).bytes, UUID(int=9).bytes, [0]),
    ]
    (kafka / "metadata.log").write_bytes(pack_file(entries))
    write_offsets(kafka / "recovery-point-offset-checkpoint", {TopicPartition("moved", 0): 5})
    assert verify(kafka).exit_code == 0
    entries[2] = DirectoryKnown(UUID(int=9).bytes, str(kafka))
    (kafka / "metadata.log").write_bytes(pack_file(entries))
    assert "moved-0: expected a log with records up to offset 5, found no directory" in verify(kafka).stdout


def test_a_damaged_checkpoint_is_found_from_a_partitions_directory_too(kafka: Path) -> None:
    (kafka / "recovery-point-offset-checkpoint").write_text("damaged")
    (finding,) = json.loads(verify("--json", kafka / "flights-0").stdout)["findings"]
    assert finding["path"].endswith("recovery-point-offset-checkpoint")


def test_a_recovery_point_above_the_end_of_one_partition_is_found_from_its_directory_too(kafka: Path) -> None:
    write_offsets(kafka / "recovery-point-offset-checkpoint", {TopicPartition("transfers", 0): 400})
    assert "transfers-0, which ends at 375" in verify(kafka / "transfers-0").stdout


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's leave to read everything; for anybody else modes count anyway."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A data directory that the user nobody may look into; the path to tmp_path is root's alone."""
    with directory_open_to_all() as above:
        yield copy_open_to_all(SAMPLE, above / "kafka", "*.dump", "*.md")


def verify_as_nobody(directory: Path) -> Result:
    verify(directory)  # imports what it needs, which nobody may not
    with as_nobody():
        return verify(directory)


@pytest.mark.parametrize("name", ["00000000000000005468.log", "00000000000000011639.log"])
def test_a_log_file_that_may_not_be_read_is_a_finding_and_the_others_are_checked(open_to_all: Path, name: str) -> None:
    log = open_to_all / "flights-0" / name
    log.chmod(0)
    flip_last_byte(open_to_all / "transfers-0" / LOG)
    done = verify_as_nobody(open_to_all)
    assert done.exit_code == 1
    first, second, *_ = done.stdout.splitlines()
    assert first == f"{log}: expected a log file that can be read, found that it cannot be read: Permission denied"
    assert second.startswith(f"{open_to_all / 'transfers-0' / LOG}, position 30963")
    assert done.stdout.splitlines()[-1].startswith("2 partitions, 2 segments, ")


@pytest.mark.parametrize(
    "name",
    [
        "flights-0",
        "flights-0/00000000000000005468.index",
        "flights-0/00000000000000005468.timeindex",
        "flights-0/leader-epoch-checkpoint",
        "flights-0/partition.metadata",
        "transfers-0/00000000000000000375.snapshot",
        "recovery-point-offset-checkpoint",
        "metadata.log",
    ],
)
def test_nothing_else_that_may_not_be_read_ends_a_verification(open_to_all: Path, name: str) -> None:
    if not (open_to_all / name).is_dir():
        (open_to_all / name).touch()
    (open_to_all / name).chmod(0)
    done = verify_as_nobody(open_to_all)
    (open_to_all / name).chmod(0o755)
    assert done.exit_code == 1
    first, last = done.stdout.splitlines()
    assert first.startswith(f"{open_to_all / name}: expected ")
    assert first.endswith("found that it cannot be read: Permission denied")
    assert last.endswith(": 1 finding")


def test_what_waits_to_be_removed_is_counted_in_one_line(kafka: Path) -> None:
    names = [f"gone-{number}.{number:032x}-delete" for number in range(1_000)]
    for name in names:
        (kafka / name).mkdir()
    for number in range(300):
        (kafka / "flights-0" / f"{number:020d}.log.deleted").touch()
    (kafka / "transfers-0" / "00000000000000000000.index.deleted").touch()
    done = verify(kafka)
    assert done.exit_code == 0
    said = [line for line in done.stderr.splitlines() if "not checked" in line]  # a slow check tells its progress there
    assert said == [
        f"warmlog: {kafka / 'flights-0'}: not checked: 300 such as 00000000000000000000.log.deleted",
        f"warmlog: {kafka / 'transfers-0'}: not checked: 00000000000000000000.index.deleted",
        f"warmlog: {kafka}: not checked, as no partitions in use: 1,000 such as {names[0]}",
    ]


def test_one_of_a_kind_is_told_in_the_singular(kafka: Path) -> None:
    assert verify(kafka / "transfers-0").stdout.startswith("1 partition, 1 segment, 375 batches, ")


INDEX = Path("transfers-0", "00000000000000000000.index")


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


def test_a_directory_of_something_else_is_not_rebuilt(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("inside", [".", "ours", "flights-0/ours", "../link/ours"])
@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_a_data_directory_within_kafkas_is_misuse(tmp_path: Path, inside: str, options: list[str]) -> None:
    kafka = copy_sample(tmp_path / "kafka")
    (tmp_path / "link").symlink_to(kafka)
    before = sorted(kafka.rglob("*"))
    arguments = ["log", "adopt", str(kafka), "--data-dir", str(kafka / inside), *options]
    done = CliRunner().invoke(build_program(), arguments)
    assert done.exit_code == 2
    assert sorted(kafka.rglob("*")) == before


def invoke(tmp_path: Path, *options: str) -> Result:
    kafka = copy_sample(tmp_path / "kafka")
    arguments = ["log", "adopt", str(kafka), "--data-dir", str(tmp_path / "data"), *options]
    return CliRunner().invoke(build_program(), arguments)


def test_without_aiokafka_it_is_told_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka.admin", None)
    monkeypatch.delitem(sys.modules, "warmlog_broker.tools.adoption.kafka_cluster", raising=False)
    done = invoke(tmp_path, "--kafka", "localhost:9092")
    assert done.exit_code == 1
    assert "--kafka needs it: pip install 'aiokafka" in done.stderr


def test_settings_come_from_a_kafka_or_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "configs").write_text("{}")
    done = invoke(tmp_path, "--kafka", "localhost:9092", "--topic-configs", str(tmp_path / "configs"))
    assert done.exit_code == 2
    assert "--kafka or --topic-configs, not both" in done.stderr


def test_an_address_that_is_none_is_misuse(tmp_path: Path) -> None:
    done = invoke(tmp_path, "--kafka", "localhost:port")
    assert done.exit_code == 2
    assert "'localhost:port' is not HOST:PORT" in done.stderr
