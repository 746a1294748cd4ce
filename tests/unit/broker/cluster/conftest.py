"""What tests of replicas share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from unit.broker.cluster.room import Room


@pytest_asyncio.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    room = Room(tmp_path)
    yield room
    await room.close()
