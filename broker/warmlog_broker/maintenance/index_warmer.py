"""Keeps the end of every active index in memory, as a duty of housekeeping: see `storage/index/warm_keeper`."""

import asyncio
import logging
from concurrent.futures import Executor

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.replica.topics import Topics
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.storage.index.warm_keeper import WarmPass, WarmTarget, keep_warm, warm_targets

PARTITIONS_A_TURN = 64

_log = logging.getLogger(__name__)


class WarmIndexes:
    def __init__(self, config: BrokerConfig, topics: Topics, threads: Executor) -> None:
        self._warm_bytes = config.index_warm_bytes
        self._max_bytes = config.index_warm_max_bytes
        self._topics = topics
        self._threads = threads
        self._has_told = False

    async def keep(self) -> WarmPass:
        """Read the warm sections of the active indexes of all partitions that can be read."""
        targets: list[WarmTarget] = []
        async for partition in in_turns(self._topics.partitions, PARTITIONS_A_TURN):
            if partition.allows.read:
                targets.extend(warm_targets(partition.log.active_indexes, self._warm_bytes))
        targets.sort(key=lambda target: target.index is None)
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(self._threads, keep_warm, targets, self._max_bytes)
        if done.left_out and not self._has_told:
            _log.warning(
                "%d active index files are not kept in memory: index.warm.max.bytes = %d is enough for %d",
                done.left_out,
                self._max_bytes,
                done.kept,
            )
        self._has_told = done.left_out > 0
        return done
