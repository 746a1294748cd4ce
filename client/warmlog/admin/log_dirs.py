"""The data directories of brokers and what they contain."""

from dataclasses import dataclass

from warmlog.errors import error_from_code
from warmlog_protocol.messages import LogDir


@dataclass(frozen=True, slots=True)
class LogDirReplica:
    """A partition in a data directory. `offset_lag` is the lag of a copy in progress (`is_future`), in offsets; -1
    while the partition is offline."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


@dataclass(frozen=True, slots=True)
class LogDirDescription:
    """A data directory of a broker. `error` is None while it works. Sizes are its file system's; -1 if unknown."""

    broker: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[LogDirReplica]


def describe_log_dir(broker: int, directory: LogDir) -> LogDirDescription:
    """From the response of the broker with this node id."""
    replicas = [
        LogDirReplica(each.topic, each.partition, each.size_bytes, each.offset_lag, each.is_future)
        for each in directory.partitions
    ]
    error = None
    if directory.error_code:
        error = directory.error_message or str(error_from_code(directory.error_code, "offline"))
    return LogDirDescription(broker, directory.path, error, directory.total_bytes, directory.usable_bytes, replicas)
