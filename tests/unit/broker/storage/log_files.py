"""Batches and segments for the tests of the log's files: real files, tiny segments."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from unittest.mock import patch

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_broker.storage.segment.segment import LogSegment
from warmlog_protocol.batch import encode_batch, iter_batches, placement_prefix, read_header

HOUR_MS = 3_600_000


def batch_of(
    values: Sequence[str],
    *,
    offset: int = 0,
    timestamps_ms: int | Sequence[int] = 0,
    leader_epoch: int = 0,
    producer_id: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """One batch as it is stored in a log."""
    batch = encode_batch(
        [value.encode() for value in values],
        timestamps_ms=timestamps_ms,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        base_sequence=base_sequence,
    )
    return placement_prefix(read_header(batch), offset, leader_epoch) + batch[21:]


def append_batch(segment: LogSegment, batch: bytes) -> int:
    """Appends a batch to a segment as a log does; returns its position."""
    header = read_header(batch)
    return segment.append(header.last_offset, header.max_timestamp_ms, batch[:21], batch[21:])


def append(
    segment: LogSegment, *offsets: int, value: str = "hello", timestamp_ms: int | None = None, leader_epoch: int = 0
) -> None:
    """Appends a batch of one record for each offset; timestamps are ten times the offsets if none is given."""
    for offset in offsets:
        timestamps_ms = 10 * offset if timestamp_ms is None else timestamp_ms
        append_batch(segment, batch_of([value], offset=offset, timestamps_ms=timestamps_ms, leader_epoch=leader_epoch))


def open_segment(
    directory: Path,
    base_offset: int = 0,
    *,
    index_interval_bytes: int = 10,
    max_index_bytes: int = 1000,
    preallocate_bytes: int = 0,
    open_files: OpenFiles | None = None,
    now_ms: int = 0,
    roll_jitter_ms: int = 0,
) -> LogSegment:
    """A segment with a small index interval and small indexes."""
    return LogSegment(
        directory,
        base_offset,
        config=LogConfig(
            index_interval_bytes=index_interval_bytes,
            segment_index_bytes=max_index_bytes,
            preallocate=preallocate_bytes > 0,
            segment_bytes=preallocate_bytes,
        ),
        open_files=open_files or OpenFiles(),
        now_ms=now_ms,
        roll_jitter_ms=roll_jitter_ms,
    )


def reopened(segment: LogSegment) -> LogSegment:
    """The segment as a broker finds it that starts after a clean stop."""
    segment.close()
    return open_segment(
        segment.directory, segment.base_offset, index_interval_bytes=segment.indexes.config.index_interval_bytes
    )


def read_offsets(
    segment: LogSegment, start_offset: int, max_size_bytes: int = 1, *, min_one_batch: bool = True
) -> list[int] | None:
    """The offsets of the records that a read returns; None when it finds nothing."""
    found = segment.read(start_offset, max_size_bytes, max_position=segment.size_bytes, min_one_batch=min_one_batch)
    if found is None:
        return None
    data = b"" if found.slice is None else found.slice.pread()
    return [offset for batch in iter_batches(data) for offset in batch.offsets()]


def offsets_in(records: FileRecords) -> list[int]:
    """The base offset of each batch."""
    return [header.base_offset for header, _ in records.batches()]


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Damages a file."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@contextmanager
def no_file_grows_beyond(size_bytes: int) -> Iterator[None]:
    """The kernel refuses to write after `size_bytes` of any file of this process, as it does on a full disk.

    (The error is EFBIG and not ENOSPC; a write that crosses the limit is cut short in the same way.)
    """
    soft, hard = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, (soft, hard))


@contextmanager
def full_disk_for_indexes() -> Iterator[None]:
    """No block is left when an index entry is written: index files are sparse, so that comes after their creation."""
    with patch(
        "warmlog_broker.storage.index.abstract_index.os.pwrite", side_effect=OSError(ENOSPC, "No space left on device")
    ):
        yield


def rolls(segment: LogSegment, **changes: int) -> bool:
    """must_roll for a harmless batch, except for `changes`."""
    config = LogConfig(
        segment_bytes=changes.pop("segment_bytes", 10_000), segment_ms=changes.pop("segment_ms", HOUR_MS)
    )
    arguments = {
        "size_bytes": 100,
        "last_offset": segment.base_offset + 1000,
        "max_timestamp_ms": -1,
        "now_ms": segment.created_ms,
    }
    return segment.must_roll(**(arguments | changes), config=config)
