"""A small file system of its own, for tests that fill a disk."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(path: Path, size_bytes: int) -> Iterator[Path]:
    """Within the block `path` is a file system of this size. Skips the test where none can be mounted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "warmlog-test", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root only, and where the system allows it")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
