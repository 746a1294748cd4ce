"""Restores a backup into new data directories, and compares each file with its checksum.

warmlog.properties is written first and metadata.log last, as a whole: a broker refuses a directory that has only the
first, as an interrupted restore leaves it. In it, producer ids are skipped that were assigned after the backup:
producers that still use them must not share one with a new producer, or the broker would take batches of one for those
of the other.
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from warmlog_broker.data_dirs.directory_set import HARMLESS_NAMES
from warmlog_broker.metadata.log_file import FILE_NAME, pack_record, read_records
from warmlog_broker.metadata.metadata_log import ProducerIdsReserved
from warmlog_broker.storage.directory.properties import FORMAT_NAME
from warmlog_broker.storage.io.copy_bytes import copy_file
from warmlog_broker.storage.io.durable_files import make_directories, naming_full_disk, replace_file, sync_directory
from warmlog_broker.tools.backup.manifest import (
    MANIFEST_NAME,
    BackupError,
    FileEntry,
    Manifest,
    complete_backups,
    read_manifest,
    sha256_of,
)

SKIPPED_PRODUCER_IDS = 1 << 32
"""More than a broker assigns between a backup and its restoration."""
_FILE = re.compile(r"data-(\d+)(/[^/]+)?/[^/]+")


def choose_backup(directory: Path) -> Path:
    """Return `directory` if it is a backup, or the newest complete backup in it; BackupError if there is none."""
    if (directory / MANIFEST_NAME).exists():
        return directory
    backups = complete_backups(directory)
    if not backups:
        raise BackupError(f"{directory} is not a backup and has no complete one in it")
    return backups[-1]


def restore(
    backup: Path, data_dirs: Sequence[Path], *, on_copied: Callable[[str, int], None] = lambda _name, _count: None
) -> Manifest:
    """Restore `backup` into `data_dirs`, as many as it has data directories, which must be missing or empty.

    They are durable on return; the backup is only read. `on_copied` gets the path of a file and how many bytes of it
    have been copied. BackupError if a file is not what was backed up, OSError from a disk: then the directories cannot
    be used, and must be removed before the next try.
    """
    manifest = read_manifest(backup)
    if len(data_dirs) != len(manifest.data_dirs):
        raise BackupError(
            f"the backup has {len(manifest.data_dirs)} data directories ({', '.join(manifest.data_dirs)}), and "
            f"{len(data_dirs)} were given: give one for each, in this order. Nothing was changed"
        )
    if len({path.resolve() for path in data_dirs}) != len(data_dirs):
        raise BackupError("two data directories are the same: give another one for each. Nothing was changed")
    for path in data_dirs:
        if path.exists() and any(each.name not in HARMLESS_NAMES for each in path.iterdir()):
            raise BackupError(f"{path} is not empty: move it away, or give a new directory. Nothing was changed")
    last = f"data-0/{FILE_NAME}"
    if last not in manifest.files:
        raise BackupError(f"{backup / MANIFEST_NAME} does not name {last}: restore another backup")
    targets = {name: _target(name, data_dirs, backup) for name in manifest.files}
    for path in data_dirs:
        make_directories(path)
    made = set(data_dirs)
    for name in sorted(targets.keys() - {last}, key=lambda name: (not name.endswith(f"/{FORMAT_NAME}"), name)):
        target = targets[name]
        if target.parent not in made:
            target.parent.mkdir()
            made.add(target.parent)
        with naming_full_disk(target):
            _restore_file(backup / name, target, manifest.files[name], on_copied)
    for path in made:
        sync_directory(path)
    staged = targets[last].with_name(f"{FILE_NAME}.restored")
    with naming_full_disk(staged):
        _restore_file(backup / last, staged, manifest.files[last], on_copied)
        content = staged.read_bytes()
        loaded = read_records(content, staged)
        skipped = ProducerIdsReserved(loaded.state().next_producer_id + SKIPPED_PRODUCER_IDS)
        valid = content[: loaded.valid_bytes]
        replace_file(staged, valid + pack_record(skipped, len(valid)), mode=staged.stat().st_mode & 0o777)
    staged.replace(targets[last])
    sync_directory(staged.parent)
    return manifest


def _target(name: str, data_dirs: Sequence[Path], backup: Path) -> Path:
    """Return where the file `name` of the manifest goes; BackupError if that is outside of the data directories."""
    found = _FILE.fullmatch(name)
    if found is None or int(found[1]) >= len(data_dirs) or ".." in name.split("/"):
        raise BackupError(f"{backup / MANIFEST_NAME} is damaged: {name!r} is no file of a data directory in it")
    return data_dirs[int(found[1])] / name.partition("/")[2]


def _restore_file(source: Path, target: Path, entry: FileEntry, on_copied: Callable[[str, int], None]) -> None:
    """Copy one file, durably except its name, and compare what was read with its checksum."""
    try:
        file = source.open("rb")
    except FileNotFoundError:
        raise BackupError(f"{source} is missing: restore another backup") from None
    with file:
        copy_file(file.fileno(), target, os.fstat(file.fileno()), lambda count: on_copied(target.parent.name, count))
    if sha256_of(target) != entry.sha256:
        raise BackupError(f"{source} is damaged: its SHA-256 is not that in {MANIFEST_NAME}. Restore another backup")
