"""Directories that another user may look into, for tests of what that user may do there."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@contextmanager
def directory_open_to_all() -> Iterator[Path]:
    """A new directory that every user can reach and list, whatever TMPDIR and the umask are."""
    above = next((path for path in (tempfile.gettempdir(), "/tmp", "/var/tmp") if _is_reachable(Path(path))), None)
    if above is None:
        pytest.skip("there is no directory for temporary files that every user can reach")
    with tempfile.TemporaryDirectory(dir=above) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def copy_open_to_all(source: Path, target: Path, *left_out: str) -> Path:
    """A copy of a directory that every user can read, without the files whose names match `left_out`."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*left_out))
    for path in (target, *target.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def _is_reachable(directory: Path) -> bool:
    return all(path.stat().st_mode & 0o001 for path in (directory, *directory.absolute().parents))
