"""Takes files into a backup: by a link to the same file of the backup before, a link to the source, or a copy."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from warmlog_broker.storage.io.copy_bytes import copy_file
from warmlog_broker.storage.io.durable_files import sync_directory, write_file
from warmlog_broker.tools.backup.manifest import BackupError, FileEntry, Identity, read_manifest, sha256_of


class FileChanged(Exception):
    """A file was removed or replaced since it was listed."""


def identity_of(path: Path) -> Identity:
    """Return what `path` is now; FileChanged if it is nothing."""
    try:
        return Identity.of(path.stat())
    except FileNotFoundError:
        raise FileChanged(path) from None


class BackupFiles:
    """The files of a backup that is being made in `root`. OSError from either disk."""

    def __init__(self, root: Path, previous: Path | None, on_copied: Callable[[str, int], None]) -> None:
        """`previous` is the backup to link unchanged files to, unless its manifest cannot be read.

        `on_copied` gets the name of a file's directory, and how many bytes more have been copied.
        """
        self.root = root
        self.entries: dict[str, FileEntry] = {}
        self.copied_bytes = 0
        self.linked_bytes = 0
        self._previous = previous
        self._known: dict[str, FileEntry] = {}
        self.previous_cluster_id: str | None = None
        if previous is not None:
            with suppress(BackupError):
                manifest = read_manifest(previous)
                self._known, self.previous_cluster_id = manifest.files, manifest.cluster_id
        self._on_copied = on_copied
        self._grown: dict[str, Identity] = {}
        """The growing files that were taken, as they were then: taken again only if they have changed."""

    def take_final(self, source: Path, name: str, listed: Identity) -> None:
        """Take a file that is never written again; FileChanged if it is not the one that was `listed`."""
        taken = self.entries.get(name)
        if taken is not None and taken.source == listed:
            return
        target = self._target(name)
        known = self._known.get(name)
        if known is not None and known.source == listed and self._link_to_previous(name, target, listed.size_bytes):
            self.entries[name] = known
            return
        if not self._link(source, target, listed):
            self._copy(source, target, listed)
        self.entries[name] = FileEntry(listed.size_bytes, sha256_of(target), listed)

    def take_growing(self, source: Path, name: str) -> None:
        """Take what is in a file now, which may be appended to meanwhile; FileChanged if there is none."""
        found = identity_of(source)
        if name in self.entries and self._grown.get(name) == found:
            return
        target = self._target(name)
        size_bytes = self._copy(source, target, None)
        self.entries[name] = FileEntry(size_bytes, sha256_of(target))
        self._grown[name] = found

    def write(self, name: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file of the backup."""
        target = self._target(name)
        write_file(target, content, sync=True, mode=mode)
        self.entries[name] = FileEntry(len(content), sha256_of(target))

    def forget(self, directory: str) -> None:
        """Remove what was taken into `directory`, if anything was."""
        self.keep_only(directory, set())
        with suppress(FileNotFoundError):
            (self.root / directory).rmdir()

    def keep_only(self, directory: str, names: set[str]) -> None:
        """Remove the files in `directory` that are not among `names`."""
        for path in list((self.root / directory).glob("*")):
            if (name := f"{directory}/{path.name}") not in names:
                path.unlink()
                self.entries.pop(name, None)

    def sync(self) -> None:
        """Make the names of all files durable."""
        for directory in {each for name in self.entries for each in (Path(name).parent, Path(name).parent.parent)}:
            sync_directory(self.root / directory)

    def _target(self, name: str) -> Path:
        """Return where a file goes; an older one of that name is removed, since it may be linked elsewhere."""
        target = self.root / name
        for directory in (target.parent.parent, target.parent):
            directory.mkdir(mode=0o700, exist_ok=True)
        target.unlink(missing_ok=True)
        self.entries.pop(name, None)
        return target

    def _link_to_previous(self, name: str, target: Path, size_bytes: int) -> bool:
        """Link `target` to the file of the backup before; False if it is not whole, or cannot have another link."""
        assert self._previous is not None
        with suppress(OSError):
            os.link(self._previous / name, target)
            if target.stat().st_size == size_bytes:
                self.linked_bytes += size_bytes
                return True
            target.unlink()
        return False

    def _link(self, source: Path, target: Path, listed: Identity) -> bool:
        """Link `target` to the source; False if that cannot be: another file system, or a file of another user."""
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise FileChanged(source) from None
        except OSError:
            return False
        if Identity.of(target.stat()) != listed:
            target.unlink()
            raise FileChanged(source)
        self.linked_bytes += listed.size_bytes
        return True

    def _copy(self, source: Path, target: Path, listed: Identity | None) -> int:
        try:
            file = source.open("rb")
        except FileNotFoundError:
            raise FileChanged(source) from None
        with file:
            found = os.fstat(file.fileno())
            if listed is not None and Identity.of(found) != listed:
                raise FileChanged(source)
            copy_file(file.fileno(), target, found, lambda count: self._tell(target, count))
        return found.st_size

    def _tell(self, target: Path, count: int) -> None:
        self.copied_bytes += count
        self._on_copied(target.parent.name, count)
