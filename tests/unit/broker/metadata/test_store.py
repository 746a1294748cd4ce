"""Producer ids are never given out twice."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from warmlog_broker.metadata import store
from warmlog_broker.metadata.metadata_log import MetadataLog
from warmlog_broker.metadata.store import Metadata, ProducerIds


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[Metadata]:
    log, _ = MetadataLog.open(tmp_path)
    with ThreadPoolExecutor(1) as threads:
        opened = Metadata(log, threads)
        yield opened
        await opened.close()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK_IDS", 3)


@pytest.mark.usefixtures("small_blocks")
async def test_ids_are_given_out_one_after_another(metadata: Metadata) -> None:
    ids = ProducerIds(metadata)
    assert [await ids.give_out() for _ in range(7)] == list(range(7))
    assert ids.next_id == 7


@pytest.mark.usefixtures("small_blocks")
async def test_those_who_ask_at_once_get_different_ids(metadata: Metadata) -> None:
    ids = ProducerIds(metadata)
    given = await asyncio.gather(*(ids.give_out() for _ in range(20)))
    assert sorted(given) == list(range(20))


@pytest.mark.usefixtures("small_blocks")
async def test_a_block_is_reserved_on_disk_before_its_first_id_is_given_out(metadata: Metadata, tmp_path: Path) -> None:
    ids = ProducerIds(metadata)
    for _ in range(7):
        producer_id = await ids.give_out()
        stored, _ = MetadataLog.open(tmp_path)
        assert stored.state.next_producer_id > producer_id
        stored.close()


@pytest.mark.usefixtures("small_blocks")
async def test_after_a_crash_the_rest_of_a_block_is_not_used(metadata: Metadata) -> None:
    first = ProducerIds(metadata)
    before = [await first.give_out() for _ in range(4)]
    again = ProducerIds(metadata)
    assert await again.give_out() == 6
    assert before == [0, 1, 2, 3]
