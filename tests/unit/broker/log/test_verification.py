"""Verifying logs: `(write, damage, expect)`, on logs that were written here and on those that Kafka wrote."""

import os
import shutil
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.broker.log.log_files import batch_of, overwrite
from unit.broker.log.log_room import QUICK, LogRoom, make_batch
from warmlog_broker.log import verification
from warmlog_broker.log.checkpoints import pack_partition_metadata, write_offsets
from warmlog_broker.log.findings import MAX_FINDINGS_A_FILE, Report
from warmlog_broker.log.segment_verification import SegmentVerification, pause
from warmlog_broker.log.topic_partition import TopicPartition
from warmlog_broker.log.verification import Expectations, PartitionSummary, verify_data_directory, verify_partition
from warmlog_protocol.batch import CRC_START, encode_batch, placement_prefix, read_header, seal_batch
from warmlog_protocol.batch.header import HEADER_BYTES

SAMPLE = Path(__file__).parents[3] / "data" / "kafka-sample"
FLIGHTS, TRANSFERS = "flights-0", "transfers-0"
FIRST = "00000000000000000000"
PATIENT = pause


def verify(
    directory: Path, expectations: Expectations | None = None, *, pause: Callable[[], None] = lambda: None
) -> tuple[Report, PartitionSummary]:
    report = Report()
    summary = verify_partition(directory, expectations or Expectations(), report, pause=pause)
    return report, summary


def texts(report: Report) -> list[str]:
    return [str(finding) for finding in report.findings]


def only_text(report: Report) -> str:
    (text,) = texts(report)
    return text


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of what Kafka left."""
    return shutil.copytree(SAMPLE, tmp_path / "kafka", ignore=shutil.ignore_patterns("*.dump", "*.md"))


def room_in(root: Path) -> LogRoom:
    room = LogRoom(root)
    room.path("partition.metadata").write_bytes(pack_partition_metadata(UUID(int=7)))
    return room


@pytest.fixture
def room(tmp_path: Path) -> LogRoom:
    """A closed log of several segments, written here."""
    room = room_in(tmp_path)
    for number in range(12):
        room.now_ms += 10
        room.append(b"value", b"other", producer=(7, 0, 2 * number))
    room.flush()
    room.close()
    assert len(room.files(".log")) >= 3
    return room


# What is right


def test_what_kafka_left_is_clean(sample: Path) -> None:
    report = Report()
    verify_data_directory(sample, report)
    assert texts(report) == []
    assert (report.counts.partitions, report.counts.segments, report.counts.snapshots) == (2, 3, 4)
    assert report.counts.records == 8532 + 375
    summary = verify(sample / TRANSFERS)[1]
    assert (summary.next_offset, summary.open_transactions, summary.max_producer_id) == (375, {}, 6)


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
            assert summary.open_transactions == is_open
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
    must_stop = threading.Event()

    def append() -> None:
        for number in range(2_000):
            if must_stop.is_set():
                return
            room.append(b"%d" % number)

    writer = threading.Thread(target=append)
    writer.start()
    try:
        for _ in range(8):
            report, summary = verify(room.directory, pause=PATIENT)
            assert texts(report) == []
    finally:
        must_stop.set()
        writer.join()
    assert summary.next_offset > 3


def test_a_segment_that_goes_meanwhile_is_none(room: LogRoom) -> None:
    first = room.segment_path(0)
    report = Report(on_progress=lambda _: None)
    listing_is_over: list[int] = []

    class Vanishing(type(first)):  # type: ignore[misc]
        pass

    directory = room.directory
    original = os.scandir

    def scan_then_delete(path: Path) -> object:
        found = list(original(path))
        if not listing_is_over:
            listing_is_over.append(1)
            for file in directory.glob(f"{FIRST}*"):
                file.unlink()

        class Entries:
            def __enter__(self) -> list[os.DirEntry[str]]:
                return found

            def __exit__(self, *_: object) -> None:
                return None

        return Entries()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warmlog_broker.log.verification.os.scandir", scan_then_delete)
        verify_partition(directory, Expectations(has_dense_offsets=True), report, pause=lambda: None)
    assert texts(report) == []
    assert any("removed meanwhile" in note for note in report.notes)


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


# Side files


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
    assert any("expected entries for what lies behind position" in text for text in found)


def test_an_aborted_transaction_without_entry_is_found(sample: Path) -> None:
    path = sample / TRANSFERS / f"{FIRST}.txnindex"
    content = path.read_bytes()
    path.write_bytes(content[34:])
    text = only_text(verify(path.parent)[0])
    assert "producer_id=6, first_offset=2, last_offset=13" in text
    assert "would be read as committed" in text
    path.unlink()
    assert verify(path.parent)[0].finding_count == len(content) // 34


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
    assert summary.open_transactions
    assert all(offset < summary.next_offset for offset in summary.open_transactions.values())


def test_a_truncation_is_known_and_one_that_cannot_be_understood_is_found(room: LogRoom) -> None:
    room.open().truncate_to(20, room.now_ms)
    report, _ = verify(room.directory)
    assert not [text for text in texts(report) + report.notes if "truncation" in text]
    room.path("truncation").write_text("version: 0\nstate: cut\n")
    report, _ = verify(room.directory)
    (text,) = [text for text in texts(report) if "truncation" in text]
    assert "expected version 0" in text
