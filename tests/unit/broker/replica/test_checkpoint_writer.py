"""Checkpoints of one data directory: what they say of a partition that is moving away."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from errno import ENOSPC
from pathlib import Path
from unittest.mock import Mock

import pytest

from unit.broker.conftest import NOW_MS, MakePartition
from warmlog_broker.replica.flusher import CheckpointWriter
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.directory.data_dir import (
    LOG_STARTS_NAME,
    RECOVERY_POINTS_NAME,
    DataDirectory,
    LogOffsets,
)
from warmlog_broker.storage.directory.offset_checkpoint import read_offsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.log.log_copy import LogCopy, make_directory
from warmlog_protocol.messages import ACKS_LEADER
from wire_client import batch_of


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    directory = DataDirectory.lock(tmp_path)
    yield directory
    directory.close()


async def test_the_old_directory_is_told_what_was_given_up_and_not_what_is_flushed_in_the_new_one(
    tmp_path: Path, directory: DataDirectory, make_partition: MakePartition
) -> None:
    """A crash before the move is decided finds the old files, of which that may not be true."""
    partition = make_partition()
    with ThreadPoolExecutor(1) as threads:
        writer = CheckpointWriter(directory, threads, {partition})
        await switched(partition, writer, tmp_path)
        assert read_offsets(tmp_path / RECOVERY_POINTS_NAME) == {partition.key: 0}
        assert read_offsets(tmp_path / LOG_STARTS_NAME) == {partition.key: 1}
        partition.complete_switch()
        writer.note([partition])
        await writer.write()
        assert read_offsets(tmp_path / RECOVERY_POINTS_NAME) == {partition.key: 1}


async def test_a_move_that_fails_after_the_switch_leaves_the_old_directory_what_is_true_of_it(
    tmp_path: Path, directory: DataDirectory, make_partition: MakePartition
) -> None:
    partition = make_partition()
    with ThreadPoolExecutor(1) as threads:
        writer = CheckpointWriter(directory, threads, {partition})
        await switched(partition, writer, tmp_path)
        partition.take_offline("the metadata log cannot be written")
        writer.note([partition])
        await writer.write()
        assert read_offsets(tmp_path / RECOVERY_POINTS_NAME) == {partition.key: 0}
        assert read_offsets(tmp_path / LOG_STARTS_NAME) == {partition.key: 1}


async def test_what_is_kept_for_a_move_is_written_by_the_attempt_after_one_that_failed(
    tmp_path: Path, directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move goes on after the second attempt, and relies on it."""
    key = TopicPartition("events", 0)
    with ThreadPoolExecutor(1) as threads:
        writer = CheckpointWriter(directory, threads, {})
        writer.keep(key, LogOffsets(5, 3, 5, 0))
        with monkeypatch.context() as patched:
            patched.setattr(DataDirectory, "write_checkpoints", Mock(side_effect=OSError(ENOSPC, "no space")))
            with pytest.raises(OSError, match="no space"):
                await writer.write()
        await writer.write()
        assert read_offsets(tmp_path / LOG_STARTS_NAME) == {key: 3}


async def switched(partition: Partition, writer: CheckpointWriter, path: Path) -> None:
    """Has `partition`, with a record that is flushed in the copy alone and given up, switch to a copy."""
    writer.note([partition])
    await writer.write()
    partition.append(batch_of([b"not flushed here"], timestamp_ms=NOW_MS), ACKS_LEADER, None, now_ms=NOW_MS)
    (path / "other").mkdir()
    copy = LogCopy.begin(partition.log, make_directory(partition.log, path / "other"))
    log = copy.finish(NOW_MS)
    partition.begin_move()
    partition.switch_to(log)
    copy.sync()
    log.bounds.copied_up_to(1)
    log.bounds.raise_high_watermark(1)
    log.retention.delete_records(1)
    writer.note([partition])
    await writer.write()
