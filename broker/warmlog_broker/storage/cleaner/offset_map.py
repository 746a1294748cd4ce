"""The last offset of each key in the dirty part of a log, for as many keys as fit into memory: compaction's first half.

Kafka keeps 24 bytes for each key (its MD5 and an offset) in one table. In Python a dictionary takes about eight times
as much and is ten times as fast as probing a table, as one call handles a whole batch; and if a pass runs out of memory
another one follows. So this is a dictionary whose number of entries is bounded.

Keys below 32 bytes are stored as they are, longer ones as a digest of 32 bytes (BLAKE2b), a length that no other key
has.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import repeat

from warmlog_broker.storage.cleaner.aborted_data import TransactionWalk
from warmlog_broker.storage.cleaner.sources import SourceSegment
from warmlog_broker.storage.cleaner.throttle import CleaningPace
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_protocol.batch import Columns, RecordBatch
from warmlog_protocol.batch.header import NO_OFFSET

ENTRY_BYTES = 208
"""What one entry takes at most: 80 for a key of 32 bytes, 32 for the offset, and a dictionary that has just grown."""

_DIGEST_BYTES = 32


class OffsetMap:
    """Key to offset. Later offsets replace earlier ones."""

    def __init__(self, memory_bytes: int) -> None:
        """ValueError if there is no room for a single key."""
        self.capacity = memory_bytes // ENTRY_BYTES
        """How many keys it may hold."""
        if self.capacity < 1:
            raise ValueError(f"{memory_bytes} bytes hold no key, one takes {ENTRY_BYTES}")
        self.latest_offset = NO_OFFSET
        """Up to where (inclusive) the log is reflected."""
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room_for(self, keys: int) -> bool:
        """Whether that many more keys fit if none is known. An empty map takes any number."""
        return not self._offsets or len(self._offsets) + keys <= self.capacity

    def put_all(self, keys: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Note the offset of each key, in rising order of the offsets."""
        if not keys:
            return
        self._offsets.update(zip(_short(keys), offsets, strict=True))
        self.latest_offset = offsets[-1]

    def offsets_of(self, keys: Sequence[bytes]) -> list[int]:
        """The last offset of each key, -1 for one that was not put."""
        return list(map(self._offsets.get, _short(keys), repeat(NO_OFFSET)))


def _short(keys: Sequence[bytes]) -> Iterable[bytes]:
    if max(map(len, keys), default=0) < _DIGEST_BYTES:
        return keys
    return [key if len(key) < _DIGEST_BYTES else blake2b(key, digest_size=_DIGEST_BYTES).digest() for key in keys]


def fill_map(
    sources: Iterable[SourceSegment],
    first_dirty_offset: int,
    offsets: OffsetMap,
    aborted: Iterable[AbortedTxn],
    pace: CleaningPace,
    max_decompressed_bytes: int,
) -> int:
    """Put the keys of `sources`, the dirty segments in order, into `offsets`; return the offset up to which it went.

    That is the end of the last segment, or, once the map is full, the end of the last batch that fitted. Aborted data
    is left out: it overwrites nothing. CorruptBatch if a batch is damaged.
    """
    transactions = TransactionWalk(aborted)
    offsets.latest_offset = first_dirty_offset - 1
    for source in sources:
        for batch in source.batches(pace, max_decompressed_bytes):
            if batch.header.is_control:
                transactions.end(batch.header, batch.control_type)
            elif not transactions.is_aborted(batch.header) and not _put(batch, first_dirty_offset, offsets):
                return offsets.latest_offset + 1
            if batch.last_offset >= first_dirty_offset:
                offsets.latest_offset = batch.last_offset
            pace.after(batch.size_bytes)
        offsets.latest_offset = source.next_base_offset - 1
    return offsets.latest_offset + 1


def _put(batch: RecordBatch, first_dirty_offset: int, offsets: OffsetMap) -> bool:
    """Put in the batch's records from `first_dirty_offset` on; False, and none of them, if there is no room."""
    columns = batch.columns
    if batch.last_offset < first_dirty_offset or not batch.record_count or columns.key_lengths is None:
        return True
    if not offsets.has_room_for(batch.record_count):
        return False
    for part in columns.parts():
        _put_part(part, batch.base_offset, first_dirty_offset, offsets)
    return True


def _put_part(columns: Columns, base_offset: int, first_dirty_offset: int, offsets: OffsetMap) -> None:
    keys: Sequence[bytes | None] = columns.key_list()
    key_offsets: Sequence[int] = [base_offset + delta for delta in columns.offset_delta_list()]
    if key_offsets[0] < first_dirty_offset or None in keys:
        found = [
            (key, offset)
            for key, offset in zip(keys, key_offsets, strict=True)
            if key is not None and offset >= first_dirty_offset
        ]
        if not found:
            return
        keys, key_offsets = zip(*found, strict=True)
    offsets.put_all(keys, key_offsets)  # type: ignore[arg-type]  # none of them is None
