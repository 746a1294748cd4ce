"""When the next transaction of a producer may begin before the last record of its ended one."""

import asyncio
from types import SimpleNamespace
from typing import Any

from warmlog_broker.coordinator.transaction.decisions.records import End, IdValue, PartitionValue, Status
from warmlog_broker.coordinator.transaction.decisions.state import Enrolled, Producer, Transaction
from warmlog_broker.coordinator.transaction.ending import Ending

NEXT = Producer(7, 4)
PART = Enrolled(b"t" * 16, 0)
SHARD: Any = SimpleNamespace()


def ending() -> Ending:
    value = IdValue(*NEXT, Status.COMMITTING, End.COMMITTED, 7, 3, timeout_ms=1000, changed_ms=0)
    return Ending(SHARD, Transaction("id", value, {PART: PartitionValue("t")}))


def test_a_partition_can_be_claimed_by_the_next_producer_and_only_after_the_markers() -> None:
    async def scenario() -> None:
        found = ending()
        assert not found.claim(NEXT, PART)
        lingering = asyncio.ensure_future(found.linger())
        await asyncio.sleep(0)
        assert not found.claim(Producer(7, 3), PART)
        assert not found.claim(NEXT, Enrolled(b"t" * 16, 1))
        assert not found.has_begun(NEXT)
        assert found.claim(NEXT, PART)
        assert found.has_begun(NEXT)
        found.hurry()
        assert await lingering == {PART}
        assert not found.claim(NEXT, PART)

    asyncio.run(scenario())


def test_it_is_seen_as_the_last_record_will_have_it() -> None:
    async def scenario() -> None:
        found = ending()
        assert found.seen.value.status is Status.COMMITTING
        lingering = asyncio.ensure_future(found.linger())
        await asyncio.sleep(0)
        assert (found.seen.value.status, dict(found.seen.partitions)) == (Status.EMPTY, {})
        found.claim(NEXT, PART)
        assert (found.seen.value.status, [*found.seen.partitions]) == (Status.ONGOING, [PART])
        found.hurry()
        await lingering

    asyncio.run(scenario())
