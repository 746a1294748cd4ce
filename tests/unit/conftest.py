"""What tests of clients and connections share."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from jumping_clock import jumping_clock


@pytest.fixture
async def quick_clock() -> AsyncIterator[None]:
    """The clock of the test's event loop jumps over what would be waited for."""
    with jumping_clock(asyncio.get_running_loop()):
        yield
