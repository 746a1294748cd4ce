"""From a data directory to logs that can be served."""

import logging
from concurrent.futures import Future
from os import pread
from pathlib import Path

import pytest

from opened_logs import opened_logs
from present import present
from unit.broker.conftest import NOW_MS
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.data_dirs.directory_set import commit, lock_and_read, refuse_if_locked
from warmlog_broker.data_dirs.loader import LoadingProgress
from warmlog_broker.metadata.metadata_log import Entry, TopicCreated, TopicDeleted
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import CLEAN_MARKER_NAME
from warmlog_broker.storage.directory.dir_lock import DirectoryLocked
from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME
from warmlog_broker.storage.directory.properties import DataDirectoryError
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import check_batch
from warmlog_broker.storage.segment import file_records
from warmlog_protocol.batch.header import CRC_START, placement_prefix, read_header
from wire_client import batch_of

TOPIC = TopicCreated("t", bytes(15) + b"\x07", 2, {})


def config_of(data_dir: Path, **settings: str) -> BrokerConfig:
    texts = {name.replace("_", "."): text for name, text in settings.items()}
    return BrokerConfig.from_settings(texts if "data.dirs" in texts else {"data.dir": str(data_dir), **texts})


def write_entries(data_dir: Path, *entries: Entry, config: BrokerConfig | None = None) -> None:
    directory, metadata_log = lock_and_read(config or config_of(data_dir))
    commit(metadata_log, entries)
    metadata_log.close()
    directory.close()


class Opened:
    """A data directory, opened and closed again."""

    def __init__(self, data_dir: Path, config: BrokerConfig | None = None) -> None:
        config = config or config_of(data_dir)
        self.directories, self.metadata_log = lock_and_read(config)
        self.directory = self.directories.first
        self.progress: list[tuple[int, int]] = []
        self.stored = opened_logs(
            self.directories, self.metadata_log, config, lambda done, total, _: self.progress.append((done, total))
        )

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *error: object) -> None:
        self.metadata_log.close()
        self.directories.close()

    @property
    def epochs(self) -> list[int]:
        """The leader epochs of the first topic's partitions."""
        state = self.metadata_log.state
        (topic, *_) = state.topics.values()
        return [state.leader_epoch(topic, index) for index in range(topic.partitions)]

    def stop_cleanly(self, *, but: TopicPartition | None = None) -> None:
        """Closes all logs `but` one, as if its disk had failed. Its directory is not clean if it is alone there."""
        logs = [log for log in self.logs if log is not None]
        ends = {log.key: log.close() for log in logs if log.key != but}
        for directory in self.directories.live:
            here = [log for log in logs if log.local.directory.parent == directory.path]
            directory.write_checkpoints({log.key: log.offsets for log in here})
            closed = {log.key: end for log in here if (end := ends.get(log.key)) is not None}
            if closed or not here:
                directory.mark_clean(closed)

    @property
    def logs(self) -> list[Log | None]:
        return [each.log for _, group in self.stored.topics for each in group.values()]


def append(log: Log | None, producer: tuple[int, int] = (-1, -1), *, leader_epoch: int = 0) -> None:
    assert log is not None
    sequence = -1 if producer[0] < 0 else 0
    batch = batch_of([b"x"], timestamp_ms=NOW_MS, producer=producer, base_sequence=sequence)
    log.appender.append_as_leader(
        check_batch(batch, 1 << 20), leader_epoch=max(leader_epoch, log.epochs.latest_epoch), now_ms=NOW_MS
    )
    plan = present(log.flusher.prepare())
    plan.run()
    log.flusher.mark_flushed(plan)


def test_a_new_directory_becomes_a_cluster(tmp_path: Path) -> None:
    with Opened(tmp_path / "data") as opened:
        cluster = present(opened.metadata_log.state.cluster)
        assert cluster.node_id == 1
        assert opened.logs == []
    with Opened(tmp_path / "data") as again:
        assert again.metadata_log.state.cluster == cluster


def test_what_a_crash_has_left_can_be_read_whole(tmp_path: Path) -> None:
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        append(opened.logs[0])
        append(opened.logs[0])
    with Opened(tmp_path) as again:
        log = present(again.logs[0])
        assert (log.log_end_offset, log.recovery_point) == (2, 2)
        assert again.epochs == [1, 1]
        assert (1, 2) in again.progress


def test_a_start_begins_no_epoch_in_a_log_so_that_a_follower_can_go_on(tmp_path: Path) -> None:
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        append(opened.logs[0])
    with Opened(tmp_path) as again:
        log = present(again.logs[0])
        assert (again.epochs, log.epochs.entries) == ([1, 1], ((0, 0),))
        batch = batch_of([b"y"], timestamp_ms=NOW_MS)
        copied = placement_prefix(read_header(batch), 1, 0) + batch[CRC_START:]
        assert log.follower.append(copied, now_ms=NOW_MS).last_offset == 1


def test_a_clean_stop_does_not_raise_the_leader_epoch(tmp_path: Path) -> None:
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        opened.stop_cleanly()
    assert (tmp_path / CLEAN_MARKER_NAME).exists()
    with Opened(tmp_path) as again:
        assert again.epochs == [0, 0]


@pytest.mark.parametrize("content", [None, b"", bytes(20), b"0\n2\n0 0\n", b"0\n1\n9 0\n", b"0\n1\n99999999999 0\n"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_batches_of_later_epochs_than_the_metadata_log_knows_need_no_epochs_file(
    tmp_path: Path, is_clean: bool, content: bytes | None
) -> None:
    """The metadata log is an earlier copy. The last segment has no batch, as after a roll."""
    write_entries(tmp_path, TOPIC)
    earlier = (tmp_path / "metadata.log").read_bytes()
    for epoch in range(3):
        with Opened(tmp_path) as opened:
            assert opened.epochs == [epoch, epoch]
            append(opened.logs[0], leader_epoch=epoch)
            if epoch == 2:
                present(opened.logs[0]).local.roll(NOW_MS)
                if is_clean:
                    opened.stop_cleanly()
    (tmp_path / "metadata.log").write_bytes(earlier)
    damage_epochs(tmp_path, content)
    with Opened(tmp_path) as again:
        log = present(again.logs[0])
        assert (log.log_end_offset, again.epochs[0]) == (3, 3)
        assert log.epochs.entries == ((0, 0), (1, 1), (2, 2))


@pytest.mark.parametrize("checkpointed", [0, 1, 2, 3])
def test_an_epochs_file_that_stops_too_early_costs_no_records(tmp_path: Path, checkpointed: int) -> None:
    """Both it and the metadata log are earlier copies, and a crash has left the log open."""
    write_entries(tmp_path, TOPIC)
    earlier = (tmp_path / "metadata.log").read_bytes()
    for epoch in range(3):
        with Opened(tmp_path) as opened:
            append(opened.logs[0], leader_epoch=epoch)
            if epoch + 1 == checkpointed:
                opened.directory.write_checkpoints({TopicPartition("t", 0): present(opened.logs[0]).offsets})
    (tmp_path / "metadata.log").write_bytes(earlier)
    damage_epochs(tmp_path, b"0\n1\n0 0\n")
    with Opened(tmp_path) as again:
        log = present(again.logs[0])
        assert (log.log_end_offset, again.epochs[0]) == (3, 3)
        assert log.epochs.entries == ((0, 0), (1, 1), (2, 2))


@pytest.mark.parametrize("epoch", [7, 2**31 - 2, 2**31 - 1, 99999999999])
@pytest.mark.parametrize("is_clean", [True, False])
def test_an_epoch_that_only_the_epochs_file_has_is_damage_of_the_file(
    tmp_path: Path, is_clean: bool, epoch: int
) -> None:
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        append(opened.logs[0])
        if is_clean:
            opened.stop_cleanly()
    damage_epochs(tmp_path, b"0\n1\n%d 0\n" % epoch)
    with Opened(tmp_path) as again:
        log = present(again.logs[0])
        assert (log.log_end_offset, log.epochs.entries) == (1, ((0, 0),))
        assert again.epochs[0] == (0 if is_clean else 1)


def test_after_a_clean_stop_no_batch_is_read_for_leader_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a log with an epochs file nor in an empty one, which has none."""
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        append(opened.logs[0])
        opened.stop_cleanly()
    reads: list[int] = []
    monkeypatch.setattr(
        file_records, "_pread", lambda fd, size_bytes, at: reads.append(at) or pread(fd, size_bytes, at)
    )
    with Opened(tmp_path) as again:
        assert [present(log).log_end_offset for log in again.logs] == [1, 0]
        assert reads == []


def damage_epochs(data_dir: Path, content: bytes | None) -> None:
    """Replace the epochs file of the first partition, or remove it."""
    path = data_dir / "t-0" / EPOCHS_NAME
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


def test_a_log_that_a_clean_stop_could_not_close_begins_another_leader_epoch(tmp_path: Path) -> None:
    """What readers had of it may not be on its disk: the start checks it, and may cut it."""
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        append(opened.logs[0])
        opened.stop_cleanly(but=TopicPartition("t", 0))
    with Opened(tmp_path) as again:
        assert again.directory.was_clean
        assert again.epochs == [1, 0]
        again.stop_cleanly()
    with Opened(tmp_path) as once_more:
        assert once_more.epochs == [1, 0]


def test_only_the_logs_of_the_directory_that_was_not_stopped_cleanly_begin_another_leader_epoch(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    config = config_of(first, data_dirs=f"{first},{second}")
    write_entries(first, TOPIC, config=config)
    with Opened(first, config) as opened:
        assert [log and log.local.directory.parent for log in opened.logs] == [first, second]
        opened.stop_cleanly(but=TopicPartition("t", 1))
    with Opened(first, config) as again:
        assert [directory.was_clean for directory in again.directories.live] == [True, False]
        assert again.epochs == [0, 1]
    with Opened(first, config) as killed:
        assert killed.epochs == [1, 2]


def test_a_log_that_was_moved_by_hand_begins_another_leader_epoch_only_if_it_was_not_closed(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    config = config_of(first, data_dirs=f"{first},{second}")
    write_entries(first, TOPIC, config=config)
    with Opened(first, config) as opened:
        opened.stop_cleanly(but=TopicPartition("t", 1))
    (first / "t-0").rename(second / "t-0")
    (second / "t-1").rename(first / "t-1")
    with Opened(first, config) as again:
        assert [log and log.local.directory.parent for log in again.logs] == [second, first]
        assert again.epochs == [0, 1]


def test_deletions_are_finished(tmp_path: Path) -> None:
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        append(opened.logs[0])
        commit(opened.metadata_log, [TopicDeleted(TOPIC.topic_id, "t", 2)])
    (tmp_path / "t-1" / "partition.metadata").unlink()
    (tmp_path / "other-0").mkdir()
    with Opened(tmp_path) as again:
        assert again.logs == []
        assert len(again.stored.deleted_paths) == 2
        assert again.metadata_log.state.deleted == {}
    assert sorted(path.name[:3] for path in tmp_path.glob("t-*")) == ["t-0", "t-1"]
    assert all(path.name.endswith("-delete") for path in tmp_path.glob("t-*"))
    assert (tmp_path / "other-0").exists()


def test_a_directory_with_another_topics_id_is_neither_deleted_nor_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        append(opened.logs[0])
        commit(opened.metadata_log, [TopicDeleted(bytes(16), "t", 2)])
    with Opened(tmp_path) as again:
        assert again.logs[0] is not None
    assert (tmp_path / "t-0").exists()
    other = TopicCreated("t", bytes(14) + b"\x01\x01", 2, {})
    with Opened(tmp_path) as opened:
        commit(opened.metadata_log, [other])
    with caplog.at_level(logging.CRITICAL), Opened(tmp_path) as again:
        assert again.logs == [None, None]
    assert "t-0 IS OFFLINE" in caplog.text


def test_producer_ids_that_a_log_knows_are_not_given_out(tmp_path: Path) -> None:
    write_entries(tmp_path, TOPIC)
    with Opened(tmp_path) as opened:
        append(opened.logs[1], producer=(4711, 0))
    with Opened(tmp_path) as again:
        assert again.metadata_log.state.next_producer_id == 4712


def test_settings_of_a_topic_count_over_those_of_the_broker(tmp_path: Path) -> None:
    write_entries(tmp_path, TopicCreated("t", bytes(16), 1, {"flush.ms": "5"}))
    with Opened(tmp_path) as opened:
        log = present(opened.logs[0])
        assert log.local.config == LogConfig(flush_ms=5)


def test_a_directory_in_use_is_refused_without_touching_it(tmp_path: Path) -> None:
    refuse_if_locked([tmp_path / "nowhere", tmp_path])
    with Opened(tmp_path) as opened:
        opened.directory.mark_clean({})
        with pytest.raises(DirectoryLocked, match=r"\.lock"):
            refuse_if_locked([tmp_path])
        with pytest.raises(DirectoryLocked):
            lock_and_read(config_of(tmp_path))
        assert (tmp_path / CLEAN_MARKER_NAME).exists()
    refuse_if_locked([tmp_path])


def test_the_node_id_of_a_directory_stays(tmp_path: Path) -> None:
    write_entries(tmp_path)
    with pytest.raises(DataDirectoryError, match="node 1"):
        lock_and_read(config_of(tmp_path, node_id="2"))
    write_entries(tmp_path)


def test_progress_is_reported_while_a_single_log_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmlog_broker.data_dirs.loader.PROGRESS_INTERVAL_S", 0.01)
    opening: Future[Log] = Future()
    reports: list[tuple[int, int, int]] = []

    def report(*progress: int) -> None:
        reports.append(progress)  # type: ignore[arg-type]
        loading.add_checked(100)
        if len(reports) == 3:
            opening.set_result(None)  # type: ignore[arg-type]

    loading = LoadingProgress(report)
    assert list(loading.wait([opening])) == [opening]
    assert reports[:3] == [(0, 1, 0), (0, 1, 100), (0, 1, 200)]
