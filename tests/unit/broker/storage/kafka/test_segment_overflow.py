"""Segments of old Kafkas whose offsets are too far apart for their indexes are split when their copy is recovered."""

from pathlib import Path
from uuid import uuid4

import pytest

from unit.broker.storage.log_files import append, open_segment
from unit.broker.storage.log_room import read_values
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import LogOffsets, StoredState
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.index.abstract_index import MAX_RELATIVE_OFFSET
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.kafka.adoption import copy_partition, recover_copy, verify_copy
from warmlog_broker.storage.kafka.kafka_directory import KafkaPartition
from warmlog_broker.storage.log.log import Log

KEY = TopicPartition("flights", 0)
FAR = MAX_RELATIVE_OFFSET + 2


def write_log(directory: Path, *offsets: tuple[int, ...]) -> KafkaPartition:
    """One .log with the batches of all `offsets`, the later ones too far away, and an active one after it."""
    directory.mkdir()
    parts = []
    for some in offsets:
        segment = open_segment(directory, some[0])
        append(segment, *some)
        parts.append(segment.path.read_bytes())
        segment.delete()
    (directory / "00000000000000000000.log").write_bytes(b"".join(parts))
    (directory / f"{FAR + 2:020d}.log").write_bytes(b"")
    return KafkaPartition(KEY, directory, FAR + 2, 0, FAR + 2)


def open_log(directory: Path) -> Log:
    return Log.open(
        directory,
        key=KEY,
        config=LogConfig(cleanup_policy="compact"),
        open_files=OpenFiles(),
        now_ms=1,
        stored=StoredState(LogOffsets(FAR + 2, 0, FAR + 2), None),
    )


@pytest.mark.parametrize("is_linked", [False, True], ids=["copied", "linked"])
def test_a_segment_whose_offsets_are_too_far_apart_is_split(tmp_path: Path, is_linked: bool) -> None:
    """RC-11"""
    source = write_log(tmp_path / "kafka", (0, 1, 2), (FAR, FAR + 1))
    before = (source.path / "00000000000000000000.log").read_bytes()
    target = tmp_path / "copy"
    copy_partition(source, target, uuid4(), is_linked=is_linked)
    remarks = recover_copy(target, source, now_ms=1)
    assert "was split in 2" in remarks[0]
    assert (source.path / "00000000000000000000.log").read_bytes() == before
    assert verify_copy(source, target, linked_files=0).summary.base_offsets == [0, FAR, FAR + 2]
    assert [path.name for path in target.iterdir() if path.name.endswith((".cleaned", ".deleted", ".swap"))] == []
    log = open_log(target)
    assert len(read_values(log)) == 5
    assert (log.log_start_offset, log.log_end_offset) == (0, FAR + 2)
    log.close()


def test_a_segment_that_is_only_far_from_the_next_one_is_not_split(tmp_path: Path) -> None:
    """RC-11"""
    source = write_log(tmp_path / "kafka", (0, 1, 2))
    target = tmp_path / "copy"
    copy_partition(source, target, uuid4(), is_linked=False)
    assert "was split" not in str(recover_copy(target, source, now_ms=1))
    assert source.base_offsets() == KafkaPartition(KEY, target, None, None, None).base_offsets()


def test_a_damaged_segment_is_left_to_recovery(tmp_path: Path) -> None:
    source = write_log(tmp_path / "kafka", (0, 1, 2), (FAR, FAR + 1))
    target = tmp_path / "copy"
    copy_partition(source, target, uuid4(), is_linked=False)
    path = target / "00000000000000000000.log"
    damaged = bytearray(path.read_bytes())
    damaged[8:12] = b"\xff\xff\xff\xff"
    path.write_bytes(damaged)
    assert "was split" not in str(recover_copy(target, source, now_ms=1))
    assert path.read_bytes() == damaged
