"""Logs as large as a benchmark wants them, and the rates that they reach: append, read, recovery."""

import logging
import os
from pathlib import Path
from random import Random
from shutil import rmtree
from typing import Any, Self
from unittest.mock import patch

from benchmarks.storage.figures import Figure, timed
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import CleanEnd, LogOffsets, StoredState
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import CheckedBatch, check_batch
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_protocol.batch import HEADER_BYTES, encode_batch, placement_prefix
from warmlog_protocol.batch.header import CRC_START

KIB, MIB, GIB = 1024, 1024**2, 1024**3
KEY = TopicPartition("bench", 0)
NOW_MS = 1_700_000_000_000
BATCH_BYTES = 64 * KIB
MAX_BATCH_BYTES = 2 * MIB
RECORDS = 60
SEGMENTS = 10

logging.getLogger("warmlog_broker").setLevel(logging.CRITICAL)  # a recovery has much to say


def batch_of(size_bytes: int, records: int) -> bytes:
    """An encoded batch of very nearly `size_bytes`."""
    value_bytes = (size_bytes - HEADER_BYTES - 64) // records
    return encode_batch([os.urandom(value_bytes)] * records, timestamps_ms=[NOW_MS] * records)


def open_log(directory: Path, stored: StoredState | None = None, **config: Any) -> Log:
    path = directory / KEY.directory_name
    options: dict[str, Any] = {} if stored is None else {"stored": stored}
    return Log.open(path, key=KEY, config=LogConfig(**config), open_files=OpenFiles(), now_ms=NOW_MS, **options)


def drop(log: Log) -> None:
    """Closes a log without syncing and removes its files."""
    log.fail("benchmark is over")
    rmtree(log.local.directory)


# Append


def append(directory: Path, rounds: int, batches: int) -> Figure:
    """Log.append against os.writev of the same bytes, by turns, on the same file system."""
    batch = check_batch(batch_of(BATCH_BYTES, RECORDS), MAX_BATCH_BYTES)
    settings = {"batch_bytes": BATCH_BYTES, "batches": batches}
    figure = Figure("append of a 64 KiB batch", settings, "rate at least 70 % of os.writev")
    for _ in range(rounds):
        raw, own = _writev(directory, batch, batches), _append(directory, batch, batches)
        figure.runs.append(
            {
                "of_writev_cpu": raw[1] / own[1],
                "of_writev_wall": raw[0] / own[0],
                "append_cpu_us": own[1],
                "writev_cpu_us": raw[1],
            }
        )
    return figure


def _writev(directory: Path, batch: CheckedBatch, batches: int) -> tuple[float, float]:
    """Microseconds a batch: wall, processor."""
    path = directory / "raw"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    pieces = (placement_prefix(batch.header, 0, 0), batch.covered)

    def work() -> None:
        for _ in range(batches):
            os.writev(file, pieces)

    done = timed(work)
    os.close(file)
    path.unlink()
    return done.wall_s / batches * 1e6, done.cpu_s / batches * 1e6


def _append(directory: Path, batch: CheckedBatch, batches: int) -> tuple[float, float]:
    log = open_log(directory)

    def work() -> None:
        for _ in range(batches):
            log.appender.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)

    done = timed(work)
    drop(log)
    return done.wall_s / batches * 1e6, done.cpu_s / batches * 1e6


# Read


def read(directory: Path, rounds: int, reads: int, log_bytes: int) -> Figure:
    """Log.read of 1 MiB at random offsets, before any byte moves: the slice is made, and not read."""
    stored = write_sparse_log(directory, log_bytes, SEGMENTS)
    log = open_log(directory, stored, segment_bytes=2**31 - 1)
    log.bounds.raise_high_watermark(log.log_end_offset)
    chance = Random(4)
    settings = {
        "log_bytes": log.local.segments.size_bytes,
        "segments": len(log.local.segments),
        "batch_bytes": BATCH_BYTES,
        "reads": reads,
    }
    figure = Figure("read of 1 MiB at a random offset", settings, "under 60 µs")
    for _ in range(rounds):
        offsets = [chance.randrange(log.log_end_offset) for _ in range(reads)]

        def work(offsets: list[int] = offsets) -> None:
            for offset in offsets:
                assert log.reader.read(offset, MIB).size_bytes

        work()  # the first read of a segment opens and checks its indexes
        done = timed(work)
        figure.runs.append({"cpu_us": done.cpu_s / reads * 1e6, "wall_us": done.wall_s / reads * 1e6})
    drop(log)
    return figure


def write_sparse_log(directory: Path, log_bytes: int, segments: int) -> StoredState:
    """A closed log of batches of 64 KiB, of which only headers and indexes are there; the bodies are holes."""
    path = directory / KEY.directory_name
    path.mkdir()
    batch = check_batch(batch_of(BATCH_BYTES, RECORDS), MAX_BATCH_BYTES)
    rest = batch.covered[: HEADER_BYTES - CRC_START]
    offset = size_bytes = 0
    for _ in range(segments):
        base_offset, size_bytes = offset, 0
        with _SegmentWriter(path, base_offset) as segment:
            while size_bytes + batch.size_bytes <= log_bytes // segments:
                segment.add(placement_prefix(batch.header, offset, 0) + rest, size_bytes, offset + RECORDS - 1)
                size_bytes += batch.size_bytes
                offset += RECORDS
            segment.log.truncate(size_bytes)
    return StoredState(LogOffsets(offset, 0, offset), CleanEnd(offset, size_bytes))


class _SegmentWriter:
    """The files of one segment."""

    def __init__(self, directory: Path, base_offset: int) -> None:
        open_files = OpenFiles()
        path = directory / f"{base_offset:020d}"
        self.log = open(path.with_suffix(".log"), "wb", buffering=0)  # noqa: SIM115
        self.index = OffsetIndex(path.with_suffix(".index"), base_offset, open_files=open_files, max_index_bytes=MIB)
        self.times = TimeIndex(path.with_suffix(".timeindex"), base_offset, open_files=open_files, max_index_bytes=MIB)

    def add(self, header: bytes, position: int, last_offset: int) -> None:
        os.pwrite(self.log.fileno(), header, position)
        self.times.maybe_append(NOW_MS, last_offset)
        if position:
            self.index.append(last_offset, position)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()
        self.index.close()
        self.times.close()


# Recovery


def recovery(directory: Path, rounds: int, log_bytes: int, *, batch_bytes: int, records: int, bar: str = "") -> Figure:
    """Opening a log of which nothing is below the recovery point, as after kill -9.

    The recovery syncs the log and reads it from the disk. So that not the disk is
    measured, the data is read from the page cache here; `disk_gb_per_s` is what it reached with the disk, once.
    """
    batch = check_batch(batch_of(batch_bytes, records), MAX_BATCH_BYTES)
    log = open_log(directory)
    for _ in range(log_bytes // batch.size_bytes):
        log.appender.append_as_leader(batch, leader_epoch=0, now_ms=NOW_MS)
    size_bytes = log.local.segments.size_bytes
    path = log.local.directory
    log.fail("killed")
    figure = Figure(
        f"recovery, batches of {records} records, {batch.size_bytes:,} bytes",
        {"log_bytes": size_bytes, "batch_bytes": batch.size_bytes},
        bar,
    )
    with_disk = timed(lambda: open_log(directory).fail("killed"))
    for _ in range(rounds):
        with patch.object(FileRecords, "drop_cache"):
            done = timed(lambda: open_log(directory).fail("killed"))
        figure.runs.append(
            {
                "gb_per_s_cpu": size_bytes / done.cpu_s / 1e9,
                "gb_per_s_wall": size_bytes / done.wall_s / 1e9,
                "us_a_batch_cpu": done.cpu_s / (size_bytes // batch.size_bytes) * 1e6,
                "disk_gb_per_s": size_bytes / with_disk.wall_s / 1e9,
            }
        )
    rmtree(path)
    return figure
