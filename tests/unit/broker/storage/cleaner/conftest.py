"""The log that is compacted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from unit.broker.storage.cleaner.compaction_room import CompactionRoom


@pytest.fixture
def room(quick_path: Path) -> Iterator[CompactionRoom]:
    room = CompactionRoom(quick_path)
    yield room
    room.log.fail("the test is over")
