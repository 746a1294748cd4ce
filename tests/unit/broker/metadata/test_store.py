"""Producer ids are never given out twice."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmlog_broker.metadata.metadata_log import MetadataLog
from warmlog_broker.metadata.store import Metadata, ProducerIds


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[Metadata]:
    log, _ = MetadataLog.open(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        opened = Metadata(log, threads)
        yield opened
        await opened.close()


async def test_ids_are_given_out_one_after_another(metadata: Metadata) -> None:
    ids = ProducerIds(metadata, block_size=3)
    assert [await ids.give_out() for _ in range(7)] == list(range(7))
    assert ids.next_id == 7


async def test_those_who_ask_at_once_get_different_ids(metadata: Metadata) -> None:
    ids = ProducerIds(metadata, block_size=3)
    given = await asyncio.gather(*(ids.give_out() for _ in range(20)))
    assert sorted(given) == list(range(20))


async def test_a_block_is_reserved_on_disk_before_its_first_id_is_given_out(metadata: Metadata, tmp_path: Path) -> None:
    ids = ProducerIds(metadata, block_size=3)
    for _ in range(7):
        producer_id = await ids.give_out()
        stored, _ = MetadataLog.open(tmp_path)
        assert stored.state.next_producer_id > producer_id
        stored.close()


async def test_after_a_crash_the_rest_of_a_block_is_not_used(metadata: Metadata) -> None:
    first = ProducerIds(metadata, block_size=10)
    before = [await first.give_out() for _ in range(3)]
    again = ProducerIds(metadata, block_size=10)
    assert await again.give_out() == 10
    assert before == [0, 1, 2]
