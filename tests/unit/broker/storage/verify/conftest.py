"""What is verified: what Kafka left, and a log that was written here."""

from pathlib import Path

import pytest

from unit.broker.storage.log_room import LogRoom
from unit.broker.storage.verify.verification_room import closed_room, copy_of_sample


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return copy_of_sample(tmp_path)


@pytest.fixture
def room(tmp_path: Path) -> LogRoom:
    return closed_room(tmp_path)
