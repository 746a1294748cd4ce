"""Continue reading after damage in the middle of a log file.

Headers form a chain: each gives the position of the next one. After a damaged header the chain continues directly after
the batch, if its length is plausible, or at the next bytes that are an intact batch (header and CRC).

If two headers contradict each other, the second one may be correct and the first one claim more offsets than it has.
The CRC decides.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.record.batch_scan import DamagedLog
from warmlog_broker.storage.record.file_records import FileRecords
from warmlog_protocol.batch.header import HEADER_BYTES, BatchHeader, check_crc, read_header
from warmlog_protocol.errors import CorruptBatch

SEARCH_LIMIT_BYTES = 64 * 1024 * 1024
"""How far after the damage an intact batch is looked for."""

_CHUNK_BYTES = 4 * 1024 * 1024
_MAGIC_AT = 16
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class Damage:
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

    def error(self) -> DamagedLog:
        return DamagedLog(self.path, self.position, self._describe(), self.next_offset)

    def _describe(self) -> str:
        return (
            f"offsets {self.first_offset} to {self.next_offset - 1} are damaged, "
            f"positions {self.position} to {self.end_position}: {self.reason}"
        )


class ChainedBatch(NamedTuple):
    """A batch whose end is confirmed by the header of the next batch."""

    header: BatchHeader
    position: int
    damage: DamagedLog | None
    """The damage between the previous batch and this one, if any."""


def walk_around_damage(records: FileRecords, start: int, low_offset: int, max_offset: int) -> Iterator[ChainedBatch]:
    """Yield the batches from position `start` on that are not damaged.

    Their offsets rise and are in `[low_offset, max_offset]`. The end of the last one is not confirmed.
    """
    damage: DamagedLog | None = None
    while True:
        held: ChainedBatch | None = None  # yielded once the next header confirms it
        try:
            for header, position in records.batches(start):
                if header.base_offset < low_offset or header.last_offset > max_offset:
                    raise DamagedLog(records.path, position, f"unexpected base offset {header.base_offset}")
                if held is not None:
                    yield held
                    low_offset = held.header.next_offset
                held, damage = ChainedBatch(header, position, damage), None
        except DamagedLog as error:
            damage = error
            if held is not None and _is_contradicted(records, held, low_offset, error.position):
                damage = DamagedLog(records.path, held.position, "contradicted by the following batch")
                held = None
        if held is not None:
            yield held
            low_offset = held.header.next_offset
        if damage is None:
            return
        following = resume_after_damage(records, damage.position, low_offset, max_offset)
        if following is None:
            return
        start, low_offset = following


def _is_contradicted(records: FileRecords, batch: ChainedBatch, low_offset: int, next_position: int) -> bool:
    """Whether `batch` is damaged, and not the one at `next_position`, given that they do not fit together.

    No CRC covers base offsets. `batch` has a wrong one if the next batch has the offset that was expected of `batch`.
    """
    if not is_intact(records, batch.header, batch.position):
        return True
    following = _intact_header_at(records, next_position)
    return following is not None and low_offset < batch.header.base_offset and low_offset <= following.base_offset


def is_intact(records: FileRecords, header: BatchHeader, position: int) -> bool:
    """Whether the batch at `position` has the CRC that its header gives. Reads all of it."""
    try:
        check_crc(header, records.read(position, header.size_bytes))
    except CorruptBatch:
        return False
    return True


def find_after_damage(
    records: FileRecords, position: int, expected_offset: int, max_offset: int
) -> tuple[int, int] | None:
    """Find where the chain continues after the damage at `position`: (position, offset of the batch there).

    The offset is above `expected_offset`, which the damaged batch should have had, and at most `max_offset`. At the end
    of the file it is the offset of the next batch to be appended. None if no intact batch is found.
    """
    return _by_length(records, position, expected_offset, max_offset) or _by_search(
        records, position + 1, expected_offset, max_offset
    )


def resume_after_damage(
    records: FileRecords, position: int, expected_offset: int, max_offset: int
) -> tuple[int, int] | None:
    """As `find_after_damage`, but None if only the end of the file follows."""
    following = find_after_damage(records, position, expected_offset, max_offset)
    return None if following is None or following[0] >= records.size_bytes else following


def _by_length(records: FileRecords, position: int, expected_offset: int, max_offset: int) -> tuple[int, int] | None:
    """Trust the damaged batch's own length and offset delta, if the next batch confirms them."""
    header = header_at(records, position)
    if header is None:
        return None
    next_position = position + header.size_bytes
    next_offset = expected_offset + header.last_offset_delta + 1
    if next_offset > max_offset or next_position > records.size_bytes:
        return None
    if next_position == records.size_bytes:
        return next_position, next_offset
    following = _intact_header_at(records, next_position)
    if following is None or following.base_offset != next_offset:
        return None
    return next_position, next_offset


def _by_search(records: FileRecords, start: int, expected_offset: int, max_offset: int) -> tuple[int, int] | None:
    """Try each byte at which an intact batch with a possible offset might begin."""
    pattern = _header_pattern(expected_offset, max_offset)
    end = min(records.size_bytes, start + SEARCH_LIMIT_BYTES)
    for chunk_start in range(start, end, _CHUNK_BYTES):
        chunk_end = min(chunk_start + _CHUNK_BYTES, end) + _MAGIC_AT  # so that a header may begin at its last byte
        chunk = records.read(chunk_start, min(chunk_end, records.size_bytes) - chunk_start)
        for match in pattern.finditer(chunk):
            position = chunk_start + match.start()
            header = _intact_header_at(records, position)
            if header is not None and expected_offset < header.base_offset <= max_offset:
                return position, header.base_offset
    return None


def _header_pattern(expected_offset: int, max_offset: int) -> re.Pattern[bytes]:
    """A pattern that matches, consuming nothing, where a header with a base offset in that range might begin."""
    low, high = expected_offset.to_bytes(_OFFSET_BYTES, "big"), max_offset.to_bytes(_OFFSET_BYTES, "big")
    common = 0
    while common < _OFFSET_BYTES and low[common] == high[common]:
        common += 1
    return re.compile(b"(?=%b.{%d}[\x02\x03])" % (re.escape(low[:common]), _MAGIC_AT - common), re.DOTALL)


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
