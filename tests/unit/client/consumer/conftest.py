"""What tests of the consumer share."""

from collections.abc import AsyncIterator

import pytest

from fake_broker import FakeBroker
from fake_coordinator import FakeCoordinator
from group_consumer import ALL, fill


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker(t=2) as broker:
        for partition in (0, 1):
            fill(broker, partition, 4, 4)
        yield broker


@pytest.fixture
def coordinator(broker: FakeBroker) -> FakeCoordinator:
    return FakeCoordinator(broker, ALL)
