"""The file `truncation`: what a partition's directory says of a truncation that the checkpoints do not know yet.

A truncation touches several files, and the checkpoints of the data directory may be above its offset for a while
longer. So it is written down first, durably, and from then on the log is one that has been truncated: a start that
finds the file as `cutting` finishes the work, one that finds it as `done` only believes no checkpoint that is above
it. The file goes once checkpoints know of it (`LogTruncation.checkpointed`), or at a start after a clean stop.

Text, one line for each of these; the file is replaced as a whole::

    version: 0
    state: cutting                or done
    offset: 4711                  where the log ends afterwards
    log_start_offset: 4000        where it may be read from
    full: 0                       1: nothing that was there before stays, and the log begins anew at `offset`

A file that cannot be understood is StorageError: the log is not opened, for whatever it was to forget is still there.
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
    """A truncation that was begun, and may be done."""

    offset: int
    log_start_offset: int
    is_full: bool = False
    is_done: bool = False

    def capped(self, stored: StoredState) -> StoredState:
        """What may be believed of `stored`, which may be from before the truncation."""
        before = stored.offsets
        offsets = LogOffsets(
            min(before.recovery_point, self.offset),
            self.log_start_offset,
            min(before.high_watermark, self.offset),
            min(before.first_dirty_offset, self.offset),
        )
        return StoredState(offsets, None)


def write_truncation(directory: Path, truncation: Truncation) -> None:
    """Makes `truncation` what the file says, durably."""
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
    """What the file says; None when there is none. StorageError when it cannot be understood."""
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
    """The file is there no more, durably."""
    (directory / TRUNCATION_NAME).unlink(missing_ok=True)
    sync_directory(directory)


def believe(directory: Path, stored: StoredState) -> tuple[StoredState, Truncation | None]:
    """What may be believed of `stored`, and the truncation that is the reason, if there is one.

    A clean stop came after its checkpoints, which therefore know of all that was done.
    """
    truncation = read_truncation(directory)
    if truncation is None:
        return stored, None
    if truncation.is_done and stored.clean_end is not None:
        remove_truncation(directory)
        return stored, None
    return truncation.capped(stored), truncation
