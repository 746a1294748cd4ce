"""The small text files of a partition's directory, each replaced as a whole: lines `key: value`, the first the version.

**`partition.metadata`**: the id of the topic that the directory belongs to, in URL-safe base64 without padding::

    version: 0
    topic_id: Efo9lYIRT3GmJrmskxPrXQ

**`offset-gaps`**: this log may have gaps between the offsets of its batches. A leader assigns offsets without gaps, so
a gap in a log that was never compacted is damage. A log that was compacted keeps its gaps when `cleanup.policy` is
delete again, even if its first compaction was cancelled half way; a copy of it has them from the start, whatever its
own settings. So this file is written, durably, before the first compacted segment is added or the first batch after a
gap is appended to a copy. Without it the next start would take the batches after a gap for damage. It has the version
alone. Development versions of 0.2 wrote what is in `row-gaps` into it; that is read as if it were there. Anything else
is taken for the version alone.

**`row-gaps`**: the mark of a log. Kafka may have compacted what it has up to an offset, and nothing after that::

    version: 0
    rows_up_to: 4711          batches of rows may follow a gap that ends at or below this offset; nothing else may

A log is marked when it is created, with 0, and when it is adopted, with its end. One without a mark, or with a damaged
one, comes from a version that did not write it, or from another directory: any gap before its rows may be one of
Kafka's. The start that finds it marks it, with its end. So the file need not be durable.

**`truncation`**: a truncation that the checkpoints do not reflect yet. It changes several files, and the checkpoints of
the data directory may be above its offset for a while. So this file is written first, durably, and from then on the log
counts as truncated: a start that finds the state `cutting` finishes the work; one that finds `done` only caps
checkpoints that are above the offset. It is removed once newer checkpoints have been written
(`LogTruncation.checkpointed`), or at a start after a clean stop. If it is malformed the log is not opened, because the
data that it was to drop is still there::

    version: 0
    state: cutting                or done
    offset: 4711                  the log's end afterwards
    log_start_offset: 4000        the log's start afterwards
    full: 0                       1: all earlier data is dropped, and the log starts empty at `offset`

**`removed-below`**: this log was filled by another replica whose log no longer had all keys and tombstones below an
offset. A replica that has such a key may not follow this one from below the offset, or the key would stay. It is
written, durably, before the log is emptied to be filled, and never goes down. If it is malformed the log is not
opened::

    version: 0
    offset: 4711

**`restart-point`**: from where on a start after a crash checks the active segment. What the log had below `offset` is
on disk once the recovery point is at or above that: batches, the entries of the indexes, and the state of the
producers, which is in `<offset>.snapshot`. So a start reads none of it before it serves; a check in the background does
(`recovery`). A missing, damaged or stale file, or one whose snapshot is gone, costs time: the segment is checked from
its beginning::

    version: 0
    offset: 4711
    segment: 4000                     base offset of the active segment
    position: 81920                   of `offset` in its .log
    index_entries: 19                 in its .index
    timeindex_entries: 12             in its .timeindex
    index_position: 79872             that the last entry of .index has; 0 without one
    largest_timestamp: 1700000000000  up to `offset`; -1 for none
    offset_of_largest: 4690           last offset of the batch that has it
    crc: 3735928559                   CRC-32C of the lines before
"""

import logging
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from warmlog_broker.storage.directory.data_dir import LogOffsets, StoredState
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory, write_file
from warmlog_protocol.batch import MAGIC_ROWS, BatchHeader
from warmlog_protocol.codec.crc32c import crc32c
from warmlog_protocol.errors import StorageError

METADATA_NAME = "partition.metadata"
GAPS_NAME = "offset-gaps"
ROW_GAPS_NAME = "row-gaps"
TRUNCATION_NAME = "truncation"
REMOVED_BELOW_NAME = "removed-below"
RESTART_POINT_NAME = "restart-point"
STATE_NAMES = (GAPS_NAME, ROW_GAPS_NAME, TRUNCATION_NAME, REMOVED_BELOW_NAME)
"""What belongs to each copy of a log's files."""

_VERSION_LINE = "version: 0\n"

logger = logging.getLogger(__name__)


def _pack(**fields: object) -> bytes:
    return (_VERSION_LINE + "".join(f"{key}: {value}\n" for key, value in fields.items())).encode()


def _unpack(path: Path, content: bytes, keys: Sequence[str]) -> list[str]:
    """Return the values of the lines after the version, which have these keys in this order; otherwise StorageError."""
    text = content.decode(errors="replace")
    lines = [line.partition(": ") for line in text.removeprefix(_VERSION_LINE).splitlines()]
    if not text.startswith(_VERSION_LINE) or [key for key, _, _ in lines] != list(keys):
        raise StorageError(f"{path}: expected version 0 and lines {', '.join(keys)}, found {text!r}")
    return [value for _, _, value in lines]


def pack_partition_metadata(topic_id: UUID) -> bytes:
    return _pack(topic_id=urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()).rstrip()


def read_partition_metadata(path: Path) -> UUID:
    """Read the topic id in `path`. FileNotFoundError if there is no file, StorageError if it is malformed."""
    content = path.read_bytes().replace(b"\r\n", b"\n")  # as Kafka on Windows writes it
    text = _unpack(path, content, ("topic_id",))[0].strip()
    try:
        return UUID(bytes=urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        raise StorageError(f"{path}: expected 16 bytes as base64 for the topic id, found {text!r}") from None


def stored_topic_id(path: Path) -> UUID | None:
    """Return the topic id in the partition.metadata at `path`; None, with a warning if damaged, if there is none.

    None does not mean that the directory belongs to no topic: a crash may have come before the file was written, or the
    file of a partition in use is damaged. The caller decides by the directory's name and records. OSError from the
    disk.
    """
    try:
        return read_partition_metadata(path)
    except FileNotFoundError:
        return None
    except StorageError as error:
        logger.warning("the topic id is unknown: %s", error)
        return None


class Gaps(NamedTuple):
    """Where a log may have gaps between the offsets of its batches, besides what its settings and checkpoints say."""

    everywhere: bool = False
    rows_up_to: int = 0
    """Rows may follow a gap that ends at or below this offset."""

    def allow(self, header: BatchHeader) -> bool:
        """Whether a gap before this batch is none of damage."""
        return self.everywhere or (header.magic == MAGIC_ROWS and header.base_offset <= self.rows_up_to)


NO_GAPS = Gaps()
UNMARKED = Gaps(rows_up_to=1 << 63)
"""Of a log without a mark: how much of it Kafka wrote is not known."""


def note_gaps(directory: Path) -> None:
    """Write, durably, that the log may have gaps everywhere."""
    replace_file(directory / GAPS_NAME, _pack())


def mark_row_gaps(directory: Path, rows_up_to: int) -> None:
    """Write the mark of a log that has none. A crash may lose it."""
    write_file(directory / ROW_GAPS_NAME, _pack(rows_up_to=rows_up_to), sync=False)


def read_gaps(directory: Path) -> Gaps:
    """Return what the two files say."""
    try:
        return _read_row_gaps(directory / GAPS_NAME) or Gaps(everywhere=True)
    except FileNotFoundError:
        pass
    try:
        return _read_row_gaps(directory / ROW_GAPS_NAME) or UNMARKED
    except FileNotFoundError:
        return UNMARKED


def _read_row_gaps(path: Path) -> Gaps | None:
    """Return the mark at `path`; None for another content. FileNotFoundError if there is no file."""
    content = path.read_bytes()
    with suppress(StorageError, ValueError):
        (rows_up_to,) = _unpack(path, content, ("rows_up_to",))
        return Gaps(rows_up_to=int(rows_up_to))
    return None


class Truncation(NamedTuple):
    offset: int
    log_start_offset: int
    is_full: bool = False
    is_done: bool = False

    def cap(self, stored: StoredState) -> StoredState:
        """Cap `stored`, which may be from before the truncation."""
        before = stored.offsets
        offsets = LogOffsets(
            min(before.recovery_point, self.offset),
            self.log_start_offset,
            min(before.high_watermark, self.offset),
            min(before.first_dirty_offset, self.offset),
        )
        return StoredState(offsets, None)


def write_truncation(directory: Path, truncation: Truncation) -> None:
    content = _pack(
        state="done" if truncation.is_done else "cutting",
        offset=truncation.offset,
        log_start_offset=truncation.log_start_offset,
        full=int(truncation.is_full),
    )
    replace_file(directory / TRUNCATION_NAME, content)


def read_truncation(directory: Path) -> Truncation | None:
    """Read the file; None if there is none. StorageError if it is malformed."""
    path = directory / TRUNCATION_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    state, *numbers, full = _unpack(path, content, ("state", "offset", "log_start_offset", "full"))
    if state not in ("cutting", "done") or full not in ("0", "1") or not all(map(str.isdecimal, numbers)):
        raise StorageError(f"{path}: expected version 0 and the values of a truncation, found {content!r}")
    return Truncation(int(numbers[0]), int(numbers[1]), is_full=full == "1", is_done=state == "done")


def remove_truncation(directory: Path) -> None:
    (directory / TRUNCATION_NAME).unlink(missing_ok=True)
    sync_directory(directory)


def cap_at_truncation(directory: Path, stored: StoredState) -> tuple[StoredState, Truncation | None]:
    """Cap the checkpointed state at a pending truncation, which is returned too.

    The checkpoints of a clean stop already reflect a truncation that is done.
    """
    truncation = read_truncation(directory)
    if truncation is None:
        return stored, None
    if truncation.is_done and stored.clean_end is not None:
        remove_truncation(directory)
        return stored, None
    return truncation.cap(stored), truncation


def write_removed_below(directory: Path, offset: int) -> None:
    replace_file(directory / REMOVED_BELOW_NAME, _pack(offset=offset))


def read_removed_below(directory: Path) -> int:
    """Read the file; 0 if there is none. StorageError if it is malformed."""
    path = directory / REMOVED_BELOW_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    (offset,) = _unpack(path, content, ("offset",))
    if not offset.isdecimal():
        raise StorageError(f"{path}: expected version 0 and an offset, found {content!r}")
    return int(offset)


class RestartPoint(NamedTuple):
    offset: int
    segment: int
    position: int
    index_entries: int
    timeindex_entries: int
    index_position: int
    largest_timestamp: int
    offset_of_largest: int


def pack_restart_point(point: RestartPoint) -> bytes:
    text = _pack(**point._asdict())
    return text + b"crc: %d\n" % crc32c(text)


def read_restart_point(directory: Path) -> RestartPoint | None:
    """Return the content; None for a missing or damaged file."""
    path = directory / RESTART_POINT_NAME
    try:
        text, _, crc = path.read_bytes().rpartition(b"crc: ")
    except FileNotFoundError:
        return None
    try:
        if int(crc) != crc32c(text):
            raise ValueError("its CRC is wrong")
        return RestartPoint._make(map(int, _unpack(path, text, RestartPoint._fields)))
    except (ValueError, StorageError) as error:
        logger.warning("%s is not used: %s", path, error)
        return None


def remove_restart_point(directory: Path) -> None:
    """Remove the file, as the log is to be cut. Its name is gone durably once the directory is synced."""
    (directory / RESTART_POINT_NAME).unlink(missing_ok=True)
