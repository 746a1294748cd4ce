"""What is verified: what Kafka left, and a log that was written here."""

import shutil
from pathlib import Path

import pytest

from kafka_sample import SAMPLE
from unit.broker.storage.log_room import LogRoom
from unit.broker.storage.verify.verification_room import room_in


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A copy of what Kafka left."""
    return shutil.copytree(SAMPLE, tmp_path / "kafka", ignore=shutil.ignore_patterns("*.dump", "*.md"))


@pytest.fixture
def room(tmp_path: Path) -> LogRoom:
    """A closed log of several segments, written here."""
    room = room_in(tmp_path)
    for number in range(12):
        room.now_ms += 10
        room.append(b"value", b"other", producer=(7, 0, 2 * number))
    room.flush()
    room.close()
    assert len(room.files(".log")) >= 3
    return room
