"""What a task of an export writes: every record once, in the file of its day."""

from pathlib import Path
from random import Random

import pyarrow.parquet as pq
import pytest

from unit.client.ranges.scripted_broker import TOPIC_ID, ScriptedBroker
from warmlog.errors import CorruptBatch
from warmlog.ranges.offset_range import OffsetRange
from warmlog.ranges.read_settings import ReadSettings
from warmlog.spark.export import files as export_files
from warmlog.spark.export.files import export_ranges
from warmlog_protocol.batch import encode_batch

DAY_MS = 86_400_000


def log_of(times_ms: list[int], per_batch: int) -> list[bytes]:
    return [
        encode_batch(
            [b"%d" % offset for offset in range(base, min(base + per_batch, len(times_ms)))],
            timestamps_ms=times_ms[base : base + per_batch],
            headers=[[("h", b"v")]] * len(times_ms[base : base + per_batch]),
            base_offset=base,
        )
        for base in range(0, len(times_ms), per_batch)
    ]


@pytest.mark.parametrize("has_headers", [False, True])
def test_days_that_are_mixed_come_apart_however_many_files_may_be_open(
    tmp_path: Path, has_headers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_files, "MOST_OPEN_FILES", 3)
    monkeypatch.setattr(export_files, "ROW_GROUP_BYTES", 2_000)
    random = Random(1)
    times_ms = [random.randrange(8) * DAY_MS + random.randrange(DAY_MS) for _ in range(1_000)]
    with ScriptedBroker(log_of(times_ms, 50)) as broker:
        ranges = [OffsetRange("t", 2, start, start + 500, broker.address, TOPIC_ID) for start in (0, 500)]
        files, losses = export_ranges(ranges, tmp_path, ReadSettings(), has_headers=has_headers, compression="zstd")
    assert losses == []
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.parquet")} == {
        each.path for each in files
    }
    offsets = []
    for each in files:
        table = pq.ParquetFile(tmp_path / each.path).read()
        assert (table.num_rows, (tmp_path / each.path).stat().st_size) == (each.records, each.size_bytes)
        assert ("headers" in table.schema.names) == has_headers
        own = table.column("offset").to_pylist()
        assert own == sorted(own)
        assert {f"date=1970-01-0{1 + times_ms[offset] // DAY_MS}" for offset in own} == {each.path.split("/")[0]}
        assert table.column("value").to_pylist() == [b"%d" % offset for offset in own]
        offsets += own
    assert sorted(offsets) == list(range(1_000))


def test_an_attempt_that_fails_leaves_no_file(tmp_path: Path) -> None:
    batches = log_of([0] * 100, 50)
    batches[1] = batches[1][:-1] + bytes([batches[1][-1] ^ 1])
    with ScriptedBroker(batches) as broker, pytest.raises(CorruptBatch):
        export_ranges(
            [OffsetRange("t", 2, 0, 100, broker.address, TOPIC_ID)],
            tmp_path,
            ReadSettings(),
            has_headers=False,
            compression="none",
        )
    assert not list(tmp_path.rglob("*.parquet"))
