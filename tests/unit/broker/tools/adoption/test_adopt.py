"""Adopting Kafka's directories: what is refused, what a crash leaves, and that Kafka's files stay what they are."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import pytest

import kafka_sample
from kafka_sample import copy_sample
from opened_logs import opened_logs
from unit.broker.data_directories import open_directory
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import commit, lock_and_read
from warmlog_broker.metadata.log_file import MetadataLog, pack_file
from warmlog_broker.metadata.metadata_log import MetadataState, TopicCreated, TopicDeleted, UserSecretMade
from warmlog_broker.storage.directory.dir_lock import DirectoryLocked
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.partition_files import pack_partition_metadata, read_gaps
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.verify.report import Report
from warmlog_broker.tools.adoption import adopt as engine
from warmlog_broker.tools.adoption.adopt import adopt
from warmlog_broker.tools.adoption.kafka_directory import NotKafkas
from warmlog_broker.tools.adoption.partition import AdoptionRefused
from warmlog_broker.tools.adoption.plan import STAGING_NAME, Adoption, AdoptionOptions
from warmlog_broker.tools.verify import verify_directory
from warmlog_protocol.batch import read_header
from warmlog_protocol.errors import InvalidTopic

NOW_MS = 1_800_000_000_000
FIRST = "00000000000000000000"
FLIGHTS, TRANSFERS = TopicPartition("flights", 0), TopicPartition("transfers", 0)


@pytest.fixture
def kafka(tmp_path: Path) -> Path:
    return copy_sample(tmp_path / "kafka")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def take_over(kafka: Path, data_dir: Path, **options: object) -> Adoption:
    return adopt([kafka], data_dir, AdoptionOptions(**options), now_ms=NOW_MS)  # type: ignore[arg-type]


def state_of(data_dir: Path) -> MetadataState:
    if not data_dir.exists():
        return MetadataState()
    log, _ = MetadataLog.open(data_dir)
    log.close()
    return log.state


def checksums(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(directory)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def findings_in(path: Path) -> list[str]:
    report = Report()
    verify_directory(path, report)
    return [str(finding) for finding in report.findings]


def load(data_dir: Path) -> dict[str, tuple[int, int, int]]:
    """What a broker's start makes of the directory: log start, high watermark and leader epoch of each partition."""
    config = BrokerConfig.from_settings({"data.dir": str(data_dir)})
    directories, metadata_log = lock_and_read(config)
    try:
        stored = opened_logs(directories, metadata_log, config)
        found = {}
        for entry, partitions in stored.topics:
            for number, log in ((number, partition.log) for number, partition in partitions.items()):
                assert log is not None
                epoch = stored.cluster.state.leader_epoch(entry, number)
                found[log.key.directory_name] = (log.log_start_offset, log.high_watermark, epoch)
                log.close()
        return found
    finally:
        metadata_log.close()
        directories.close()


# What is done


@pytest.mark.parametrize("is_linked", [True, False])
def test_topics_are_there_with_their_ids_offsets_and_settings(kafka: Path, data_dir: Path, is_linked: bool) -> None:
    before = checksums(kafka)
    adoption = take_over(kafka, data_dir, is_linked=is_linked)
    assert [topic.name for topic in adoption.topics] == ["flights", "transfers"]
    state = state_of(data_dir)
    flights = state.topics["flights"]
    assert flights.topic_id == UUID("11fa3d95-8211-4f71-a626-b9ac9313eb5d").bytes
    assert flights.settings == {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
    assert (flights.partitions, flights.leader_epoch) == (1, 1)
    assert state.next_producer_id == 7
    assert read_offsets(data_dir / "recovery-point-offset-checkpoint") == {FLIGHTS: 14_000, TRANSFERS: 375}
    assert read_offsets(data_dir / "log-start-offset-checkpoint") == {FLIGHTS: 5468, TRANSFERS: 0}
    assert [read_gaps(data_dir / name).rows_up_to for name in ("flights-0", "transfers-0")] == [14_000, 375]
    assert findings_in(data_dir) == []
    closed = Path("flights-0", "00000000000000005468.log")
    assert (data_dir / closed).samefile(kafka / closed) == is_linked
    for path in kafka.glob("*/*.log"):
        copy = data_dir / path.relative_to(kafka)
        assert copy.read_bytes() == path.read_bytes()
        assert copy.stat().st_mtime_ns == path.stat().st_mtime_ns
        assert path == kafka / closed or not copy.samefile(path)
    assert load(data_dir) == {"flights-0": (5468, 14_000, 1), "transfers-0": (0, 375, 1)}
    assert checksums(kafka) == before


def test_a_directory_that_is_in_use_already_gets_topics_and_stays_clean(kafka: Path, data_dir: Path) -> None:
    take_over(kafka, data_dir, topics=frozenset({"flights"}))
    load(data_dir)
    directory = open_directory(data_dir)
    directory.mark_clean({})
    directory.close()
    marker = (data_dir / ".warmlog_cleanshutdown").read_bytes()
    adoption = take_over(kafka, data_dir)
    assert (adoption.done_before, [topic.name for topic in adoption.topics]) == (["flights"], ["transfers"])
    assert (data_dir / ".warmlog_cleanshutdown").read_bytes() == marker
    assert state_of(data_dir).cluster is not None
    assert set(load(data_dir)) == {"flights-0", "transfers-0"}


def test_a_metadata_log_with_users_stays_for_its_owner_only(kafka: Path, data_dir: Path) -> None:
    directories, log = lock_and_read(BrokerConfig(data_dir=str(data_dir)))
    commit(log, [UserSecretMade(b"s")])
    log.close()
    directories.close()
    take_over(kafka, data_dir)
    assert state_of(data_dir).user_secret == b"s"
    assert (data_dir / "metadata.log").stat().st_mode & 0o777 == 0o600


def test_several_directories_of_one_kafka_are_joined(kafka: Path, data_dir: Path, tmp_path: Path) -> None:
    second = copy_sample(tmp_path / "second")
    shutil.rmtree(second / "flights-0")
    shutil.rmtree(kafka / "transfers-0")
    (second / "transfers-0").rename(second / "flights-1")
    shutil.copy(kafka / "flights-0" / "partition.metadata", second / "flights-1")
    adopt([kafka, second], data_dir, AdoptionOptions(), now_ms=NOW_MS)
    assert state_of(data_dir).topics["flights"].partitions == 2


def test_a_topic_of_a_kafka_without_ids_gets_one(kafka: Path, data_dir: Path) -> None:
    (kafka / "flights-0" / "partition.metadata").unlink()
    take_over(kafka, data_dir)
    assert findings_in(data_dir) == []


def test_the_log_start_and_the_high_watermark_of_the_checkpoints_count(kafka: Path, data_dir: Path) -> None:
    (kafka / "log-start-offset-checkpoint").write_text("0\n1\nflights 0 6000\n")
    (kafka / "replication-offset-checkpoint").write_text("0\n1\nflights 0 13990\n")
    adoption = take_over(kafka, data_dir)
    remarks = adoption.topics[0].logs[0].remarks
    assert remarks == ("offsets from 13990 to 13999, above Kafka's high watermark, become readable",)
    assert load(data_dir)["flights-0"] == (6000, 14_000, 1)


def test_what_is_internal_deleted_or_no_partition_is_skipped_with_a_word(kafka: Path, data_dir: Path) -> None:
    for name in (
        "__consumer_offsets-7",
        "__consumer_offsets-8",
        "__transaction_state-0",
        "__cluster_metadata-0",
        f"gone-0.{'a' * 32}-delete",
        f"moving-0.{'a' * 32}-future",
        f"stray-0.{'a' * 32}-stray",
        "lost+found",
    ):
        (kafka / name).mkdir()
    adoption = take_over(kafka, data_dir)
    reasons = {path.name.partition(".")[0]: reason for path, reason in adoption.skipped}
    assert reasons["__consumer_offsets-*"] == "an internal topic of Kafka"
    assert reasons["gone-0"] == "deleted"
    assert len(reasons) == len(adoption.skipped) == 7
    assert len(adoption.topics) == 2


def test_side_files_that_are_wrong_are_made_anew(kafka: Path, data_dir: Path) -> None:
    transfers = kafka / "transfers-0"
    (transfers / f"{FIRST}.index").write_bytes(b"???")
    (transfers / f"{FIRST}.txnindex").unlink()
    (transfers / "00000000000000000375.snapshot").write_bytes(b"???")
    remarks = take_over(kafka, data_dir).topics[1].logs[0].remarks
    assert any("rebuilt: " in remark and ".index" in remark for remark in remarks)
    assert findings_in(data_dir) == []
    for name in (f"{FIRST}.txnindex", "00000000000000000375.snapshot"):
        sample = kafka_sample.SAMPLE / "transfers-0" / name
        assert (data_dir / "transfers-0" / name).read_bytes() == sample.read_bytes()


def test_a_dry_run_checks_and_writes_nothing(kafka: Path, data_dir: Path) -> None:
    before = checksums(kafka)
    adoption = adopt([kafka], data_dir, AdoptionOptions(), now_ms=NOW_MS, is_dry_run=True)
    assert len(adoption.topics) == 2
    assert adoption.bytes_to_copy > 1_000_000
    assert not data_dir.exists()
    linked = adopt([kafka], data_dir, AdoptionOptions(is_linked=True), now_ms=NOW_MS, is_dry_run=True)
    assert (
        linked.bytes_to_copy == adoption.bytes_to_copy - (kafka / "flights-0/00000000000000005468.log").stat().st_size
    )
    assert checksums(kafka) == before


# What is refused


def refused(kafka: Path, data_dir: Path, **options: object) -> str:
    """Why; and nothing was written."""
    existed = data_dir.exists()
    before = checksums(data_dir), checksums(kafka)
    with pytest.raises(AdoptionRefused) as caught:
        take_over(kafka, data_dir, **options)
    assert data_dir.exists() == existed
    assert (checksums(data_dir), checksums(kafka)) == before
    return str(caught.value)


def test_without_the_marker_of_a_clean_stop(kafka: Path, data_dir: Path) -> None:
    (kafka / ".kafka_cleanshutdown").unlink()
    assert "was not stopped cleanly" in refused(kafka, data_dir)


def test_what_is_no_directory_of_kafka(kafka: Path, data_dir: Path) -> None:
    (kafka / "meta.properties").write_text("version=9\n")
    with pytest.raises(NotKafkas, match="expected version 0 or 1, found '9'"):
        take_over(kafka, data_dir)
    (kafka / "meta.properties").unlink()
    with pytest.raises(NotKafkas, match="is not a data directory of Kafka"):
        take_over(kafka, data_dir)


@pytest.mark.parametrize("lock", ["lockf", "flock"])
def test_a_kafka_that_is_running(kafka: Path, data_dir: Path, lock: str) -> None:
    (kafka / ".lock").touch()
    holding = f"import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.{lock}(f, fcntl.LOCK_EX); print(); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holding, str(kafka / ".lock")], stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(DirectoryLocked, match="in use"):
            take_over(kafka, data_dir)
        holder.communicate(b"\n")
    assert not data_dir.exists()


def test_no_kafka_starts_while_its_files_are_copied(kafka: Path, data_dir: Path) -> None:
    (kafka / ".lock").touch()
    taking = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    exit_codes: list[int] = []

    def start_kafka(_name: str, _done: int, _total: int) -> None:
        if not exit_codes:
            done = subprocess.run([sys.executable, "-c", taking, str(kafka / ".lock")], capture_output=True)
            exit_codes.append(done.returncode)

    adopt([kafka], data_dir, AdoptionOptions(), now_ms=NOW_MS, on_copied=start_kafka)
    assert exit_codes == [1]


def test_a_broker_of_ours_that_is_running(kafka: Path, data_dir: Path) -> None:
    take_over(kafka, data_dir, topics=frozenset({"flights"}))
    directory = open_directory(data_dir)
    try:
        with pytest.raises(DirectoryLocked, match=str(os.getpid())):
            take_over(kafka, data_dir)
    finally:
        directory.close()


def test_an_open_transaction(kafka: Path, data_dir: Path) -> None:
    cut_before(kafka / "transfers-0" / f"{FIRST}.log", 43)
    (kafka / "recovery-point-offset-checkpoint").write_text("0\n1\nflights 0 14000\n")
    (kafka / "replication-offset-checkpoint").write_text("0\n0\n")
    reason = refused(kafka, data_dir)
    open_ones = "of producer 5 from offset 31 on, of producer 6 from offset 32 on"
    assert reason.startswith(f"transfers-0 has a transaction open: {open_ones}. Let Kafka run until")


def test_a_damaged_log(kafka: Path, data_dir: Path) -> None:
    path = kafka / "flights-0" / "00000000000000005468.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert f"flights-0 is damaged: {path}, position" in refused(kafka, data_dir)


@pytest.mark.parametrize("must_recover", [False, True])
def test_a_segment_whose_offsets_are_too_far_apart_for_an_index(
    kafka: Path, data_dir: Path, must_recover: bool
) -> None:
    path = sorted((kafka / "flights-0").glob("*.log"))[0]
    content = bytearray(path.read_bytes())
    second = read_header(bytes(content), 0).size_bytes
    content[second : second + 8] = (2**31).to_bytes(8, "big")
    path.write_bytes(content[: second + read_header(bytes(content), second).size_bytes])
    assert "flights-0 is damaged" in refused(kafka, data_dir, must_recover=must_recover)


def test_a_damaged_log_that_is_found_in_its_copy(kafka: Path, data_dir: Path) -> None:
    path = kafka / "flights-0" / "00000000000000005468.log"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert "flights-0 is damaged" in refused(kafka, data_dir / "new", must_recover=True)
    assert not data_dir.exists()


def test_a_log_that_is_shorter_than_what_was_flushed(kafka: Path, data_dir: Path) -> None:
    (kafka / "recovery-point-offset-checkpoint").write_text("0\n1\nflights 0 14001\n")
    assert "flights-0 ends at offset 14000, but Kafka had flushed it up to 14001" in refused(kafka, data_dir)


def test_missing_partitions(kafka: Path, data_dir: Path) -> None:
    (kafka / "flights-0").rename(kafka / "flights-2")
    (kafka / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    (kafka / "replication-offset-checkpoint").write_text("0\n0\n")
    assert "topic 'flights' lacks partition 0, 1" in refused(kafka, data_dir)
    adoption = take_over(kafka, data_dir, fills_missing=True)
    assert adoption.topics[0].missing == [0, 1]
    assert load(data_dir)["flights-1"] == (0, 0, 1)


def test_names_that_are_taken(kafka: Path, data_dir: Path) -> None:
    data_dir.mkdir()
    for name, reason in (("flights", "already exists with another id"), ("other", "has the id of 'flights'")):
        topic_id = UUID("11fa3d95-8211-4f71-a626-b9ac9313eb5d") if name == "other" else UUID(int=1)
        (data_dir / "metadata.log").write_bytes(pack_file([TopicCreated(name, topic_id.bytes, 1, {})]))
        assert reason in refused(kafka, data_dir)
    (data_dir / "metadata.log").write_bytes(pack_file([TopicDeleted(UUID(int=1).bytes, "gone", 1)]))
    (data_dir / "flights-0").mkdir()
    assert f"{data_dir / 'flights-0'} already exists: move it" in refused(kafka, data_dir)


def test_names_that_collide_or_that_are_not_allowed(kafka: Path, data_dir: Path) -> None:
    data_dir.mkdir()
    (data_dir / "metadata.log").write_bytes(pack_file([TopicCreated("flights.a", UUID(int=1).bytes, 1, {})]))
    (kafka / "flights-0").rename(kafka / "flights_a-0")
    assert "collides with 'flights.a'" in refused(kafka, data_dir)
    (kafka / "flights_a-0").rename(kafka / "fl ights-0")
    with pytest.raises(InvalidTopic):
        take_over(kafka, data_dir)


def test_topics_that_are_not_there_or_internal(kafka: Path, data_dir: Path) -> None:
    assert "topic nowhere: not in these directories" in refused(kafka, data_dir, topics=frozenset({"nowhere"}))
    (kafka / "__consumer_offsets-0").mkdir()
    assert "cannot be taken over" in refused(kafka, data_dir, topics=frozenset({"__consumer_offsets"}))
    for key in (FLIGHTS, TRANSFERS):
        shutil.rmtree(kafka / key.directory_name)
    assert "no topic to take over" in refused(kafka, data_dir)


def test_partitions_of_two_topics_with_one_name(kafka: Path, data_dir: Path) -> None:
    shutil.copytree(kafka / "flights-0", kafka / "flights-1")
    (kafka / "flights-1" / "partition.metadata").write_bytes(pack_partition_metadata(UUID(int=5)))
    assert "must have one topic id" in refused(kafka, data_dir)


def test_a_compaction_that_was_interrupted(kafka: Path, data_dir: Path) -> None:
    (kafka / "flights-0" / "00000000000000005468.log.swap").touch()
    assert "interrupted while it compacted" in refused(kafka, data_dir)


def test_a_disk_without_room(kafka: Path, data_dir: Path) -> None:
    with patch("warmlog_broker.tools.adoption.plan.room_for", return_value=10):
        assert "has only 10 bytes free" in refused(kafka, data_dir)


def test_a_directory_that_is_not_ours_or_not_the_first(kafka: Path, data_dir: Path) -> None:
    (data_dir / "something-0").mkdir(parents=True)
    assert "not a data directory of warmlog" in refused(kafka, data_dir)
    (data_dir / "warmlog.properties").write_text("format.version=1\n")
    assert "give the first of several data directories" in refused(kafka, data_dir)
    assert "not a data directory of warmlog" in refused(kafka, kafka)


# What was not stopped cleanly


def test_a_torn_end_is_cut_from_the_copy_when_asked_for(kafka: Path, data_dir: Path) -> None:
    (kafka / ".kafka_cleanshutdown").unlink()
    (kafka / "recovery-point-offset-checkpoint").write_text("0\n2\nflights 0 11639\ntransfers 0 375\n")
    (kafka / "replication-offset-checkpoint").write_text("0\n0\n")
    path = kafka / "flights-0" / "00000000000000011639.log"
    os.truncate(path, path.stat().st_size - 5)
    for left in (kafka / "flights-0").glob("00000000000000014000*"):
        left.unlink()
    before = checksums(kafka)
    adoption = take_over(kafka, data_dir, must_recover=True, is_linked=True)
    log = adoption.topics[0].logs[0]
    assert 13_900 < log.offsets.recovery_point < 14_000
    assert any("cut" in remark for remark in log.remarks)
    assert checksums(kafka) == before
    assert load(data_dir)["flights-0"][1] == log.offsets.recovery_point


# Crashes


class Crash(BaseException):
    pass


def crashing(step: int) -> Callable[..., contextlib.AbstractContextManager[object]]:
    """Patches whatever changes our data directory from the journal on; the call with that number never happens."""
    calls = 0

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls == step:
                raise Crash
            return function(*args, **kwargs)

        return call

    stack = contextlib.ExitStack()
    for name in ("replace_file", "write_offsets", "sync_directory"):
        stack.enter_context(patch.object(engine, name, counted(getattr(engine, name))))
    stack.enter_context(patch.object(shutil, "rmtree", counted(shutil.rmtree)))
    stack.enter_context(patch.object(Path, "rename", counted(Path.rename)))
    return lambda: stack


@pytest.mark.parametrize("step", range(1, 14))
def test_a_crash_leaves_nothing_visible_or_everything_and_a_second_attempt_works(
    kafka: Path, data_dir: Path, step: int
) -> None:
    if step % 4:  # the others have a closed file, which is linked
        for path in (kafka / "flights-0").glob("00000000000000005468.*"):
            path.unlink()
    before = checksums(kafka)
    with contextlib.suppress(Crash), crashing(step)():
        take_over(kafka, data_dir, is_linked=True)
    visible = set(state_of(data_dir).topics)
    assert visible in (set(), {"flights", "transfers"})
    if step % 2:
        assert set(load(data_dir)) == {f"{name}-0" for name in visible}
    adoption = take_over(kafka, data_dir, is_linked=True)
    assert set(adoption.done_before) == visible
    assert set(state_of(data_dir).topics) == {"flights", "transfers"}
    assert not (data_dir / STAGING_NAME).exists()
    assert findings_in(data_dir) == []
    assert set(load(data_dir)) == {"flights-0", "transfers-0"}
    assert checksums(kafka) == before


def test_a_copy_that_fails_leaves_nothing(kafka: Path, data_dir: Path) -> None:
    with (
        patch("warmlog_broker.tools.adoption.partition.copy_bytes", side_effect=OSError(28, "No space left on device")),
        pytest.raises(OSError, match="No space"),
    ):
        take_over(kafka, data_dir)
    assert not data_dir.exists()
    data_dir.mkdir()
    (data_dir / "notes").touch()
    with (
        patch("warmlog_broker.tools.adoption.partition.copy_bytes", side_effect=OSError(28, "No space left on device")),
        pytest.raises(OSError, match="No space"),
    ):
        take_over(kafka, data_dir)
    assert [path.name for path in data_dir.iterdir()] == ["notes"]
    assert len(take_over(kafka, data_dir).topics) == 2


def cut_before(path: Path, offset: int) -> None:
    """Ends a log file before the batch that ends with `offset` or later."""
    content, position = path.read_bytes(), 0
    while (header := read_header(content, position)).last_offset < offset:
        position += header.size_bytes
    os.truncate(path, position)
