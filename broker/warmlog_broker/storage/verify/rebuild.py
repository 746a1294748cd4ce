"""Rebuild the side files of a log from its batches: indexes, and producer snapshots if requested.

The entries are the same as after a recovery. Each file is written under a temporary name (`.index.rebuilt`), synced and
renamed: a crash leaves the old file or the new one. The `.log` files are only read. Damaged ranges get no entries, as
in a recovery below the recovery point.

Transaction indexes and snapshots depend on the whole log before them. If the log begins above offset 0 without a
snapshot there, or after damage, that is unknown, and such files are left unchanged.
"""

import os
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.index.transaction_index import AbortedTxn, pack_entry
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.producer.snapshots import SNAPSHOT_SUFFIX, pack_snapshot
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_broker.storage.segment.scan import Damage, scan
from warmlog_broker.storage.segment.segment_files import (
    LOG_KIND,
    OFFSET_INDEX_KIND,
    TIME_INDEX_KIND,
    TRANSACTION_INDEX_KIND,
    base_offsets_in,
    segment_file_name,
)
from warmlog_broker.storage.segment.segment_indexes import (
    REBUILT_SUFFIX,
    IndexBuilder,
    SegmentIndexes,
    place_in_segment,
)
from warmlog_broker.storage.verify.producers import ProducerReplay, read_snapshot
from warmlog_protocol.batch import read_batch
from warmlog_protocol.errors import CorruptBatch, StorageError


@dataclass(slots=True)
class RebuildResult:
    """What was done in one partition."""

    segments: int = 0
    batches: int = 0
    written: list[Path] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """What could not be rebuilt, and why."""
    damaged: list[Path] = field(default_factory=list)
    """Log files with bytes that are no batch, or with a malformed control batch."""


def rebuild_partition(directory: Path, config: LogConfig, *, with_snapshots: bool = False) -> RebuildResult:
    """Rebuild the side files of all segments in `directory`, which must not be in use. Durable on return.

    OSError if the disk refuses; some files are then rebuilt and the others unchanged.
    """
    result = RebuildResult()
    for leftover in directory.glob(f"*{REBUILT_SUFFIX}"):
        leftover.unlink()
    base_offsets = base_offsets_in(directory)
    producers = _producers_at_start(directory, base_offsets[0]) if base_offsets else ProducerReplay()
    for base_offset in base_offsets:
        if with_snapshots and base_offset != base_offsets[0]:
            _write_snapshot(directory, base_offset, producers, result)
        is_newest = base_offset == base_offsets[-1]
        segment = _SegmentRebuild(directory, base_offset, base_offset, config, producers, result, is_newest)
        segment.run()
        producers.states.end_offset = max(producers.states.end_offset, segment.next_offset)
        result.segments += 1
    if with_snapshots and base_offsets:
        _write_snapshot(directory, producers.states.end_offset, producers, result)
    sync_directory(directory)
    return result


def _producers_at_start(directory: Path, base_offset: int) -> ProducerReplay:
    producers = ProducerReplay()
    path = directory / segment_file_name(base_offset, SNAPSHOT_SUFFIX)
    try:
        producers.begin_with(read_snapshot(path))
    except (FileNotFoundError, StorageError):
        if base_offset:
            producers.lose_track()
    producers.states.end_offset = base_offset
    return producers


def _write_snapshot(directory: Path, offset: int, producers: ProducerReplay, result: RebuildResult) -> None:
    path = directory / segment_file_name(offset, SNAPSHOT_SUFFIX)
    if not producers.is_exact:
        result.remarks.append(f"{path}: not written, the log does not have the whole state of its producers")
        return
    producers.states.end_offset = offset
    replace_file(path, pack_snapshot(producers.states))
    result.written.append(path)


@dataclass(slots=True)
class _SegmentRebuild:
    """The index files of one segment."""

    directory: Path
    base_offset: int
    next_offset: int
    config: LogConfig
    producers: ProducerReplay
    result: RebuildResult
    is_newest: bool
    aborted: list[AbortedTxn] = field(default_factory=list)
    open_files: OpenFiles = field(default_factory=OpenFiles)

    def path(self, kind: str, suffix: str = "") -> Path:
        return self.directory / segment_file_name(self.base_offset, kind, suffix)

    def run(self) -> None:
        """Rebuild all three. The indexes of a segment without a batch are kept: they are reset on first use."""
        with closing(FileRecords.open_read_only(self.path(LOG_KIND), self.open_files)) as records:
            if records.size_bytes:
                self._rebuild_indexes(records)
        self._rebuild_transaction_index()

    def _rebuild_indexes(self, records: FileRecords) -> None:
        indexes = SegmentIndexes(
            self.path(OFFSET_INDEX_KIND, REBUILT_SUFFIX),
            self.path(TIME_INDEX_KIND, REBUILT_SUFFIX),
            self.base_offset,
            records=records,
            config=self.config,
            open_files=self.open_files,
        )
        builder = indexes.reset()
        self._index_batches(records, builder)
        indexes.finish(builder.largest)
        for index in indexes.loaded():
            os.fsync(index.open_file())
            index.close()
        for kind in (OFFSET_INDEX_KIND, TIME_INDEX_KIND):
            self.path(kind, REBUILT_SUFFIX).replace(self.path(kind))
            self.result.written.append(self.path(kind))

    def _index_batches(self, records: FileRecords, builder: IndexBuilder) -> None:
        for found in scan(records, 0, place_in_segment(self.base_offset), checks_crc=True):
            if isinstance(found, Damage):
                if self.is_newest and records.end_without_zeros(found.position) == found.position:
                    return  # preallocated by a broker
                self._find_damage(str(found.cause()))
                self.producers.lose_track()
                builder.must_index_next_batch()
                continue
            header, position = found
            builder.add(header, position)
            batch = read_batch(records.read(position, header.size_bytes), verify_crc=False)
            try:
                _, aborted = self.producers.on_batch(batch)
            except CorruptBatch as error:
                self._find_damage(f"{self.path(LOG_KIND)}: {error}")
            else:
                self.aborted += () if aborted is None else (aborted,)
            self.next_offset = header.next_offset
            self.result.batches += 1

    def _find_damage(self, text: str) -> None:
        self.result.remarks.append(text)
        if self.path(LOG_KIND) not in self.result.damaged:
            self.result.damaged.append(self.path(LOG_KIND))

    def _rebuild_transaction_index(self) -> None:
        path = self.path(TRANSACTION_INDEX_KIND)
        if not self.producers.is_exact:
            if path.exists():
                self.result.remarks.append(f"{path}: left unchanged, the log does not have all of its transactions")
            return
        if not self.aborted:
            path.unlink(missing_ok=True)
            return
        replace_file(path, b"".join(map(pack_entry, self.aborted)))
        self.result.written.append(path)
