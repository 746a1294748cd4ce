"""Compaction in the background: finds the log that needs it most, and compacts it in a thread.

A log with `compact` in its cleanup.policy is due once enough of it is dirty, or once a record has waited for longer
than max.compaction.lag.ms (`storage/cleaner/plan`). The most urgent of the due logs comes first; when none is due, the
workers rest for `log.cleaner.backoff.ms`. The expensive part reads and writes closed segments in a thread, throttled
and with many short rests, so that it delays others by one batch at most; replacing segments is a few renames in the
event loop's thread, with syncs in the other thread between them (`storage/segment/segment_swap`).

A log that cannot be compacted (a damaged batch, a disk error) is excluded from then on, and the error is logged; the
others continue (KAFKA-7215). The end of a compaction is checkpointed. After a crash some of it is repeated.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.replica.partition import Partition
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.runtime.threads import start_threads
from warmlog_broker.storage.cleaner.cleaner import Cleaning, CleaningStats, Rewritten
from warmlog_broker.storage.cleaner.plan import CleanableRange
from warmlog_broker.storage.cleaner.throttle import CleaningAborted, CleaningPace
from warmlog_broker.storage.config import UNLIMITED
from warmlog_broker.storage.io.os_errors import is_resource_exhaustion
from warmlog_broker.storage.log.log import Log
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.errors import DiskFull, OutOfResources, StorageError, WarmlogError

PARTITIONS_A_TURN = 16

Result = TypeVar("Result")

_log = logging.getLogger(__name__)


class Candidate(NamedTuple):
    """A log, and the range that can be compacted."""

    partition: Partition
    log: Log
    range: CleanableRange


class LogCleaner:
    """Compacts one broker's logs."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        topics: Topics,
        on_replaced: Callable[[Partition], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`on_replaced` is called with each partition whose files changed. `now_ms` is the time by which deletions
        expire (`runtime/clock`)."""
        self.pass_count = 0
        """Passes that were completed since the start."""
        self.stats = CleaningStats()
        """What they have done."""
        self.backlog_bytes = 0
        """What of the logs is dirty, and was not being compacted at the last look."""
        self.given_up: dict[Partition, str] = {}
        """Logs that are no longer compacted, with the reason."""
        self._now_ms = now_ms
        self._config = config
        self._topics = topics
        self._on_replaced = on_replaced
        self._loop = asyncio.get_running_loop()
        self._threads = start_threads(max(1, config.log_cleaner_threads), "compact")
        self._workers: list[asyncio.Task[None]] = []
        self._under_way: dict[Partition, CleaningPace] = {}
        self._stopping = asyncio.Event()

    def start(self) -> None:
        for number in range(self._config.log_cleaner_threads):
            self._workers.append(self._loop.create_task(self._work(), name=f"log cleaner {number}"))

    async def stop(self) -> None:
        """Cancel running compactions, and return when they have ended. To be called before the logs are closed."""
        self._stopping.set()
        for pace in self._under_way.values():
            pace.stop()
        if self._workers:
            await asyncio.wait(self._workers)
        self.close()

    def close(self) -> None:
        """End the threads. No compaction may be running."""
        self._threads.shutdown()

    async def _work(self) -> None:
        while not self._stopping.is_set():
            has_worked = False
            try:
                chosen = await self._choose()
                has_worked = chosen is not None and await self._compact(chosen)
            except Exception:
                _log.exception("compaction failed: a bug")
            if not has_worked:
                try:
                    await asyncio.wait_for(self._stopping.wait(), self._config.log_cleaner_backoff_ms / 1000)
                except TimeoutError:
                    continue

    async def _choose(self) -> Candidate | None:
        """Return the most urgent of the logs that are due and not being compacted."""
        chosen: Candidate | None = None
        backlog_bytes = 0
        now_ms = self._now_ms()
        async for each in in_turns(self._topics.partitions, PARTITIONS_A_TURN):
            if each.config.is_compacted and each not in self._under_way and each not in self.given_up:
                if not each.allows.compact:
                    continue
                try:
                    found = Candidate(each, each.log, each.log.compaction.range(now_ms))
                except (OSError, WarmlogError) as error:
                    self._note_failure(each, error)
                    continue
                backlog_bytes += found.range.dirty_bytes
                is_due = found.range.is_due(each.config.min_cleanable_dirty_ratio)
                if is_due and (chosen is None or found.range.urgency > chosen.range.urgency):
                    chosen = found
        self.backlog_bytes = backlog_bytes
        if chosen is None or chosen.partition in self._under_way:
            return None
        if not chosen.partition.allows.compact or chosen.partition.log is not chosen.log:
            return None
        return chosen

    async def _compact(self, chosen: Candidate) -> bool:
        """Run one pass; return False if it was cancelled or failed."""
        partition, log, found = chosen
        config = self._config
        threads = config.log_cleaner_threads
        rate = config.log_cleaner_io_max_bytes_per_second
        pace = CleaningPace(rate if rate == UNLIMITED else max(1, rate // max(1, threads)))
        now_ms = self._now_ms()
        memory_bytes = config.log_cleaner_dedupe_buffer_size // max(1, threads)
        self._under_way[partition] = pace
        cleaned_below = None
        try:
            cleaning = Cleaning(
                log.compaction.begin(found, pace),
                pace,
                memory_bytes=memory_bytes,
                now_ms=now_ms,
                max_decompressed_bytes=config.batch_max_decompressed_bytes,
            )
            await self._run_pass(partition, log, cleaning)
            cleaned_below = cleaning.end_offset
        except CleaningAborted as error:
            _log.info("%s: %s", partition.key.directory_name, error)
        except StorageError as error:
            _log.error("%s: compaction failed: %s", partition.key.directory_name, error)
        except (WarmlogError, OSError, ValueError, MemoryError) as error:
            if partition.allows.compact and partition.log is log:  # otherwise its files are gone
                self._note_failure(partition, error)
        finally:
            del self._under_way[partition]
            log.compaction.end(cleaned_below)
        if cleaned_below is not None and partition.allows.compact:
            self._on_replaced(partition)
        return cleaned_below is not None

    async def _run_pass(self, partition: Partition, log: Log, cleaning: Cleaning) -> None:
        began_s = time.monotonic()
        await self._in_thread(cleaning.build_map)
        for group in await self._in_thread(cleaning.groups):
            rewritten = await self._in_thread(partial(cleaning.rewrite, group))
            if rewritten.segment is not None:
                await self._take_in(partition, log, rewritten)
        stats = cleaning.stats
        self.pass_count += 1
        self.stats += stats
        _log.log(
            logging.WARNING if stats.dropped_without_key else logging.INFO,
            "%s: compacted up to offset %d in %.1f s: %d of %d records kept, %d without a key dropped, %d of %d bytes, "
            "%d segments replaced",
            partition.key.directory_name,
            cleaning.end_offset,
            time.monotonic() - began_s,
            stats.kept_records,
            stats.read_records,
            stats.dropped_without_key,
            stats.written_bytes,
            stats.read_bytes,
            stats.replaced_segments,
        )

    async def _take_in(self, partition: Partition, log: Log, rewritten: Rewritten) -> None:
        """Replace segments by a new one. If this is interrupted, the log completes the replacement when needed."""
        assert rewritten.segment is not None
        if not partition.allows.compact:
            await self._in_thread(rewritten.segment.delete)
            raise CleaningAborted("the partition was deleted, or is offline")
        replacement = log.compaction.take(rewritten)
        is_done = False
        while not is_done:
            await self._in_thread(replacement.sync)
            if not partition.allows.compact:
                raise CleaningAborted("the partition was deleted, or is offline")
            is_done = log.local.advance(replacement)
        self._on_replaced(partition)

    def _note_failure(self, partition: Partition, error: Exception) -> None:
        """Retry later if space, memory or descriptors ran out; after other errors exclude the log."""
        name = partition.key.directory_name
        is_passing = isinstance(error, MemoryError | DiskFull | OutOfResources)
        if is_passing or (isinstance(error, OSError) and is_resource_exhaustion(error)):
            _log.error("%s: compaction failed and is tried again later: %s", name, str(error) or "out of memory")
        else:
            self.given_up[partition] = str(error)
            _log.error("%s IS NOT COMPACTED UNTIL A RESTART: %s", name, error)

    async def _in_thread(self, work: Callable[[], Result]) -> Result:
        return await self._loop.run_in_executor(self._threads, work)
