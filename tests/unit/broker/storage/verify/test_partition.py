"""Verifying logs: `(write, damage, expect)`, on logs that were written here and on those that Kafka wrote."""

import os
import shutil
import tempfile
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truncating import truncate_to
from unit.broker.storage.log_files import batch_of, overwrite
from unit.broker.storage.log_room import QUICK, LogRoom, make_batch
from unit.broker.storage.verify.verification_room import (
    FIRST,
    FLIGHTS,
    PATIENT,
    TRANSFERS,
    only_text,
    room_in,
    texts,
    verify,
)
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_broker.storage.verify import partition as verification
from warmlog_broker.storage.verify.partition import verify_data_directory, verify_partition
from warmlog_broker.storage.verify.report import MAX_FINDINGS_A_FILE, Report
from warmlog_broker.storage.verify.segment import Expectations, SegmentVerification
from warmlog_protocol.batch import BatchHeader, read_header, seal_batch
from warmlog_protocol.batch.header import HEADER_BYTES

# What is right


def test_what_kafka_left_is_clean(sample: Path) -> None:
    report = Report()
    verify_data_directory(sample, report)
    assert texts(report) == []
    assert (report.counts.partitions, report.counts.segments, report.counts.snapshots) == (2, 3, 4)
    assert report.counts.records == 8532 + 375
    summary = verify(sample / TRANSFERS)[1]
    assert (summary.next_offset, summary.producers.max_producer_id) == (375, 6)
    assert summary.producers.states.transactions.open == {}


def test_a_log_that_was_closed_is_clean(room: LogRoom) -> None:
    report, summary = verify(room.directory, Expectations(recovery_point=24, has_dense_offsets=True))
    assert texts(report) == []
    assert (summary.next_offset, summary.max_leader_epoch) == (24, 0)
    assert summary.base_offsets == sorted(summary.base_offsets)


def test_a_log_in_use_is_clean(room: LogRoom) -> None:
    room.open()
    room.fill(5)
    assert texts(verify(room.directory)[0]) == []


def test_a_preallocated_log_in_use_is_clean(tmp_path: Path) -> None:
    room = room_in(tmp_path)
    room.set_config(preallocate=True)
    room.close()
    room.open()
    room.fill(9)
    report, summary = verify(room.directory)
    assert texts(report) == []
    assert summary.next_offset == 9


def test_nothing_is_written_or_made(sample: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sample.rglob("*")}
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    verify_data_directory(sample, Report())
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sample.rglob("*")} == before
    for path in before:
        path.chmod(0o755 if path.is_dir() else 0o644)


@given(values=st.lists(st.binary(max_size=200), min_size=1, max_size=30), restart_at=st.integers(0, 29))
def test_whatever_is_appended_verifies(values: list[bytes], restart_at: int) -> None:
    with tempfile.TemporaryDirectory(dir=QUICK) as directory:
        room = room_in(Path(directory))
        for number, value in enumerate(values):
            room.append(value, producer=(1, 0, number))
            if number == restart_at:
                room.flush()
                room.restart()
        room.flush()
        report, summary = verify(room.directory)
        assert texts(report) == []
        assert summary.next_offset == len(values)


@given(steps=st.lists(st.tuples(st.integers(0, 2), st.sampled_from("dddca")), max_size=60))
def test_whatever_transactions_do_verifies(steps: list[tuple[int, str]]) -> None:
    """Three producers write, commit and abort."""
    with tempfile.TemporaryDirectory(dir=QUICK) as directory:
        room = room_in(Path(directory))
        sequences, is_open = [0, 0, 0], dict[int, int]()
        for producer, step in steps:
            if step == "d":
                placed = room.append_in_transaction(b"value", producer=(producer, 0, sequences[producer]))
                is_open.setdefault(producer, placed.first_offset)
                sequences[producer] += 1
            elif producer in is_open:
                room.end_transaction(producer, commits=step == "c")
                del is_open[producer]
        room.flush()
        for _ in range(2):
            report, summary = verify(room.directory)
            assert texts(report) == []
            assert summary.producers.states.transactions.open == is_open
            room.restart()


# Damage of the log


def test_a_flipped_bit_is_found_with_its_place(room: LogRoom) -> None:
    path = room.segment_path(0)
    first, second = (read_header(path.read_bytes(), at) for at in (0, read_header(path.read_bytes()).size_bytes))
    overwrite(path, first.size_bytes + second.size_bytes - 1, b"X")
    report, summary = verify(room.directory)
    finding = next(finding for finding in report.findings if finding.path == str(path))
    assert (finding.position, finding.offset) == (first.size_bytes, 2)
    assert "CRC" in finding.found
    assert f"{second.size_bytes} bytes cannot be read" in finding.found
    assert {finding.path for finding in report.findings} == {str(path)}
    assert summary.next_offset == 24


@pytest.mark.parametrize("at", range(HEADER_BYTES))
def test_a_flipped_bit_anywhere_in_a_header_is_found(room: LogRoom, at: int) -> None:
    path = room.segment_path(0)
    content = bytearray(path.read_bytes())
    position = read_header(content).size_bytes
    content[position + at] ^= 1
    path.write_bytes(content)
    report, _ = verify(room.directory, Expectations(recovery_point=24, has_dense_offsets=True))
    assert report.findings


def test_a_body_that_is_malformed_under_a_valid_crc_is_found(room: LogRoom) -> None:
    path = room.segment_path(0)
    content = path.read_bytes()
    header = read_header(content)
    body = bytearray(content[HEADER_BYTES : header.size_bytes])
    body[0] = 0xF0  # columns that do not exist
    path.write_bytes(seal_batch(header, bytes(body)) + content[header.size_bytes :])
    text = only_text(verify(room.directory)[0])
    assert f"{path}, position 0, offset 0: expected 2 records, found batch at offsets 0 to 1" in text


def test_a_magic_that_does_not_fit_the_body_is_found(room: LogRoom) -> None:
    path = room.segment_path(0)
    content = bytearray(path.read_bytes())
    content[16] ^= 1
    path.write_bytes(content)
    findings = verify(room.directory)[0].findings
    assert any("magic 2, a body of the other format" in str(finding) for finding in findings)


@pytest.mark.parametrize("change", [1, -1])
def test_a_max_timestamp_that_is_not_that_of_the_records_is_found(room: LogRoom, change: int) -> None:
    path = room.segment_path(0)
    content = path.read_bytes()
    header = read_header(content)
    wrong = header._replace(max_timestamp_ms=header.max_timestamp_ms + change)
    path.write_bytes(seal_batch(wrong, content[HEADER_BYTES : header.size_bytes]) + content[header.size_bytes :])
    found = texts(verify(room.directory)[0])
    assert any(f"expected max timestamp {header.max_timestamp_ms}, of its records" in text for text in found)


def test_offsets_that_belong_into_another_segment_are_found(room: LogRoom) -> None:
    path = room.segment_path(0)
    stray = batch_of(["x"], offset=20)
    with path.open("ab") as file:
        file.write(stray)
    found = texts(verify(room.directory)[0])
    assert any(text.startswith(f"{path}, ") and "offset 20: expected offsets from 0 to" in text for text in found)


def test_a_missing_segment_is_a_gap_and_damage_where_offsets_are_dense(room: LogRoom) -> None:
    missing = room.files(".log")[1]
    for path in room.directory.glob(f"{missing[:20]}*"):
        path.unlink()
    report, _ = verify(room.directory)
    assert report.counts.offset_gaps == 1
    assert all(".snapshot: expected producer 7" in text for text in texts(report))
    found = texts(verify(room.directory, Expectations(has_dense_offsets=True))[0])
    assert sum(": a gap" in text for text in found) == 1


def test_a_leader_epoch_that_goes_back_and_one_that_no_file_knows_are_found(tmp_path: Path) -> None:
    room = room_in(tmp_path)
    room.leader_epoch = 3
    room.fill(2)
    room.close()
    path = room.segment_path(0)
    batches = [batch_of([f"{offset}"], offset=offset, leader_epoch=epoch) for offset, epoch in enumerate((3, 2, 4))]
    path.write_bytes(b"".join(batches))
    found = texts(verify(room.directory, Expectations(recovery_point=3))[0])
    assert any("offset 1: expected leader epoch 3 or a later one, found 2" in text for text in found)
    assert any("offset 2: expected leader epoch 3, as leader-epoch-checkpoint says, found 4" in text for text in found)


def test_findings_of_one_file_are_bounded(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    batches = [batch_of(["x"], offset=offset, leader_epoch=offset == 0) for offset in range(MAX_FINDINGS_A_FILE + 50)]
    (directory / f"{FIRST}.log").write_bytes(b"".join(batches))
    report, _ = verify(directory)
    assert report.suppressed == {str(directory / f"{FIRST}.log"): 49}
    assert report.finding_count == MAX_FINDINGS_A_FILE + 49 + 1  # and partition.metadata


# The end of the newest segment


def test_a_torn_end_is_a_finding(room: LogRoom) -> None:
    path = room.path(room.files(".log")[-1])
    os.truncate(path, path.stat().st_size - 3)
    pauses: list[int] = []
    report, _ = verify(room.directory, pause=lambda: pauses.append(1))
    assert pauses
    assert f"{path}, position" in texts(report)[0]
    assert "are left" in texts(report)[0]


def test_a_batch_that_is_being_appended_is_none(room: LogRoom) -> None:
    room.open()
    room.append(b"last")
    path = room.path(room.files(".log")[-1])
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 3)
    report, _ = verify(room.directory, pause=lambda: overwrite(path, len(whole) - 3, whole[-3:]))
    assert texts(report) == []


def test_a_batch_that_is_taken_back_is_none(room: LogRoom) -> None:
    room.open()
    path = room.path(room.files(".log")[-1])
    size_bytes = path.stat().st_size
    overwrite(path, size_bytes, make_batch(b"x")[:-5])
    report, _ = verify(room.directory, pause=lambda: os.truncate(path, size_bytes))
    assert texts(report) == []


def test_a_log_that_is_appended_to_all_the_time_is_clean(tmp_path: Path) -> None:
    room = room_in(tmp_path)
    room.fill(3)
    must_stop, has_begun = threading.Event(), threading.Event()

    def append() -> None:
        for number in range(2_000):
            if must_stop.is_set():
                return
            room.append(b"%d" % number)
            has_begun.set()

    writer = threading.Thread(target=append)
    writer.start()
    try:
        assert has_begun.wait(25)
        for _ in range(8):
            report, summary = verify(room.directory, pause=PATIENT)
            assert texts(report) == []
    finally:
        must_stop.set()
        writer.join()
    assert summary.next_offset > 3


def test_a_segment_that_goes_meanwhile_is_none(room: LogRoom) -> None:
    report = Report(on_progress=lambda _: None)
    directory, original = room.directory, os.scandir
    removed = list(directory.glob(f"{FIRST}*"))

    def scan_then_delete(path: Path) -> object:
        found = list(original(path))
        for file in removed:
            file.unlink(missing_ok=True)
        return nullcontext(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warmlog_broker.storage.verify.partition.os.scandir", scan_then_delete)
        verify_partition(directory, Expectations(has_dense_offsets=True), report, pause=lambda: None)
    assert texts(report) == []
    assert any("removed meanwhile" in note for note in report.notes)


def test_a_log_that_a_follower_cuts_after_its_files_were_listed_is_no_damage(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, original = room.open(), os.scandir

    def scan_then_cut(path: Path) -> object:
        found = list(original(path))
        truncate_to(log, 11, room.now_ms)
        return nullcontext(found)

    monkeypatch.setattr("warmlog_broker.storage.verify.partition.os.scandir", scan_then_cut)
    report, walk = verify(room.directory)
    assert texts(report) == []
    assert walk.next_offset == 10


@pytest.mark.parametrize("following", [b"", bytes(1000)])
def test_a_log_that_a_follower_cuts_while_it_is_read_is_no_damage(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch, following: bytes
) -> None:
    path = room.path(room.files(".log")[-1])

    class CutWhileItIsRead(SegmentVerification):
        def _on_batch(self, records: FileRecords, header: BatchHeader, position: int) -> None:
            if self.is_newest:
                os.truncate(path, 0)
                overwrite(path, 0, following)
            super()._on_batch(records, header, position)

    monkeypatch.setattr(verification, "SegmentVerification", CutWhileItIsRead)
    report, walk = verify(room.directory)
    assert texts(report) == []
    assert report.notes == [f"{path}: cut meanwhile"]
    assert not walk.is_end_known, "checkpoints were read before, and may be above it"


def test_an_index_that_is_trimmed_meanwhile_because_its_segment_rolls_is_none(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = room.segment_path(0, ".index")
    trimmed = path.read_bytes()
    path.write_bytes(trimmed + bytes(80))

    class LookedAtWhileItRolls(SegmentVerification):
        def run(self) -> None:
            super().run()
            os.truncate(path, len(trimmed))

    monkeypatch.setattr(verification, "SegmentVerification", LookedAtWhileItRolls)
    assert texts(verify(room.directory)[0]) == []


def test_zeros_that_are_cut_off_while_they_are_read_because_the_segment_rolls_are_none(
    room: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = room.path(room.files(".log")[-1])
    size_bytes = path.stat().st_size
    overwrite(path, size_bytes, bytes(1000))
    find_end = FileRecords.end_without_zeros

    def find_end_while_it_rolls(records: FileRecords, start: int) -> int:
        os.truncate(path, size_bytes)
        return find_end(records, start)

    monkeypatch.setattr(FileRecords, "end_without_zeros", find_end_while_it_rolls)
    assert texts(verify(room.directory)[0]) == []


def test_a_segment_that_is_being_removed_file_by_file_is_none(room: LogRoom) -> None:
    room.segment_path(0).unlink()
    left = [room.segment_path(0, kind) for kind in (".index", ".timeindex")]
    assert all(path.exists() for path in left)
    report, _ = verify(room.directory, pause=lambda: [path.unlink(missing_ok=True) for path in left] and None)
    assert texts(report) == []


def test_a_snapshot_below_the_first_segment_is_not_compared_with_producers_of_later(sample: Path) -> None:
    directory = sample / FLIGHTS
    for number in (0, 2724):
        for path in directory.glob(f"{number:020d}.*"):
            if path.suffix != ".snapshot":
                path.unlink()
    shutil.copy(directory / f"{11639:020d}.snapshot", directory / f"{2724:020d}.snapshot")
    assert texts(verify(directory)[0]) == []
