"""Walking the chain of batches, on files that Kafka wrote and on random bytes."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

import kafka_sample
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords, chain, find_batch

KAFKA_FILES = kafka_sample.SAMPLE
KAFKA_LOGS = sorted(KAFKA_FILES.glob("*/*.log"))
KAFKA_DUMPS = sorted(KAFKA_FILES.glob("*/*.log.dump"))


def opened(path: Path) -> FileRecords:
    return FileRecords.open_read_only(path, OpenFiles())


@pytest.mark.parametrize("path", KAFKA_LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_logs_that_kafka_wrote_are_walked_to_their_end(path: Path) -> None:
    records = opened(path)
    file, end = records.open_file(), records.size_bytes
    headers = list(chain(file, path, 0, end))
    assert list(chain(file, path, 0, end, checks_crc=True)) == headers
    last, position = headers[-1]
    assert position + last.size_bytes == end
    for header, position in headers:
        assert find_batch(file, path, header.last_offset, 0, end) == (
            header.base_offset,
            header.last_offset,
            position,
            header.size_bytes,
        )


@pytest.mark.parametrize("dump", KAFKA_DUMPS, ids=lambda path: path.name)
def test_the_walk_sees_what_kafkas_own_dump_of_a_log_says(dump: Path) -> None:
    headers = list(opened(dump.with_suffix("")).batches())
    lines = [line for line in dump.read_text().splitlines() if line.startswith("baseOffset:")]
    assert len(lines) == len(headers) > 10
    for line, (header, position) in zip(lines, headers, strict=True):
        words = line.split()
        fields = dict(zip(words[::2], words[1::2], strict=False))
        assert int(fields["baseOffset:"]) == header.base_offset
        assert int(fields["lastOffset:"]) == header.last_offset
        assert int(fields["position:"]) == position
        assert int(fields["size:"]) == header.size_bytes


@pytest.mark.parametrize("path", KAFKA_LOGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_indexes_that_kafka_wrote_lead_to_batches(path: Path) -> None:
    records = opened(path)
    base_offset = int(path.stem)
    positions = {position: header for header, position in records.batches()}
    with OffsetIndex(path.with_suffix(".index"), base_offset, open_files=OpenFiles(), is_writable=False) as index:
        index.sanity_check()
        assert index.entries > 10
        for offset, position in index:
            assert positions[position].base_offset <= offset
            found = records.search_for_offset(offset, index.lookup(offset).position)
            assert found is not None
            assert found.base_offset <= offset <= found.last_offset
    with TimeIndex(path.with_suffix(".timeindex"), base_offset, open_files=OpenFiles(), is_writable=False) as times:
        times.sanity_check()
        assert times.last_entry.timestamp_ms == max(header.max_timestamp_ms for header in positions.values())


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_are_damage_at_the_start(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(random.Random(seed).randbytes(61 + 500 * seed))
    records = opened(path)
    file, end = records.open_file(), records.size_bytes
    with pytest.raises(DamagedLog, match="position 0"):
        find_batch(file, path, 5, 0, end)
    with pytest.raises(DamagedLog, match="position 0"):
        list(chain(file, path, 0, end, checks_crc=True))
    with suppress(DamagedLog):
        assert list(chain(file, path, 0, end)) == []


def test_a_file_that_became_shorter_is_damage_where_it_ends(tmp_path: Path) -> None:
    source = KAFKA_LOGS[0].read_bytes()
    path = tmp_path / "0.log"
    path.write_bytes(source)
    records = opened(path)
    file, end = records.open_file(), records.size_bytes
    path.write_bytes(source[: end // 2])
    with pytest.raises(DamagedLog) as caught:
        list(chain(file, path, 0, end, checks_crc=True))
    assert 0 < caught.value.position <= end // 2
