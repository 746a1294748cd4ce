"""A gap between rows is loss, unless Kafka may have left it: the log's mark says up to where."""

import errno
from pathlib import Path

import pytest

from unit.broker.storage.log_room import LogRoom, make_batch, read_batches
from warmlog_broker.storage.directory.partition_files import (
    GAPS_NAME,
    NO_GAPS,
    RESTART_POINT_NAME,
    ROW_GAPS_NAME,
    UNMARKED,
    Gaps,
    mark_row_gaps,
    note_gaps,
    read_gaps,
)
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.verify.partition import verify_partition
from warmlog_broker.storage.verify.report import Report
from warmlog_broker.storage.verify.segment import Expectations
from warmlog_protocol.batch import CRC_START, placement_prefix, read_header
from warmlog_protocol.errors import CorruptBatch


def is_read(log: Log) -> bool:
    """Whether a read at offset 1 passes over the gap."""
    try:
        return [batch.base_offset for batch in read_batches(log, 1, bound="log_end")] == [5]
    except CorruptBatch:
        return False


def is_verified(room: LogRoom) -> bool:
    report = Report()
    verify_partition(room.directory, Expectations(has_dense_offsets=True), report, pause=lambda: None)
    return not any("a gap" in str(finding) for finding in report.findings)


def mark(room: LogRoom, gaps: Gaps) -> None:
    if gaps.everywhere:
        note_gaps(room.directory)
    else:
        mark_row_gaps(room.directory, gaps.rows_up_to)


@pytest.fixture(params=["within a segment", "between two"])
def gapped(request: pytest.FixtureRequest, quick_path: Path) -> LogRoom:
    """Offsets 0 and 5 in rows, of a log that was created here."""
    room = LogRoom(quick_path)
    room.append(b"a", rows=True)
    if request.param == "between two":
        room.log.local.roll(room.now_ms, expected_next_offset=5)
    room.log.local.log_end_offset = 5
    room.append(b"b", rows=True)
    room.flush()
    return room


@pytest.mark.parametrize(
    ("gaps", "is_allowed"),
    [(NO_GAPS, False), (Gaps(rows_up_to=4), False), (Gaps(rows_up_to=5), True), (Gaps(everywhere=True), True)],
)
def test_a_gap_is_loss_unless_the_mark_allows_it(gapped: LogRoom, gaps: Gaps, is_allowed: bool) -> None:
    assert read_gaps(gapped.directory) == NO_GAPS
    mark(gapped, gaps)
    gapped.restart()
    assert gapped.log.local.gaps == gaps
    assert is_read(gapped.log) is is_allowed
    assert is_verified(gapped) is is_allowed
    gapped.path(RESTART_POINT_NAME).unlink()
    gapped.crash(recovery_point=6 if len(gapped.log.local.segments) == 1 else 3)
    assert (gapped.log.recovery_report.damage == []) is is_allowed
    assert is_read(gapped.log) is is_allowed


@pytest.mark.parametrize("gaps", [Gaps(rows_up_to=5), Gaps(everywhere=True)])
def test_a_gap_that_the_mark_allows_is_not_cut_where_the_recovery_point_is_lost(gapped: LogRoom, gaps: Gaps) -> None:
    mark(gapped, gaps)
    gapped.path(RESTART_POINT_NAME).unlink(missing_ok=True)
    gapped.crash(recovery_point=0)
    assert gapped.log.recovery_report.is_uneventful
    assert is_read(gapped.log)


def test_a_mark_that_cannot_be_written_costs_nothing_but_the_mark(
    gapped: LogRoom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    gapped.path(ROW_GAPS_NAME).unlink()
    gapped.close()
    monkeypatch.setattr("warmlog_broker.storage.recovery.loader.mark_row_gaps", full)
    gapped.open()
    assert read_gaps(gapped.directory) == UNMARKED
    assert is_read(gapped.log)


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("mark_bytes", [None, b"", b"version: 0\nrows_up_to: x\n"], ids=["none", "empty", "damaged"])
def test_what_a_log_without_a_mark_has_may_be_kafkas_and_what_comes_later_is_not(
    gapped: LogRoom, is_clean: bool, mark_bytes: bytes | None
) -> None:
    """As one of an earlier version, adopted by it after going back, or moved here by hand."""
    gapped.path(ROW_GAPS_NAME).unlink()
    if mark_bytes is not None:
        gapped.path(ROW_GAPS_NAME).write_bytes(mark_bytes)
    gapped.close()
    if not is_clean:
        gapped.stored = gapped.stored._replace(clean_end=None)
    assert is_verified(gapped)
    gapped.open()
    assert gapped.log.recovery_report.damage == []
    assert gapped.log.local.gaps == read_gaps(gapped.directory) == Gaps(rows_up_to=6)
    assert is_read(gapped.log)
    gapped.log.local.log_end_offset = 9
    gapped.append(b"later", rows=True)
    gapped.flush()
    for _ in range(2):
        with pytest.raises(CorruptBatch, match="offset 6 expected, offsets 9 to 9 found"):
            read_batches(gapped.log, 6, bound="log_end")
        gapped.close()
        gapped.open()
        assert read_gaps(gapped.directory) == Gaps(rows_up_to=6), "the mark that is there stays"
    assert not is_verified(gapped)


def test_columns_have_no_gaps_of_kafka(quick_path: Path) -> None:
    room = LogRoom(quick_path)
    room.append(b"a", rows=True)
    room.log.local.log_end_offset = 5
    room.append(b"b")
    room.path(ROW_GAPS_NAME).unlink()
    room.restart()
    assert room.log.local.gaps == Gaps(rows_up_to=6)
    assert not is_read(room.log)


def test_a_mark_is_nothing_to_earlier_versions(quick_path: Path) -> None:
    """They take any `offset-gaps` for gaps everywhere, and then old duplicates for batches that were compacted away."""
    room = LogRoom(quick_path)
    room.append(b"a", rows=True)
    for _ in range(2):
        assert not room.path(GAPS_NAME).exists()
        assert not room.log.local.may_have_gaps
        room.path(ROW_GAPS_NAME).unlink()
        room.restart()


def test_the_end_of_a_log_may_be_a_gap_of_kafka_up_to_the_mark(quick_path: Path) -> None:
    room = LogRoom(quick_path)
    room.append(b"a", rows=True)
    room.log.local.roll(room.now_ms, expected_next_offset=5)
    room.log.local.log_end_offset = 5
    for gaps, is_allowed in ((NO_GAPS, False), (Gaps(rows_up_to=5), True)):
        room.log.local.gaps = gaps
        if is_allowed:
            assert room.log.reader.read(1, 100, bound="log_end").next_offset == 5
        else:
            with pytest.raises(CorruptBatch, match="nothing found before offset 5"):
                room.log.reader.read(1, 100, bound="log_end")


def test_a_follower_takes_the_gaps_of_its_leader_over(quick_path: Path) -> None:
    room = LogRoom(quick_path)
    room.append(b"a", rows=True)
    batch = make_batch(b"b", rows=True)
    room.log.follower.append(placement_prefix(read_header(batch), 5, 0) + batch[CRC_START:], now_ms=room.now_ms)
    assert read_gaps(room.directory) == Gaps(everywhere=True)
    assert is_read(room.log)


@pytest.mark.parametrize(
    ("content", "gaps"),
    [
        (b"version: 0\n", Gaps(everywhere=True)),
        (b"version: 0\nrows_up_to: 17\n", Gaps(rows_up_to=17)),
        (b"version: 0\nrows_up_to: x\n", Gaps(everywhere=True)),
        (b"", Gaps(everywhere=True)),
    ],
)
def test_offset_gaps_means_what_it_did_and_needs_no_mark_beside_it(gapped: LogRoom, content: bytes, gaps: Gaps) -> None:
    gapped.path(ROW_GAPS_NAME).unlink()
    gapped.path(GAPS_NAME).write_bytes(content)
    gapped.restart()
    assert gapped.log.local.gaps == read_gaps(gapped.directory) == gaps
    assert is_read(gapped.log)
    assert not gapped.path(ROW_GAPS_NAME).exists()
    assert gapped.path(GAPS_NAME).read_bytes() == content
