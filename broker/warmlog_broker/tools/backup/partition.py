"""Copies one partition's directory while a broker appends to it, and retention and compaction remove segments.

A segment is settled if it is not the last one and ends at or below the recovery point: it is on disk, and its files
are replaced or removed, but never written. What follows is copied as it is at that moment, as after a power cut; the
indexes before the log, since a log is never older than what is written about it. All segments must be the files that
were listed: if one was replaced meanwhile, the directory is listed again, so that a backup never holds both the old
segments and the new ones of a compaction: a key in an old one would be back whose tombstone is gone from a new one.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

from warmlog_broker.storage.directory.leader_epochs import EPOCHS_NAME
from warmlog_broker.storage.directory.partition_files import METADATA_NAME, STATE_NAMES
from warmlog_broker.storage.producer.snapshots import SNAPSHOT_SUFFIX
from warmlog_broker.storage.recovery.recovery import CUT_SUFFIX
from warmlog_broker.storage.segment.segment_files import (
    KINDS,
    LOG_KIND,
    OFFSET_INDEX_KIND,
    TIME_INDEX_KIND,
    segment_file_name,
    split_name,
)
from warmlog_broker.storage.segment.segment_swap import CLEANED_SUFFIX, SWAP_SUFFIX
from warmlog_broker.tools.backup.manifest import BackupError, Identity
from warmlog_broker.tools.backup.storing import BackupFiles, FileChanged, identity_of

ATTEMPTS = 100
"""How often a directory is listed if its files change meanwhile."""
PAUSE_S = 0.05

_ENTRY_BYTES = {OFFSET_INDEX_KIND: 8, TIME_INDEX_KIND: 12}


def back_up_partition(
    source: Path,
    name: str,
    recovery_point: int,
    files: BackupFiles,
    *,
    pause: Callable[[], None] = lambda: time.sleep(PAUSE_S),
) -> int:
    """Take the directory `source` into the directory `name` of a backup; return the first segment's base offset.

    FileNotFoundError if the directory does not exist (any more), BackupError if it does not come to rest.
    """
    for _ in range(ATTEMPTS):
        with suppress(FileChanged):
            logs, others = _list(source)
            taken = _take_segments(source, name, logs, recovery_point, files)
            for other in others:
                with suppress(FileChanged):  # an old snapshot, or a marker that is no longer needed
                    files.take_growing(source / other, f"{name}/{other}")
                    taken.add(f"{name}/{other}")
            files.keep_only(name, taken)
            return next(iter(logs), 0)
        source.stat()
        pause()
    raise BackupError(
        f"{source} changed each of {ATTEMPTS} times that it was copied. If no broker is running, an interrupted "
        f"compaction is left there: start the broker, which finishes it, and back up again"
    )


def _list(source: Path) -> tuple[dict[int, Identity], list[str]]:
    """Return the log files by base offset, in order, and the names of producer snapshots up to the last segment, small
    files, and what recovery has set aside. FileChanged while a compaction exchanges segments."""
    names = sorted(path.name for path in source.iterdir())
    if any(name.endswith(SWAP_SUFFIX) for name in names):
        raise FileChanged(source)
    bases = [base for base, kind in map(split_name, names) if kind == LOG_KIND]
    logs = {base: identity_of(source / segment_file_name(base, LOG_KIND)) for base in bases}
    if sorted(path.name for path in source.glob(f"*{LOG_KIND}*")) != [name for name in names if LOG_KIND in name]:
        raise FileChanged(source)
    return logs, [name for name in names if _is_other(name, max(bases, default=0))]


def _is_other(name: str, last_base_offset: int) -> bool:
    offset, kind = split_name(name)
    if kind == SNAPSHOT_SUFFIX:
        return offset <= last_base_offset
    return name in (EPOCHS_NAME, METADATA_NAME, *STATE_NAMES) or (
        CUT_SUFFIX in name and not name.endswith((CLEANED_SUFFIX, ".tmp"))
    )


def _take_segments(
    source: Path, name: str, logs: dict[int, Identity], recovery_point: int, files: BackupFiles
) -> set[str]:
    """Take the files of all segments and return their names in the backup."""
    taken = set()
    for base, end in zip_longest(logs, list(logs)[1:]):
        is_settled = end is not None and end <= recovery_point
        for kind in KINDS:
            if kind != LOG_KIND and _take_index(source, name, base, kind, files, is_settled=is_settled):
                taken.add(f"{name}/{segment_file_name(base, kind)}")
        log_name = segment_file_name(base, LOG_KIND)
        if is_settled:
            files.take_final(source / log_name, f"{name}/{log_name}", logs[base])
        else:
            files.take_growing(source / log_name, f"{name}/{log_name}")
            if identity_of(source / log_name).inode != logs[base].inode:
                raise FileChanged(source / log_name)
        taken.add(f"{name}/{log_name}")
    return taken


def _take_index(source: Path, name: str, base: int, kind: str, files: BackupFiles, *, is_settled: bool) -> bool:
    """Take an index, without the part that was only reserved; False if there is none: it can be rebuilt."""
    path = source / segment_file_name(base, kind)
    target = f"{name}/{path.name}"
    try:
        if is_settled:
            files.take_final(path, target, Identity.of(path.stat()))
            return True
        content = path.read_bytes()
    except (FileNotFoundError, FileChanged):
        return False
    entry_bytes = _ENTRY_BYTES.get(kind)
    if entry_bytes is not None:
        used_bytes = len(content.rstrip(b"\0"))
        content = content[: -(-used_bytes // entry_bytes) * entry_bytes]
    files.write(target, content)
    return True
