"""Syncs the files of one group commit in the cheapest way for their number.

One by one, in several threads, or the whole file system at once by `syncfs(2)`; each plan has an outcome of its own.
`syncfs` does not say which file failed: then each file is synced by itself, which reports an error that the kernel
still holds for it; if no file reports one, every plan of the flush has failed.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from enum import Enum, auto
from pathlib import Path

from warmlog_broker.storage.io.durable_files import open_to_sync
from warmlog_broker.storage.io.os_errors import SyncNotBegun
from warmlog_broker.storage.log.flush_plan import FlushPlan

Outcome = OSError | None
"""Of a plan: None, or the error because of which it is not durable."""


class FlushWay(Enum):
    ONE_BY_ONE = auto()
    IN_THREADS = auto()
    FILE_SYSTEM = auto()


def choose_way(file_count: int, syncfs_files: int) -> FlushWay:
    """Return the cheapest way; from `syncfs_files` files on it is to sync the file system, with 0 never.

    Threads from two files on: syncs that run at once share a commit of the file system's journal, for which each of
    them waits (`make bench-flush`).
    """
    if file_count < 2:
        return FlushWay.ONE_BY_ONE
    if syncfs_files and file_count >= syncfs_files:
        return FlushWay.FILE_SYSTEM
    return FlushWay.IN_THREADS


def run_plans(
    plans: Sequence[FlushPlan], *, data_dir: Path, syncfs_files: int, threads: Executor, thread_count: int
) -> list[Outcome]:
    """Make `plans` durable, in this thread and in `threads`; return the outcome of each, in order."""
    if len(plans) == 1:
        return [_attempt(plans[0].run)]
    way = choose_way(sum([plan.file_count for plan in plans]), syncfs_files)
    if way is FlushWay.FILE_SYSTEM:
        return _run_by_file_system(plans, data_dir)
    if way is FlushWay.ONE_BY_ONE:
        return _run_all(plans)
    return _run_in_threads(plans, threads, thread_count)


def sync_file_system(path: Path) -> None:
    """Make everything written to the file system of `path` durable."""
    descriptor = open_to_sync(path, os.O_DIRECTORY)
    try:
        while _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:  # PEP 475 covers Python's own calls only
                raise OSError(number, os.strerror(number), str(path))
    finally:
        os.close(descriptor)


def _run_in_threads(plans: Sequence[FlushPlan], threads: Executor, thread_count: int) -> list[Outcome]:
    step = -(-len(plans) // thread_count)
    shares = [plans[start : start + step] for start in range(0, len(plans), step)]
    others = [threads.submit(_run_all, share) for share in shares[1:]]
    outcomes = _run_all(shares[0])
    for other in others:
        outcomes += other.result()
    return outcomes


def _run_by_file_system(plans: Sequence[FlushPlan], data_dir: Path) -> list[Outcome]:
    outcomes = [_attempt(plan.stage_side_files) for plan in plans]
    try:
        sync_file_system(data_dir)
        if any(plan.has_side_files for plan in plans):
            renamed = [_attempt(plan.place_side_files) for plan in plans]
            outcomes = [outcome or error for outcome, error in zip(outcomes, renamed, strict=True)]
            sync_file_system(data_dir)
    except OSError as error:
        outcomes = [outcome or _attempt(plan.run) for plan, outcome in zip(plans, outcomes, strict=True)]
        is_told = any(outcome is not None and not isinstance(outcome, SyncNotBegun) for outcome in outcomes)
        if not is_told and not isinstance(error, SyncNotBegun):
            return [error] * len(plans)
    return outcomes


def _run_all(plans: Sequence[FlushPlan]) -> list[Outcome]:
    return [_attempt(plan.run) for plan in plans]


def _attempt(step: Callable[[], None]) -> Outcome:
    try:
        step()
    except OSError as error:
        return error
    return None


_libc = ctypes.CDLL(None, use_errno=True)
