"""What tests of the broker's parts share: partitions on real logs."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import pytest

from warmlog_broker.replica.commitment import CommitRule
from warmlog_broker.replica.disk_space import DiskRoom
from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log

NOW_MS = 1_700_000_000_000
MakePartition = Callable[..., Partition]


class FakeDisk:
    """The data directory of a partition: notes what it is asked for, and does nothing."""

    def __init__(self) -> None:
        self.room = DiskRoom(Path(), 0)
        self.flushes: list[int] = []
        """For each flush that was asked for, within how many milliseconds; 0: soon."""
        self.probes = 0

    def flush_soon(self, partition: Partition) -> None:
        self.flushes.append(0)

    def flush_within(self, partition: Partition, delay_ms: int) -> None:
        self.flushes.append(delay_ms)

    def probe_soon(self) -> None:
        self.probes += 1


def flush(partition: Partition) -> None:
    """Sync what was appended, if anything was, and complete it."""
    plan = partition.prepare_flush()
    if plan is not None:
        plan.run()
        partition.flushed(plan)
    partition.wake()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """One thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def make_partition(tmp_path: Path) -> MakePartition:
    """Makes the partition with that number of the topic `t`; settings have underscores for dots."""
    open_files = OpenFiles(limit=64)

    def make(
        number: int = 0,
        leader_epoch: int = 0,
        *,
        commit_rule: CommitRule | None = None,
        on_unloaded: Callable[[Partition], None] = lambda _: None,
        **settings: str,
    ) -> Partition:
        config = LogConfig.from_settings({name.replace("_", "."): text for name, text in settings.items()})
        key = TopicPartition("t", number)
        log = Log.open(
            tmp_path / key.directory_name,
            key=key,
            topic_id=UUID(int=7),
            config=config,
            open_files=open_files,
            now_ms=NOW_MS,
        )

        def leadership_changed(partition: Partition) -> None:
            if not partition.allows.append:
                on_unloaded(partition)

        partition = Partition(key, log, config, on_leadership=leadership_changed)
        partition.disk = FakeDisk()
        partition.become_leader(leader_epoch, commit_rule)
        return partition

    return make
