"""Restores a backup into new data directories, and compares each file with its checksum.

warmlog.properties is written first and metadata.log last: a broker refuses a directory that has only the first, as an
interrupted restore leaves it. Then producer ids are skipped that were assigned after the backup: producers that still
use them must not share one with a new producer, or the broker would take batches of one for those of the other.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from warmlog_broker.data_dirs.directory_set import commit
from warmlog_broker.metadata.metadata_log import FILE_NAME, ProducerIdsReserved
from warmlog_broker.storage.directory.properties import FORMAT_NAME
from warmlog_broker.storage.io.copy_bytes import copy_bytes
from warmlog_broker.storage.io.durable_files import make_directories, sync_directory
from warmlog_broker.tools.backup.manifest import (
    MANIFEST_NAME,
    BackupError,
    FileEntry,
    Manifest,
    complete_backups,
    read_manifest,
    sha256_of,
)
from warmlog_broker.tools.users import metadata_log

SKIPPED_PRODUCER_IDS = 1 << 32
"""More than a broker assigns between a backup and its restoration."""


def choose_backup(directory: Path) -> Path:
    """Return `directory` if it is a backup, or the newest complete backup in it; BackupError if there is none."""
    if (directory / MANIFEST_NAME).exists():
        return directory
    backups = complete_backups(directory)
    if not backups:
        raise BackupError(f"{directory} is not a backup and has no complete one in it")
    return backups[-1]


def restore(
    backup: Path,
    data_dirs: Sequence[Path],
    *,
    on_copied: Callable[[str, int], None] = lambda _name, _count: None,
) -> Manifest:
    """Restore `backup` into `data_dirs`, as many as it has data directories, which must be missing or empty.

    They are durable on return; the backup is only read. `on_copied` gets the path of a file and how many bytes of it
    have been copied. BackupError if a file is not what was backed up, OSError from a disk: then the directories cannot
    be used, and must be removed before the next try.
    """
    manifest = read_manifest(backup)
    _check_targets(manifest, data_dirs)
    last = f"data-0/{FILE_NAME}"
    if last not in manifest.files:
        raise BackupError(f"{backup / MANIFEST_NAME} does not name {last}: restore another backup")
    targets = {f"data-{number}": path for number, path in enumerate(data_dirs)}
    for path in data_dirs:
        make_directories(path)
    made = set(data_dirs)
    for name in sorted(manifest.files, key=lambda name: (name == last, not name.endswith(f"/{FORMAT_NAME}"), name)):
        top, _, rest = name.partition("/")
        target = targets[top] / rest
        if name == last:
            _sync_all(made)
        if target.parent not in made:
            target.parent.mkdir()
            made.add(target.parent)
        _restore_file(backup / name, target, manifest.files[name], on_copied)
    sync_directory(data_dirs[0])
    with metadata_log(data_dirs[0]) as log:
        commit(log, [ProducerIdsReserved(log.state.next_producer_id + SKIPPED_PRODUCER_IDS)])
    return manifest


def _check_targets(manifest: Manifest, data_dirs: Sequence[Path]) -> None:
    if len(data_dirs) != len(manifest.data_dirs):
        raise BackupError(
            f"the backup has {len(manifest.data_dirs)} data directories ({', '.join(manifest.data_dirs)}), and "
            f"{len(data_dirs)} were given: give one for each, in this order. Nothing was changed"
        )
    if len({path.resolve() for path in data_dirs}) != len(data_dirs):
        raise BackupError("two data directories are the same: give another one for each. Nothing was changed")
    for path in data_dirs:
        if path.exists() and any(path.iterdir()):
            raise BackupError(f"{path} is not empty: move it away, or give a new directory. Nothing was changed")


def _restore_file(source: Path, target: Path, entry: FileEntry, on_copied: Callable[[str, int], None]) -> None:
    """Copy one file, durably except its name, and compare what was read with its checksum."""
    try:
        file = source.open("rb")
    except FileNotFoundError:
        raise BackupError(f"{source} is missing: restore another backup") from None
    with file:
        found = os.fstat(file.fileno())
        if found.st_size != entry.size_bytes:
            raise BackupError(
                f"{source} is damaged: {entry.size_bytes} bytes expected, {found.st_size} found. Restore another backup"
            )
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(target, flags, found.st_mode & 0o777)
        try:
            copy_bytes(file.fileno(), descriptor, found.st_size, lambda count: on_copied(target.parent.name, count))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if sha256_of(target) != entry.sha256:
        raise BackupError(f"{source} is damaged: its SHA-256 is not that in {MANIFEST_NAME}. Restore another backup")


def _sync_all(directories: set[Path]) -> None:
    for directory in directories:
        sync_directory(directory)
