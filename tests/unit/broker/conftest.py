"""What tests of the broker's parts share: partitions on real logs."""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from warmlog_broker.replica.partition import Partition
from warmlog_broker.storage.config import LogConfig
from warmlog_broker.storage.directory.topic_partition import TopicPartition
from warmlog_broker.storage.io.open_files import OpenFiles
from warmlog_broker.storage.log.log import Log

NOW_MS = 1_700_000_000_000
MakePartition = Callable[..., Partition]


@pytest.fixture
def make_partition(tmp_path: Path) -> MakePartition:
    """Makes the partition with that number of the topic `t`; settings have underscores for dots."""
    open_files = OpenFiles(limit=64)

    def make(number: int = 0, leader_epoch: int = 0, **settings: str) -> Partition:
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
        return Partition(key, log, config, leader_epoch)

    return make
