"""The warm keeper as a duty: all partitions that are online, and a word when the budget is too small."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from page_cache import evict, resident_pages
from unit.broker.storage.log_files import batch_of
from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.maintenance.housekeeping import WarmIndexes
from warmlog_broker.replica.partition_state import PartitionState
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.data_dir import NEVER_STORED, StoredState
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.index.lazy_index import LazyIndex
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.time_index import TimeIndex
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.validation import check_batch


def open_log(directory: Path, number: int, stored: StoredState = NEVER_STORED) -> Log:
    key = TopicPartition("t", number)
    config = LogConfig(index_interval_bytes=0)
    path = directory / key.directory_name
    return Log.open(path, key=key, config=config, open_files=OpenFiles(), now_ms=0, stored=stored)


def active_indexes(log: Log) -> tuple[LazyIndex[OffsetIndex], LazyIndex[TimeIndex]]:
    indexes = log.local.active.indexes
    return indexes.offset, indexes.time


def fill(log: Log) -> None:
    for number in range(200):
        log.appender.append_as_leader(
            check_batch(batch_of([f"{number}"], timestamps_ms=number), 10_000), leader_epoch=0, now_ms=0
        )


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[list[Log]]:
    """Three logs; the second has been closed and found again, so that its indexes are not open."""
    logs = [open_log(tmp_path, number) for number in range(3)]
    for log in logs:
        fill(log)
    end = logs[1].close()
    logs[1] = open_log(tmp_path, 1, StoredState(logs[1].offsets, end))
    yield logs
    for log in logs:
        log.close()


@pytest.fixture
async def keeper(logs: list[Log]) -> AsyncIterator[Any]:
    with ThreadPoolExecutor(1) as threads:

        def make(**settings: int) -> WarmIndexes:
            partitions = [SimpleNamespace(log=log, allows=PartitionState.ONLINE.allows) for log in logs]
            partitions[2].allows = PartitionState.OFFLINE.allows
            topics: Any = SimpleNamespace(partitions=partitions)
            return WarmIndexes(BrokerConfig(**settings), topics, threads)  # type: ignore[arg-type]

        yield make


async def test_indexes_of_partitions_that_are_online_are_read_open_or_not(logs: list[Log], keeper: Any) -> None:
    paths = [index.path for log in logs for index in active_indexes(log)]
    for log in logs:
        for index in active_indexes(log):
            if index.loaded is not None:
                index.loaded.write_out()
                index.loaded.let_go()
    for path in paths:
        evict(path)
    if any(map(resident_pages, paths)):
        pytest.skip("this file system keeps its pages")
    done = await keeper().keep()
    assert (done.kept, done.left_out) == (4, 0)
    assert [bool(resident_pages(path)) for path in paths] == [True] * 4 + [False] * 2
    assert [index.loaded is not None for index in active_indexes(logs[1])] == [False, False]


async def test_a_budget_that_is_too_small_is_told_once(
    logs: list[Log], keeper: Any, caplog: pytest.LogCaptureFixture
) -> None:
    warm = keeper(index_warm_max_bytes=12_288)
    with caplog.at_level(logging.WARNING):
        assert (await warm.keep()).left_out == 3
        assert (await warm.keep()).left_out == 3
    assert caplog.text.count("index.warm.max.bytes = 12288 is enough for 1") == 1


async def test_logs_are_appended_to_while_they_are_kept_warm(logs: list[Log], keeper: Any) -> None:
    warm = keeper()
    task = asyncio.create_task(warm.keep())
    for _ in range(5):
        fill(logs[0])
        await asyncio.sleep(0)
    assert (await task).kept == 4
