"""The segments that a compaction reads.

They are closed segments, which are no longer written to. The compacting thread opens each by its path when its turn
comes, and uses none of the log's own objects, which belong to another thread. A segment that is gone was deleted or cut
off meanwhile: then the compaction is cancelled.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from warmlog_broker.storage.cleaner.throttle import CleaningAborted, CleaningPace
from warmlog_broker.storage.index.transaction_index import AbortedTxn, TransactionIndex
from warmlog_broker.storage.io.open_files import OpenFile, OpenFiles
from warmlog_broker.storage.segment.file_records import chain, pread_exactly
from warmlog_protocol.batch import RecordBatch, read_batch


class SourceSegment(Struct, frozen=True):
    """A closed segment that is read by the names of its files."""

    path: Path
    """The .log."""
    base_offset: int
    next_base_offset: int
    size_bytes: int

    def index_bytes(self, kind: str) -> int:
        """The size of its index of that kind, 0 without one."""
        try:
            return self.path.with_suffix(kind).stat().st_size
        except FileNotFoundError:
            return 0

    def batches(self, pace: CleaningPace, max_decompressed_bytes: int) -> Iterator[RecordBatch]:
        """Each batch, its CRC checked; DamagedLog at one that is not valid, CleaningAborted if the file is gone."""
        try:
            file = OpenFile(str(self.path), os.O_RDONLY)
        except FileNotFoundError as error:
            raise CleaningAborted(f"{self.path} is gone") from error
        pace.check()
        for header, position in chain(file, self.path, 0, self.size_bytes, checks_crc=True):
            batch = pread_exactly(file, self.path, position, header.size_bytes)
            yield read_batch(batch, verify_crc=False, max_decompressed_bytes=max_decompressed_bytes)


def read_aborted(paths: Iterable[Path], open_files: OpenFiles) -> list[AbortedTxn]:
    """The entries of all these transaction indexes; segments without aborted transactions have none."""
    aborted: list[AbortedTxn] = []
    for path in paths:
        try:
            index = TransactionIndex.open_read_only(path, 0, open_files)
        except FileNotFoundError:
            continue
        try:
            aborted += index
        finally:
            index.close_handles()
    return aborted
