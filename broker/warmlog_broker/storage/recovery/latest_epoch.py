"""The latest leader epoch of a log that is not open yet: a start asks for it before it opens any.

The last batch has it, and the epochs file is only a copy. An epoch that begins after that batch is in the file alone,
and no batch contradicts it. In a log that was closed the batches are read only if the file says more than the cluster's
store knows, or cannot be read.
"""

from contextlib import closing
from pathlib import Path

from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME, EpochStart, read_epochs
from warmlog_broker.storage.directory.partition_files import read_restart_point
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.segment.file_records import FileRecords
from warmlog_broker.storage.segment.scan import Damage, scan
from warmlog_broker.storage.segment.segment_files import LOG_KIND, base_offsets_in, segment_file_name
from warmlog_broker.storage.segment.segment_indexes import place_in_segment
from warmlog_protocol.batch.header import NO_LEADER_EPOCH, NO_OFFSET, BatchHeader
from warmlog_protocol.errors import StorageError


def latest_epoch(directory: Path, known: int, *, was_closed: bool) -> tuple[int, int]:
    """Return the latest leader epoch in the log in `directory`, -1 without any, and how many bytes its last segment has
    after the restart point, 0 if nothing had to be read.

    `known` is the epoch of the cluster's store. What cannot be read counts as nothing: opening the log reports it.
    """
    claimed = _in_file(directory / EPOCHS_NAME)
    if was_closed and NO_LEADER_EPOCH < claimed.epoch <= known:
        return claimed.epoch, 0
    batch, size_bytes = _last_batch(directory)
    if batch is None or batch.last_offset < claimed.start_offset:
        return claimed.epoch, size_bytes
    return batch.partition_leader_epoch, size_bytes


def _in_file(path: Path) -> EpochStart:
    try:
        epochs = read_epochs(path)
    except (OSError, StorageError):
        epochs = []
    return EpochStart(*epochs[-1]) if epochs else EpochStart(NO_LEADER_EPOCH, NO_OFFSET)


def _last_batch(directory: Path) -> tuple[BatchHeader | None, int]:
    """Read the headers of the last segment that has batches, and return the last one and the bytes from the restart
    point on. Nothing is read of an empty file."""
    point = read_restart_point(directory)
    try:
        base_offsets = base_offsets_in(directory)
    except OSError:
        return None, 0
    for base_offset in reversed(base_offsets):
        path = directory / segment_file_name(base_offset, LOG_KIND)
        try:
            with closing(FileRecords.open_read_only(path, OpenFiles())) as records:
                known, checked = 0, 0
                if point is not None and point.segment == base_offset:
                    known, checked = point.index_position, point.position
                last = _last_from(records, known, base_offset) or _last_from(records, 0, base_offset)
        except OSError:
            return None, 0
        if last is not None:
            return last, max(0, records.size_bytes - checked)
    return None, 0


def _last_from(records: FileRecords, start: int, base_offset: int) -> BatchHeader | None:
    last = None
    for found in scan(records, start, place_in_segment(base_offset)):
        last = last if isinstance(found, Damage) else found[0]
    return last
