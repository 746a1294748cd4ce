"""After a crash: write, damage, recover, expect; then append again."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from unit.broker.storage import log_files
from unit.broker.storage.recovery_room import place_of, recover
from unit.broker.storage.time_lookups import record_in
from warmlog_broker.storage.recovery.recovery import RecoveryReport, recover_segment
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_protocol.batch import encode_batch, placement_prefix, read_header
from warmlog_protocol.errors import CorruptBatch


def crashed(segment: LogSegment) -> LogSegment:
    """The segment as a broker finds it that was killed: nothing trimmed, nothing finished."""
    segment.close_handles()
    return log_files.open_segment(
        segment.directory, segment.base_offset, index_interval_bytes=segment.indexes.config.index_interval_bytes
    )


def kept_beside(segment: LogSegment) -> Path:
    return segment.path.with_name(f"{segment.path.name}.tail.cut")


def expect_offsets(segment: LogSegment, *offsets: int) -> None:
    assert [log_files.read_offsets(segment, offset) for offset in offsets] == [[offset] for offset in offsets]
    last = segment.lookup.last_before(1 << 40)
    assert (None if last is None else last.last_offset) == (offsets[-1] if offsets else None)


def test_an_undamaged_segment_loses_nothing(tmp_path: Path) -> None:
    segment = log_files.open_segment(tmp_path)
    log_files.append(segment, *range(20))
    size_bytes = segment.size_bytes
    segment = crashed(segment)
    assert recover(segment) == RecoveryReport(checked_bytes=size_bytes, checked_batches=20)
    assert segment.size_bytes == size_bytes
    assert not kept_beside(segment).exists()
    expect_offsets(segment, *range(20))
    log_files.append(segment, 20)
    expect_offsets(segment, *range(21))


def test_an_empty_segment_is_recovered_too(tmp_path: Path) -> None:
    segment = crashed(log_files.open_segment(tmp_path, 7))
    assert recover(segment) == RecoveryReport()
    assert segment.size_bytes == 0
    log_files.append(segment, 7, 8)
    expect_offsets(segment, 7, 8)


def test_recovered_indexes_equal_those_that_were_written(tmp_path: Path) -> None:
    written = tmp_path / "written"
    written.mkdir()
    segment = log_files.open_segment(written, index_interval_bytes=250, max_index_bytes=4000)
    chance = random.Random(1)
    for offset in range(100):
        log_files.append(segment, offset, value="x" * chance.randrange(200), timestamp_ms=chance.randrange(1000))
    segment.close()
    expected = {path.name: path.read_bytes() for path in written.iterdir()}
    for path in list(written.glob("*index")):
        path.write_bytes(chance.randbytes(5000))
    segment = log_files.open_segment(written, index_interval_bytes=250, max_index_bytes=4000)
    recover(segment)
    segment.close()
    assert {path.name: path.read_bytes() for path in written.iterdir()} == expected


def test_nonsense_in_an_index_does_not_matter(tmp_path: Path) -> None:
    for kind in ("index", "timeindex"):
        directory = tmp_path / kind
        directory.mkdir()
        segment = log_files.open_segment(directory, max_index_bytes=4000)
        log_files.append(segment, *range(100))
        segment = crashed(segment)
        log_files.overwrite(directory / f"{0:020d}.{kind}", 5, b"nonsense" * 20)
        recover(segment)
        for offset in range(100):
            assert log_files.read_offsets(segment, offset) == [offset]
            assert record_in(segment, 10 * offset, 0) == (10 * offset, offset, 0)


def cut_file(segment: LogSegment) -> None:
    os.truncate(segment.path, segment.size_bytes - 1)


def cut_file_in_header(segment: LogSegment) -> None:
    os.truncate(segment.path, segment.size_bytes - segment.size_bytes // 10 + 40)


def zero_last_batch(segment: LogSegment) -> None:
    log_files.overwrite(segment.path, 9 * segment.size_bytes // 10, bytes(segment.size_bytes // 10))


def repeat_offset(segment: LogSegment) -> None:
    log_files.overwrite(segment.path, 9 * segment.size_bytes // 10, (8).to_bytes(8, "big"))


def offset_below_base(segment: LogSegment) -> None:
    log_files.overwrite(segment.path, 9 * segment.size_bytes // 10, (3).to_bytes(8, "big"))


def offset_too_far(segment: LogSegment) -> None:
    log_files.overwrite(segment.path, 9 * segment.size_bytes // 10, (100 + 2**31).to_bytes(8, "big"))


def claim_a_gigabyte(segment: LogSegment) -> None:
    log_files.overwrite(segment.path, 9 * segment.size_bytes // 10 + 8, (10**9).to_bytes(4, "big"))


def claim_less(segment: LogSegment) -> None:
    log_files.overwrite(segment.path, 9 * segment.size_bytes // 10 + 8, (60).to_bytes(4, "big"))


DAMAGES: list[Callable[[LogSegment], None]] = [
    cut_file,
    cut_file_in_header,
    zero_last_batch,
    repeat_offset,
    offset_below_base,
    offset_too_far,
    claim_a_gigabyte,
    claim_less,
]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("value_bytes", [1, 6000])
def test_a_torn_last_batch_is_cut_and_kept_aside(
    damage: Callable[[LogSegment], None], value_bytes: int, tmp_path: Path
) -> None:
    segment = log_files.open_segment(tmp_path, 5)
    log_files.append(segment, *range(5, 15), value="x" * value_bytes)
    size = segment.size_bytes // 10
    damage(segment)
    segment = crashed(segment)
    rest = segment.path.read_bytes()[9 * size :]
    report = recover(segment)
    assert segment.size_bytes == segment.path.stat().st_size == 9 * size
    assert report.cut_bytes == len(rest)
    (reason,) = report.cut_reasons
    assert reason.startswith(f"{segment.path}: no valid batch at position {9 * size}: ")
    kept = kept_beside(segment)
    if damage is zero_last_batch:
        assert report.kept_aside == []
        assert not kept.exists()
    else:
        assert report.kept_aside == [kept]
        assert kept.read_bytes() == rest.rstrip(b"\0")
    log_files.append(segment, 14, 15)
    expect_offsets(segment, *range(5, 16))


def test_a_damaged_large_batch_is_noticed(tmp_path: Path) -> None:
    segment = log_files.open_segment(tmp_path)
    log_files.append(segment, 0)
    valid_bytes = segment.size_bytes
    large = encode_batch([os.urandom(9_000_000)], timestamps_ms=7)
    segment.append(1, 7, placement_prefix(read_header(large), 1, 0), large[21:])
    large_bytes = segment.size_bytes - valid_bytes
    log_files.overwrite(segment.path, valid_bytes + 8_999_000, b"12345678")
    assert recover(segment).cut_bytes == large_bytes
    assert segment.size_bytes == valid_bytes


def test_what_is_cut_has_no_index_entry(tmp_path: Path) -> None:
    segment = log_files.open_segment(tmp_path)
    log_files.append(segment, *range(10))
    log_files.overwrite(segment.path, 6 * segment.size_bytes // 10 + 30, b"xx")
    recover(segment)
    expect_offsets(segment, *range(6))
    index = segment.indexes.for_offsets()
    assert index is not None
    assert index.last_offset == 5


def test_damage_that_is_stepped_over_stays_and_what_lies_behind_it_is_reachable(tmp_path: Path) -> None:
    segment = log_files.open_segment(tmp_path, index_interval_bytes=10_000)
    log_files.append(segment, *range(20))
    size = segment.size_bytes // 20
    log_files.overwrite(segment.path, 7 * size, b"\xff" * 20)
    segment = crashed(segment)
    report = RecoveryReport()
    assert not recover_segment(segment, place_of(segment, 20, report), report)
    assert [(each.position, each.end_position) for each in report.damage] == [(7 * size, 8 * size)]
    assert (segment.size_bytes, report.cut_bytes) == (20 * size, 0)
    for offset in [*range(7), *range(8, 20)]:
        assert log_files.read_offsets(segment, offset) == [offset]
    with pytest.raises(CorruptBatch, match=f"position {7 * size}"):
        segment.read(7, 100, max_position=segment.size_bytes, min_one_batch=True)


def test_a_full_disk_does_not_keep_a_log_from_being_recovered_and_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segment = log_files.open_segment(tmp_path, index_interval_bytes=0, max_index_bytes=8000)
    for offset in range(300):
        log_files.append_batch(segment, log_files.batch_of([""], offset=offset, timestamps_ms=offset))
    segment = crashed(segment)
    with log_files.full_disk_for_indexes():
        recover(segment)
    assert "index entries are missing" in caplog.text
    assert segment.max_timestamp == (299, 299)
    expect_offsets(segment, *range(300))
