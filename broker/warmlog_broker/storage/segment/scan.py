"""The one walk of a log file: its batches, and the damage between them.

Headers form a chain (`file_records`): each gives the position of the next one. After a damaged header the chain
continues directly after the batch, if its length is plausible, or at the next bytes that are an intact batch (header
and CRC).

No CRC covers base offsets. `Place` says which offsets may be next; if two headers contradict each other, the second
one may be correct and the first one claim more offsets than it has, or others. The CRC decides.

Whatever reads a log from end to end is a loop over `scan`: recovery, verification, the rebuild of an index, the replay
of producers and epochs.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from warmlog_broker.storage.segment.file_records import DamagedLog, FileRecords
from warmlog_protocol.batch.header import HEADER_BYTES, BatchHeader, check_crc, read_header
from warmlog_protocol.errors import CorruptBatch

SEARCH_LIMIT_BYTES = 64 * 1024 * 1024
"""How far after the damage an intact batch is looked for."""

_CHUNK_BYTES = 4 * 1024 * 1024
_MAGIC_AT = 16
_OFFSET_BYTES = 8


class Damage(Struct, frozen=True):
    """The bytes `[position, end_position)` of `path` should be batches, but are not."""

    path: Path
    position: int
    end_position: int
    first_offset: int
    next_offset: int
    """The offsets `[first_offset, next_offset)` cannot be read."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self._describe()}"

    def cause(self) -> DamagedLog:
        """The error at the first byte, which does not say where the log continues."""
        return DamagedLog(self.path, self.position, self.reason)

    def error(self) -> DamagedLog:
        return DamagedLog(self.path, self.position, self._describe(), self.next_offset)

    def _describe(self) -> str:
        return (
            f"offsets {self.first_offset} to {self.next_offset - 1} are damaged, "
            f"positions {self.position} to {self.end_position}: {self.reason}"
        )


class Place:
    """Where a scan is: which offsets the next batch may have. Subclasses add rules."""

    def __init__(self, next_offset: int, end_offset: int) -> None:
        self.next_offset = next_offset
        """The lowest offset that the next batch may begin with."""
        self.end_offset = end_offset
        """Exclusive: no batch has it or a later one, and after damage none is looked for."""

    def admit(self, header: BatchHeader, _records: FileRecords, _position: int, /) -> str:
        """Move past the batch and return ""; or say why it cannot be here, and the scan takes it for damage."""
        next_offset = header.base_offset + header.last_offset_delta + 1
        if header.base_offset < self.next_offset or next_offset > self.end_offset:
            expected = f"expected from {self.next_offset} to {self.end_offset - 1}"
            return f"offsets {header.base_offset} to {header.last_offset}, {expected}"
        self.next_offset = next_offset
        return ""

    def take_back(self, next_offset: int) -> None:
        """Forget the last batch, which the one after it contradicts: the next one may begin with `next_offset`."""
        self.next_offset = next_offset


def scan(
    records: FileRecords, start: int, place: Place, *, checks_crc: bool = False
) -> Iterator[tuple[BatchHeader, int] | Damage]:
    """Yield (header, position) of each batch from position `start`, a batch boundary, on, and Damage between them.

    A batch is yielded once the next header confirms that it ends there, and `place` is ahead of it. Damage ends where
    the log continues; the scan is over after one that reaches the end of the file. OSError from the disk.
    """
    while True:
        error: DamagedLog | None = None
        held: tuple[BatchHeader, int] | None = None
        before_held = place.next_offset
        try:
            for found in records.batches(start, checks_crc=checks_crc):
                before_found = place.next_offset
                reason = place.admit(found[0], records, found[1])
                if reason:
                    raise DamagedLog(records.path, found[1], reason)
                if held is not None:
                    yield held
                held, before_held = found, before_found
        except DamagedLog as damaged:
            error = damaged
        if held is not None:
            if error is not None and _is_contradicted(records, *held, before_held, error.position):
                error = DamagedLog(records.path, held[1], "contradicted by the following batch")
                place.take_back(before_held)
            else:
                yield held
        if error is None:
            return
        damage = _damage_at(records, error, place)
        place.next_offset = max(place.next_offset, damage.next_offset)
        yield damage
        start = damage.end_position
        if start >= records.size_bytes:
            return


def _damage_at(records: FileRecords, error: DamagedLog, place: Place) -> Damage:
    """Return the damage that begins where `error` was found: up to the next intact batch, or to the end of the file."""
    position, first_offset, end_offset = error.position, place.next_offset, place.end_offset
    following: tuple[int, int] | None = None
    if first_offset < end_offset:
        following = find_after_damage(records, position, first_offset, end_offset)
    end_position, next_offset = following or (records.size_bytes, max(first_offset, end_offset))
    return Damage(records.path, position, end_position, first_offset, next_offset, error.reason)


def _is_contradicted(
    records: FileRecords, header: BatchHeader, position: int, expected_offset: int, next_position: int
) -> bool:
    """Whether a batch is damaged, and not the one at `next_position`, given that they do not fit together.

    No CRC covers base offsets. The batch has a wrong one if the next batch has the offset that was expected of it.
    """
    if not is_intact(records, header, position):
        return True
    following = _intact_header_at(records, next_position)
    return following is not None and expected_offset < header.base_offset and expected_offset <= following.base_offset


def is_intact(records: FileRecords, header: BatchHeader, position: int) -> bool:
    """Whether the batch at `position` has the CRC that its header gives. Reads all of it."""
    try:
        check_crc(header, records.read(position, header.size_bytes))
    except CorruptBatch:
        return False
    return True


def find_after_damage(
    records: FileRecords, position: int, expected_offset: int, end_offset: int
) -> tuple[int, int] | None:
    """Find where the chain continues after the damage at `position`: (position, offset of the batch there).

    The offset is above `expected_offset`, which the damaged batch should have had, and at most `end_offset`. At the end
    of the file it is the offset of the next batch to be appended. None if no intact batch is found.
    """
    return _by_length(records, position, expected_offset, end_offset) or _by_search(
        records, position + 1, expected_offset, end_offset
    )


def _by_length(records: FileRecords, position: int, expected_offset: int, end_offset: int) -> tuple[int, int] | None:
    """Trust the damaged batch's own length and offset delta, if the next batch confirms them."""
    header = header_at(records, position)
    if header is None:
        return None
    next_position = position + header.size_bytes
    next_offset = expected_offset + header.last_offset_delta + 1
    if next_offset > end_offset or next_position > records.size_bytes:
        return None
    if next_position == records.size_bytes:
        return next_position, next_offset
    following = _intact_header_at(records, next_position)
    if following is None or following.base_offset != next_offset:
        return None
    return next_position, next_offset


def _by_search(records: FileRecords, start: int, expected_offset: int, end_offset: int) -> tuple[int, int] | None:
    """Try each byte at which an intact batch with a possible offset might begin, except in holes of the file.

    The first bytes of a batch, up to the magic, may be zeros and in a hole.
    """
    low, high = expected_offset.to_bytes(_OFFSET_BYTES, "big"), end_offset.to_bytes(_OFFSET_BYTES, "big")
    common = 0
    while common < _OFFSET_BYTES and low[common] == high[common]:
        common += 1
    pattern = re.compile(b"(?=%b.{%d}[\x02\x03])" % (re.escape(low[:common]), _MAGIC_AT - common), re.DOTALL)
    end = min(records.size_bytes, start + SEARCH_LIMIT_BYTES)
    chunk_end = start
    while True:
        data_start, data_end = records.next_data(chunk_end)
        chunk_start = max(chunk_end, data_start - _MAGIC_AT)
        if chunk_start >= end:
            return None
        chunk_end = min(chunk_start + _CHUNK_BYTES, data_end, end)
        read_end = min(chunk_end + _MAGIC_AT, records.size_bytes)  # so that a header may begin at the chunk's last byte
        try:
            chunk = records.read(chunk_start, read_end - chunk_start)
        except DamagedLog:
            return None  # the file has been cut since it was opened
        for match in pattern.finditer(chunk):
            position = chunk_start + match.start()
            header = _intact_header_at(records, position)
            if header is not None and expected_offset < header.base_offset <= end_offset:
                return position, header.base_offset


def header_at(records: FileRecords, position: int) -> BatchHeader | None:
    """The header at `position`, if the bytes there can be one. Nothing is verified."""
    if records.size_bytes - position < HEADER_BYTES:
        return None
    try:
        return read_header(records.read(position, HEADER_BYTES))
    except CorruptBatch:
        return None


def _intact_header_at(records: FileRecords, position: int) -> BatchHeader | None:
    header = header_at(records, position)
    if header is None or position + header.size_bytes > records.size_bytes:
        return None
    return header if is_intact(records, header, position) else None
