"""Snapshot files of the producer state: `<end offset, 20 digits>.snapshot`, with Kafka's bytes.

The name is the offset up to which (exclusive) the snapshot reflects the log. Big-endian::

    i16  version = 1
    u32  CRC-32C of all that follows
    i32  entries
    each, 46 bytes: i64 producer id | i16 epoch | i32 last sequence | i64 last offset | i32 offset delta
                    i64 timestamp | i32 coordinator epoch | i64 first offset of the open transaction, -1 for none

Only the newest batch of each producer is stored: after a restart one batch is remembered, not five, and older ones are
looked up in the log. A producer that has only seen markers has sequence and offset -1.

A snapshot is taken when a segment is rolled (named after the new segment), and for a restart point, as at a clean stop
(named after the log end offset). A damaged one is removed with a warning; the next older one and the
batches after it replace it.
"""

import logging
from collections.abc import Collection
from pathlib import Path
from struct import Struct

from warmlog_broker.storage.io.durable_files import write_file
from warmlog_broker.storage.producer.producer_state import ProducerEntry, ProducerStates, RememberedBatch
from warmlog_broker.storage.segment.segment_files import segment_file_name
from warmlog_protocol.batch.header import NO_OFFSET, NO_SEQUENCE, NO_TIMESTAMP
from warmlog_protocol.codec.crc32c import crc32c
from warmlog_protocol.errors import StorageError

logger = logging.getLogger(__name__)

SNAPSHOT_SUFFIX = ".snapshot"
VERSION = 1

_HEAD = Struct(">hI")
_COUNT = Struct(">i")
_ENTRY = Struct(">qhiqiqiq")
_NO_BATCH = RememberedBatch(NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)


def pack_snapshot(states: ProducerStates) -> bytes:
    parts = [_COUNT.pack(len(states))]
    for entry in states.entries:
        last = entry.batches[-1] if entry.batches else _NO_BATCH
        parts.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        )
    body = b"".join(parts)
    return _HEAD.pack(VERSION, crc32c(body)) + body


def unpack_snapshot(content: bytes, now_ms: int) -> list[ProducerEntry]:
    """The entries of a snapshot file, last seen at `now_ms`; StorageError if it is damaged."""
    if len(content) < _HEAD.size + _COUNT.size:
        raise StorageError(f"expected at least {_HEAD.size + _COUNT.size} bytes, found {len(content)}")
    version, expected_crc = _HEAD.unpack_from(content)
    if version != VERSION:
        raise StorageError(f"expected version {VERSION}, found {version}")
    found_crc = crc32c(content[_HEAD.size :])
    if found_crc != expected_crc:
        raise StorageError(f"expected CRC {expected_crc:#010x}, found {found_crc:#010x}")
    (count,) = _COUNT.unpack_from(content, _HEAD.size)
    body = content[_HEAD.size + _COUNT.size :]
    if len(body) != count * _ENTRY.size:
        raise StorageError(f"expected {count} entries of {_ENTRY.size} bytes, found {len(body)} bytes")
    return [_entry(fields, now_ms) for fields in _ENTRY.iter_unpack(body)]


def _entry(fields: tuple[int, ...], now_ms: int) -> ProducerEntry:
    producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp_ms, coordinator_epoch, first_offset = fields
    entry = ProducerEntry(producer_id, epoch, now_ms)
    if last_offset != NO_OFFSET:
        entry.remember(RememberedBatch(last_sequence, last_offset, offset_delta, timestamp_ms))
    entry.last_timestamp_ms = timestamp_ms
    entry.coordinator_epoch = coordinator_epoch
    entry.transaction_first_offset = first_offset
    entry.remembers_all = False
    return entry


class ProducerSnapshots:
    """The snapshot files of one partition's directory."""

    def __init__(self, directory: Path, offsets: Collection[int]) -> None:
        """`offsets`: the snapshots in the directory, by their file names."""
        self.directory = directory
        self._offsets = set(offsets)

    def __contains__(self, offset: int) -> bool:
        return offset in self._offsets

    @property
    def offsets(self) -> list[int]:
        return sorted(self._offsets)

    def path(self, offset: int) -> Path:
        return self.directory / segment_file_name(offset, SNAPSHOT_SUFFIX)

    def take(self, states: ProducerStates) -> Path:
        """Write the snapshot of `states`; it is not synced."""
        path = self.path(states.end_offset)
        self._offsets.add(states.end_offset)
        try:
            write_file(path, pack_snapshot(states), sync=False)
        except OSError:
            self.remove(states.end_offset)
            raise
        return path

    def load_newest(self, states: ProducerStates, *, first_offset: int, at_most: int, now_ms: int) -> bool:
        """Fill `states` from the newest intact snapshot in `[first_offset, at_most]`; damaged ones are removed.

        `first_offset` is where the log's first segment begins: producers without data in the log are dropped, so that
        snapshots do not grow for ever. Returns False, with `states` empty at `first_offset`, if there is no snapshot.
        """
        states.clear(first_offset)
        for offset in reversed(self.offsets):
            if not first_offset <= offset <= at_most:
                continue
            path = self.path(offset)
            try:
                entries = unpack_snapshot(path.read_bytes(), now_ms)
            except (StorageError, FileNotFoundError) as error:
                logger.warning("%s is damaged and removed, the next older one is used: %s", path, error)
                self.remove(offset)
                continue
            for entry in entries:
                is_older = entry.batches and entry.batches[-1].last_offset < first_offset
                if entry.transaction_first_offset != NO_OFFSET or not is_older:
                    states.restore(entry)
            states.end_offset = offset
            return True
        return False

    def remove(self, offset: int) -> None:
        self.path(offset).unlink(missing_ok=True)
        self._offsets.discard(offset)

    def remove_outside(self, first_offset: int, last_offset: int) -> None:
        """Unlink the snapshots before `first_offset` and those after `last_offset`."""
        for offset in self.offsets:
            if not first_offset <= offset <= last_offset:
                self.remove(offset)

    def remove_strays(self, segment_base_offsets: Collection[int]) -> None:
        """Unlink the snapshots without a segment, except the newest if it is above all segments' base offsets."""
        kept = set(segment_base_offsets)
        newest = max(self._offsets, default=-1)
        if newest > max(kept, default=-1):
            kept.add(newest)
        for offset in self._offsets - kept:
            self.remove(offset)

    def mark_deleted(self, offset: int, suffix: str) -> Path | None:
        """Rename the snapshot of a segment that is removed; returns the new path, None if there is none."""
        if offset not in self._offsets:
            return None
        path = self.path(offset)
        try:
            marked: Path | None = path.rename(path.with_name(path.name + suffix))
        except FileNotFoundError:
            marked = None
        self._offsets.discard(offset)
        return marked
