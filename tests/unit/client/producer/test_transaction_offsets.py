"""Offsets that several tasks add to one transaction."""

import asyncio
from types import SimpleNamespace
from typing import Any

from warmlog.producer.transaction import TransactionalId
from warmlog_protocol.messages import OffsetCommitPartition, OffsetCommitRequest, OffsetCommitResponse


async def test_a_request_that_is_repeated_comes_before_those_that_were_made_after_it() -> None:
    arrived: list[int] = []

    class Cluster:
        async def call(self, message: Any, _expected: object) -> OffsetCommitResponse:
            (part,) = message.partitions
            await asyncio.sleep(0.02 if part.offset == 1 else 0)  # its connection breaks, and it is sent again
            arrived.append(part.offset)
            return OffsetCommitResponse([])

    options: Any = SimpleNamespace(transactional_id="id", transaction_timeout_ms=1000)
    parts: Any = (Cluster(), SimpleNamespace(), SimpleNamespace(producer=(1, 0)), None)
    transactional_id = TransactionalId(options, *parts)
    transactional_id.takes_records = True
    requests = [OffsetCommitRequest("g", [OffsetCommitPartition(b"", "t", 0, offset)]) for offset in (1, 2, 3)]
    await asyncio.gather(*map(transactional_id.add_offsets, requests))
    assert arrived == [1, 2, 3]
