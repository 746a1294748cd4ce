"""Logs with restart points. `flusher.IDLE_BATCHES` must be 1, so that any log is worth one."""

from unit.broker.storage.log_room import START_MS, LogRoom, make_batch
from warmlog_broker.storage.config import UNLIMITED, LogConfig
from warmlog_broker.storage.directory.partition_files import RestartPoint, read_restart_point

ONE_SEGMENT = LogConfig(retention_ms=UNLIMITED, index_interval_bytes=100)
BATCH = len(make_batch(b"value-0"))


def fill(room: LogRoom, start: int, end: int) -> None:
    """Batches of one record `value-N`, each a millisecond later than the one before, of one producer."""
    for n in range(start, end):
        room.append(b"value-%d" % n, timestamp_ms=START_MS + n, producer=(1, 0, n))


def take_point(room: LogRoom) -> RestartPoint:
    """Flushes, and has the log take a restart point at its end, as it does when it is idle."""
    room.flush()
    room.log.flusher.wants_restart_point()
    assert room.log.flusher.wants_restart_point()
    room.flush()
    assert room.log.flusher.checkpointed(room.log.recovery_point)
    room.flush()
    point = read_restart_point(room.directory)
    assert point is not None
    return point
