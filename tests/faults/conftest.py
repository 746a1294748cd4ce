"""Where tests of faults keep their files."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from faults.power.powered import PoweredDisk
from unit.broker.storage.log_room import QUICK


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A directory in memory, where the system has one."""
    with TemporaryDirectory(prefix="warmlog-", dir=QUICK) as name:
        yield Path(name)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PoweredDisk]:
    """A disk whose power the test cuts."""
    with PoweredDisk(tmp_path / "power") as disk:
        yield disk
