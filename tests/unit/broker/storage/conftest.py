"""Where tests of the log keep their files."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from unit.broker.storage.log_room import QUICK, LogRoom


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A directory in memory, where the system has one."""
    with TemporaryDirectory(prefix="warmlog-", dir=QUICK) as name:
        yield Path(name)


@pytest.fixture
def room(quick_path: Path) -> LogRoom:
    """An empty log with tiny segments; files that need another kind have a fixture of that name."""
    return LogRoom(quick_path)
