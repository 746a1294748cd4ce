"""What `verify_partition` finds in indexes, snapshots, epochs and checkpoints."""

import os
import shutil
import struct
from pathlib import Path

import pytest

from truncating import truncate_to
from unit.broker.storage.log_files import overwrite
from unit.broker.storage.log_room import LogRoom
from unit.broker.storage.verify.verification_room import (
    FIRST,
    FLIGHTS,
    TRANSFERS,
    only_text,
    texts,
    verify,
)
from warmlog_broker.storage.directory.offset_checkpoint import write_offsets
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.verify.partition import verify_data_directory
from warmlog_broker.storage.verify.report import Report
from warmlog_broker.storage.verify.segment import Expectations
from warmlog_protocol.batch import CRC_START, encode_batch, placement_prefix, read_header


@pytest.mark.parametrize("kind", [".index", ".timeindex"])
def test_a_missing_index_is_found(room: LogRoom, kind: str) -> None:
    path = room.segment_path(0, kind)
    path.unlink()
    assert only_text(verify(room.directory)[0]) == f"{path}: expected an index of the log beside it, found no file"


def test_an_offset_index_entry_that_leads_elsewhere_is_found(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.index"
    offset, position = struct.unpack(">ii", path.read_bytes()[16:24])
    overwrite(path, 16, struct.pack(">ii", offset, position + 1))
    text = only_text(verify(path.parent)[0])
    assert f"{path}, offset {offset}: expected a batch at position {position + 1}" in text
    overwrite(path, 16, struct.pack(">ii", offset + 1, position))
    assert f"one that ends with offset {offset}" in only_text(verify(path.parent)[0])


def test_an_offset_index_entry_behind_the_log_is_found(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.index"
    with path.open("ab") as file:
        file.write(struct.pack(">ii", 900, 900_000))
    assert "the end of the log at 31041" in only_text(verify(path.parent)[0])


def test_index_entries_out_of_order_are_found(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.index"
    content = path.read_bytes()
    path.write_bytes(content[:8] + content[16:24] + content[8:16] + content[24:])
    assert "expected an entry after" in only_text(verify(path.parent)[0])


def test_wrong_times_in_the_time_index_are_found(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.timeindex"
    time_ms, offset = struct.unpack(">qi", path.read_bytes()[12:24])
    overwrite(path, 12, struct.pack(">qi", time_ms - 1, offset))
    assert f"found {time_ms} there, {time_ms} up to there" in only_text(verify(path.parent)[0])
    overwrite(path, 12, struct.pack(">qi", time_ms, offset))


def test_a_time_index_that_does_not_end_with_the_largest_time_is_found(room: LogRoom) -> None:
    path = room.segment_path(0, ".timeindex")
    os.truncate(path, path.stat().st_size - 12)
    assert f"{path}: expected a last entry with timestamp" in only_text(verify(room.directory)[0])


@pytest.mark.parametrize("kind", [".index", ".timeindex", ".txnindex"])
def test_an_index_of_half_entries_is_found(sample: Path, kind: str) -> None:
    path = sample / TRANSFERS / f"{FIRST}{kind}"
    os.truncate(path, path.stat().st_size - 1)
    found = texts(verify(path.parent)[0])
    assert any("multiple of" in text for text in found)


def test_a_padded_index_of_a_closed_segment_is_found(room: LogRoom) -> None:
    path = room.segment_path(0, ".index")
    os.truncate(path, path.stat().st_size + 80)
    assert "then zeros" in only_text(verify(room.directory)[0])


def test_a_stale_index_is_found(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    batches = [encode_batch([bytes(300_000)], timestamps_ms=offset) for offset in range(10)]
    placed = [
        placement_prefix(read_header(batch), offset, 0) + batch[CRC_START:] for offset, batch in enumerate(batches)
    ]
    (directory / f"{FIRST}.log").write_bytes(b"".join(placed))
    (directory / f"{FIRST}.index").write_bytes(struct.pack(">ii", 1, len(placed[0])))
    found = texts(verify(directory, Expectations(index_interval_bytes=4096))[0])
    assert any("expected entries after position" in text for text in found)


def test_an_aborted_transaction_without_entry_is_found(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.txnindex"
    content = path.read_bytes()
    path.write_bytes(content[34:])
    text = only_text(verify(path.parent)[0])
    assert "producer_id=6, first_offset=2, last_offset=13" in text
    assert "would be read as committed" in text
    path.unlink()
    assert verify(path.parent)[0].finding_count == len(content) // 34


def test_an_abort_above_the_recovery_point_may_lack_its_entry_since_the_next_start_adds_it(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.txnindex"
    content = path.read_bytes()
    path.write_bytes(content[:-34])
    last = int.from_bytes(content[-34:][18:26], "big")
    assert texts(verify(path.parent, Expectations(recovery_point=last))[0]) == []
    assert f"offset {last}: " in only_text(verify(path.parent, Expectations(recovery_point=last + 1))[0])


def test_an_entry_without_aborted_transaction_is_found(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.txnindex"
    with path.open("ab") as file:
        file.write(struct.pack(">hqqqq", 0, 6, 370, 374, 375))
    assert "expected a transaction that was aborted there" in only_text(verify(path.parent)[0])


def test_a_wrong_last_stable_offset_is_found(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.txnindex"
    overwrite(path, 26, struct.pack(">q", 1))
    assert "last_stable_offset=0), found AbortedTxn" in only_text(verify(path.parent)[0])


def test_a_damaged_snapshot_and_one_that_tells_something_else_are_found(sample: Path) -> None:
    path = sample / FLIGHTS / "00000000000000014000.snapshot"
    content = path.read_bytes()
    overwrite(path, 20, b"\xff")
    assert "CRC" in only_text(verify(path.parent)[0])
    shutil.copy(sample / FLIGHTS / "00000000000000011639.snapshot", path)
    assert path.read_bytes() != content
    found = texts(verify(path.parent)[0])
    assert found
    assert all(text.startswith(f"{path}: expected producer") for text in found)


def test_a_snapshot_above_the_end_and_an_index_without_log_are_found(sample: Path) -> None:
    directory = sample / TRANSFERS
    shutil.copy(directory / "00000000000000000375.snapshot", directory / "00000000000000000400.snapshot")
    shutil.copy(directory / f"{FIRST}.index", directory / "00000000000000000500.index")
    found = texts(verify(directory)[0])
    assert any(
        "00400.snapshot, offset 400: expected a snapshot at or below the end of the log, 375" in t for t in found
    )
    assert any("00500.index: expected a log file with the same base offset" in t for t in found)


def test_damaged_epochs_and_metadata_are_found(sample: Path) -> None:
    directory = sample / TRANSFERS
    (directory / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n")
    (directory / "partition.metadata").write_text("version: 0\n")
    found = texts(verify(directory)[0])
    assert len(found) == 2
    (directory / "partition.metadata").unlink()
    assert "expected the topic's id, found no file" in texts(verify(directory)[0])[1]


def test_checkpoints_that_are_ahead_of_their_log_are_found(sample: Path) -> None:
    key = TopicPartition("transfers", 0)
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"):
        write_offsets(sample / name, {key: 376, TopicPartition("gone", 3): 5})
    report = Report()
    verify_data_directory(sample, report)
    assert [finding.offset for finding in report.findings] == [376, 376, 376]
    assert "expected an offset of transfers-0, which ends at 375, found 376" in str(report.findings[0])
    (sample / "replication-offset-checkpoint").write_text("7\n")
    report = Report()
    verify_data_directory(sample, report)
    assert any("replication-offset-checkpoint: expected a checkpoint" in text for text in texts(report))


def test_an_open_transaction_is_told(sample: Path) -> None:
    directory = sample / TRANSFERS
    path = directory / f"{FIRST}.log"
    content, position = path.read_bytes(), 0
    while (header := read_header(content, position)).last_offset < 43:
        position += header.size_bytes
    os.truncate(path, position)
    summary = verify(directory)[1]
    assert summary.producers.states.transactions.open
    assert all(offset < summary.next_offset for offset in summary.producers.states.transactions.open.values())


def test_a_truncation_is_known_and_one_that_cannot_be_understood_is_found(room: LogRoom) -> None:
    truncate_to(room.open(), 20, room.now_ms)
    report, _ = verify(room.directory)
    assert not [text for text in texts(report) + report.notes if "truncation" in text]
    room.path("truncation").write_text("version: 0\nstate: cut\n")
    report, _ = verify(room.directory)
    (text,) = [text for text in texts(report) if "truncation" in text]
    assert "expected version 0" in text
