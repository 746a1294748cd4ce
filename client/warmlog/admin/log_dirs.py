"""The data directories of brokers and what they contain."""

from msgspec import Struct

from warmlog.errors import error_from_code
from warmlog_protocol.messages import LogDir, LogDirReplica


class LogDirDescription(Struct, frozen=True):
    """A data directory of a broker. `error` is None while it works. Sizes are its file system's; -1 if unknown."""

    broker: int
    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[LogDirReplica]


def describe_log_dir(broker: int, directory: LogDir) -> LogDirDescription:
    """From the response of the broker with this node id."""
    error = None
    if directory.error_code:
        error = directory.error_message or str(error_from_code(directory.error_code, "offline"))
    return LogDirDescription(
        broker, directory.path, error, directory.total_bytes, directory.usable_bytes, directory.partitions
    )
