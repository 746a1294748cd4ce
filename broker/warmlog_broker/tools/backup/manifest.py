"""A directory of backups, and the manifest of each of them.

::

    backups/
      20261123T141500.000Z/          a backup: complete, or it would have the suffix .partial
        manifest.json                `Manifest`, written last
        data-0/                      the first data directory: metadata.log, checkpoints, a directory for each partition
        data-1/                      the second one

Files that did not change since the backup before are hard links to it, so any backup may be removed without the others.
A data directory in a backup has no lock and no clean-shutdown marker: to a broker it looks like one after a power cut.
"""

import hashlib
import os
import re
from pathlib import Path

import msgspec

from warmlog_protocol.errors import WarmlogError

MANIFEST_NAME = "manifest.json"
PARTIAL_SUFFIX = ".partial"
VERSION = 1

NAME = re.compile(r"\d{8}T\d{6}\.\d{3}Z")


class BackupError(WarmlogError):
    """A backup cannot be made or restored; the message says why and what to do."""


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """What tells a file that is never written again from any other file of the same name."""

    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "Identity":
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class FileEntry(msgspec.Struct, frozen=True):
    size_bytes: int
    sha256: str
    source: Identity | None = None
    """The file that it was copied from, if that is never written again."""


class Manifest(msgspec.Struct, frozen=True):
    """What a backup holds."""

    version: int
    made_ms: int
    cluster_id: str
    data_dirs: tuple[str, ...]
    """The paths of the data directories; the first is in `data-0`, and so on."""
    files: dict[str, FileEntry]
    """By path within the backup."""


def read_manifest(backup: Path) -> Manifest:
    """Return the manifest of `backup`; BackupError if there is none, or it cannot be read."""
    path = backup / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise BackupError(f"{backup} is not a backup: it has no {MANIFEST_NAME}") from None
    except msgspec.DecodeError as error:
        raise BackupError(f"{path} is damaged ({error}): restore another backup") from None
    if manifest.version != VERSION:
        raise BackupError(
            f"{path} has the version {manifest.version}, this warmlog reads {VERSION}: install the newer version"
        )
    return manifest


def complete_backups(directory: Path) -> list[Path]:
    """Return the complete backups in `directory`, the oldest first."""
    return sorted(path for path in directory.iterdir() if NAME.fullmatch(path.name) and path.is_dir())


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
