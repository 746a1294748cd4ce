"""Truncations of logs in one step: a broker writes down and syncs in a thread."""

from warmlog_broker.storage.log.log import Log
from warmlog_broker.storage.log.truncation import Cut


def truncate_to(log: Log, offset: int, now_ms: int) -> bool:
    """Cut the log as `LogTruncation.begin` says, durably; return whether there was something to cut."""
    cut = log.truncation.begin(offset)
    if cut is not None:
        _run(log, cut, now_ms)
    return cut is not None


def truncate_fully(log: Log, offset: int, now_ms: int, log_start_offset: int | None = None) -> None:
    """Empty the log as `LogTruncation.begin_fully` says, durably."""
    _run(log, log.truncation.begin_fully(offset, log_start_offset), now_ms)


def _run(log: Log, cut: Cut, now_ms: int) -> None:
    try:
        cut.write_down()
    except OSError as error:
        raise log.local.write_error("truncation", error) from error
    try:
        log.truncation.carry_out(cut, now_ms)
        cut.sync()
    except OSError as error:
        raise log.local.write_error("truncation", error, is_fatal=True) from error
    log.truncation.end(cut)
