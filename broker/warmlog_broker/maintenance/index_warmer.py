"""Keeps the end of every active index in memory, as a duty of housekeeping: see `log.warm_keeper`."""

import asyncio
import logging
from concurrent.futures import Executor

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.replica.topics import Topics
from warmlog_broker.storage.index.warm_keeper import WarmPass, WarmTarget, keep_warm, warm_targets

PARTITIONS_A_TURN = 64

_log = logging.getLogger(__name__)


class WarmIndexes:
    """The warm keeper of one broker."""

    def __init__(self, config: BrokerConfig, topics: Topics, threads: Executor) -> None:
        self._warm_bytes = config.index_warm_bytes
        self._max_bytes = config.index_warm_max_bytes
        self._topics = topics
        self._threads = threads
        self._has_told = False

    async def keep(self) -> WarmPass:
        """Reads the warm section of the active indexes of all partitions that are online."""
        targets: list[WarmTarget] = []
        for number, partition in enumerate(list(self._topics.partitions), 1):
            if partition.allows.read:
                indexes = partition.log.local.active.indexes
                targets.extend(warm_targets((indexes.offset, indexes.time), self._warm_bytes))
            if number % PARTITIONS_A_TURN == 0:
                await asyncio.sleep(0)
        targets.sort(key=lambda target: target.index is None)
        loop = asyncio.get_running_loop()
        done = await loop.run_in_executor(self._threads, keep_warm, targets, self._max_bytes)
        self._tell(done)
        return done

    def _tell(self, done: WarmPass) -> None:
        """Once: that the budget is too small."""
        if done.left_out and not self._has_told:
            _log.warning(
                "%d active index files are not kept in memory: index.warm.max.bytes = %d is enough for %d",
                done.left_out,
                self._max_bytes,
                done.kept,
            )
        self._has_told = done.left_out > 0
