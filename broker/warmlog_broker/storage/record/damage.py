"""Getting past damage in the middle of a log file.

Headers form a chain: each says where the next one begins. Where one is damaged, the chain may be picked up again: right
behind it, if its length can be believed, or at the next bytes that are an intact batch, header and CRC.

Where two headers contradict each other, the second may be as it was written: the first claims more offsets than it
has. Then its CRC tells.
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
"""How far behind the damage an intact batch is looked for."""

_CHUNK_BYTES = 4 * 1024 * 1024
_MAGIC_AT = 16
_OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that should be batches and are not: `[position, end_position)` of `path`."""

    path: Path
    position: int
    end_position: int
    first_offset: int
    next_offset: int
    """The offsets `[first_offset, next_offset)` cannot be read."""
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self._in_words()}"

    def error(self) -> DamagedLog:
        """What a read of these offsets raises."""
        return DamagedLog(self.path, self.position, self._in_words(), self.next_offset)

    def _in_words(self) -> str:
        return (
            f"offsets {self.first_offset} to {self.next_offset - 1} are damaged, "
            f"positions {self.position} to {self.end_position}: {self.reason}"
        )


class Step(NamedTuple):
    """A batch of the chain, whose claims the batch behind it bears out."""

    header: BatchHeader
    position: int
    damage: DamagedLog | None
    """What lies between it and the batch before it; None for nothing."""


def walk_around_damage(records: FileRecords, start: int, low_offset: int, max_offset: int) -> Iterator[Step]:
    """The batches from position `start` on, without what is damaged.

    Their offsets lie in `[low_offset, max_offset]` and rise. The last one is not borne out by any other.
    """
    before: Step | None = None
    damage: DamagedLog | None = None
    while True:
        try:
            for header, position in records.batches(start):
                if header.base_offset < low_offset or header.last_offset > max_offset:
                    raise DamagedLog(records.path, position, f"base offset {header.base_offset} cannot be there")
                if before is not None:
                    yield before
                    low_offset = before.header.next_offset
                before, damage = Step(header, position, damage), None
        except DamagedLog as error:
            damage = error
            if before is not None and _is_contradicted(records, before, low_offset, error.position):
                damage = DamagedLog(records.path, before.position, "the batch behind it gives it the lie")
            elif before is not None:
                yield before
                low_offset = before.header.next_offset
            before = None
            behind = find_behind_damage(records, damage.position, low_offset, max_offset)
            if behind is None or behind[0] >= records.size_bytes:
                return
            start, low_offset = behind
        else:
            if before is not None:
                yield before
            return


def _is_contradicted(records: FileRecords, step: Step, low_offset: int, next_position: int) -> bool:
    """Whether the batch of `step`, and not the one at `next_position`, is damaged, as they do not fit together.

    A damaged base offset, which no CRC covers, shows where the next batch has the offset that was expected.
    """
    if not is_intact(records, step.header, step.position):
        return True
    following = _intact_header_at(records, next_position)
    return following is not None and low_offset < step.header.base_offset and low_offset <= following.base_offset


def is_intact(records: FileRecords, header: BatchHeader, position: int) -> bool:
    """Whether the batch at `position` has the CRC that its header says. Reads all of it."""
    try:
        check_crc(header, records.read(position, header.size_bytes))
    except CorruptBatch:
        return False
    return True


def find_behind_damage(
    records: FileRecords, position: int, expected_offset: int, max_offset: int
) -> tuple[int, int] | None:
    """Where the chain goes on after the damage at `position`: (position, offset of the batch there).

    The offset lies above `expected_offset`, which the damaged batch should have had, and is at most `max_offset`; at
    the end of the file it is that of the next batch to come. None when nothing intact is found.
    """
    return _by_length(records, position, expected_offset, max_offset) or _by_search(
        records, position + 1, expected_offset, max_offset
    )


def _by_length(records: FileRecords, position: int, expected_offset: int, max_offset: int) -> tuple[int, int] | None:
    """Believes the damaged batch's own length and offset delta, if the next batch bears them out."""
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
    """Looks at each byte on which an intact batch with a fitting offset might begin."""
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
    """Matches, without consuming anything, where a header with a base offset in that range might begin."""
    low, high = expected_offset.to_bytes(_OFFSET_BYTES, "big"), max_offset.to_bytes(_OFFSET_BYTES, "big")
    common = 0
    while common < _OFFSET_BYTES and low[common] == high[common]:
        common += 1
    return re.compile(b"(?=%b.{%d}[\x02\x03])" % (re.escape(low[:common]), _MAGIC_AT - common), re.DOTALL)


def header_at(records: FileRecords, position: int) -> BatchHeader | None:
    """What lies at `position`, if it can be the header of a batch. Nothing is verified."""
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
