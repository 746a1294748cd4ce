"""The name and the bytes of a segment's `.log` file, read only."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from warmlog.cli.exits import CommandFailed
from warmlog_protocol.batch import HEADER_BYTES, BatchHeader, RecordBatch, read_batch, read_header
from warmlog_protocol.errors import CorruptBatch

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"


class PlacedHeader(NamedTuple):
    """A batch's header and where it begins in the file."""

    position: int
    header: BatchHeader


def base_offset_of(path: Path) -> int:
    """The offset that a segment's file is named after. CommandFailed when it has another kind of name."""
    stem = path.name.partition(".")[0]
    if not (stem.isascii() and stem.isdigit()):
        raise CommandFailed(f"{path}: a segment's files are named after its base offset, as 00000000000000000000.log")
    return int(stem)


class SegmentFile:
    """A `.log` file as it was when it was opened; what a broker appends meanwhile is not seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size_bytes = os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def headers(self, position: int = 0, end: int | None = None) -> Iterator[PlacedHeader]:
        """The batches that lie whole between `position` and `end`, up to the first bytes that are no batch."""
        end = self.size_bytes if end is None else min(end, self.size_bytes)
        while (placed := self.header_at(position)) is not None and position + placed.header.size_bytes <= end:
            yield placed
            position += placed.header.size_bytes

    def header_at(self, position: int) -> PlacedHeader | None:
        """The header at `position`, None where none can be."""
        try:
            return PlacedHeader(position, read_header(self.pread(HEADER_BYTES, position)))
        except CorruptBatch:
            return None

    def batch(self, placed: PlacedHeader) -> RecordBatch:
        """The whole batch; its CRC is not checked. CorruptBatch when the file has become shorter."""
        return read_batch(self.pread(placed.header.size_bytes, placed.position), verify_crc=False)

    def why_no_batch(self, position: int) -> str:
        """In words: why there is no whole batch at `position`, which lies before the end of the file."""
        try:
            header = read_header(self.pread(HEADER_BYTES, position))
        except CorruptBatch as error:
            return str(error)
        return f"the batch claims {header.size_bytes} bytes, {self.size_bytes - position} are left"

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Up to `size_bytes` bytes at `position`."""
        if position < 0:
            return b""
        return os.pread(self._descriptor, size_bytes, position)
