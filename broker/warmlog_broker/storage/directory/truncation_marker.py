"""The file `truncation` in a partition's directory: a truncation that the checkpoints do not reflect yet.

A truncation changes several files, and the checkpoints of the data directory may be above its offset for a while. So
this file is written first, durably, and from then on the log counts as truncated: a start that finds the state
`cutting` finishes the work; one that finds `done` only caps checkpoints that are above the offset. The file is removed
once newer checkpoints have been written (`LogTruncation.checkpointed`), or at a start after a clean stop.

Text, replaced as a whole::

    version: 0
    state: cutting                or done
    offset: 4711                  the log's end afterwards
    log_start_offset: 4000        the log's start afterwards
    full: 0                       1: all earlier data is dropped, and the log starts empty at `offset`

A malformed file is a StorageError and the log is not opened, because the data that it was to drop is still there.
"""

from pathlib import Path
from typing import NamedTuple

from warmlog_broker.storage.directory.data_dir import LogOffsets, StoredState
from warmlog_broker.storage.io.durable_files import replace_file, sync_directory
from warmlog_protocol.errors import StorageError

TRUNCATION_NAME = "truncation"

_VERSION = "0"
_CUTTING, _DONE = "cutting", "done"
_KEYS = ["version", "state", "offset", "log_start_offset", "full"]


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
    values = [
        _VERSION,
        _DONE if truncation.is_done else _CUTTING,
        truncation.offset,
        truncation.log_start_offset,
        int(truncation.is_full),
    ]
    text = "".join(f"{key}: {value}\n" for key, value in zip(_KEYS, values, strict=True))
    replace_file(directory / TRUNCATION_NAME, text.encode())


def read_truncation(directory: Path) -> Truncation | None:
    """Read the file; None if there is none. StorageError if it is malformed."""
    path = directory / TRUNCATION_NAME
    try:
        text = path.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    fields = [line.split(": ", 1) for line in text.splitlines()]
    values = [field[-1] for field in fields]
    if (
        [field[0] for field in fields] != _KEYS
        or values[0] != _VERSION
        or values[1] not in (_CUTTING, _DONE)
        or not all(value.isdecimal() for value in values[2:])
        or values[4] not in ("0", "1")
    ):
        raise StorageError(f"{path}: expected version {_VERSION} and lines {', '.join(_KEYS[1:])}, found {text!r}")
    return Truncation(int(values[2]), int(values[3]), is_full=values[4] == "1", is_done=values[1] == _DONE)


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
