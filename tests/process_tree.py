"""What a process and those that it has started have used between two moments, also when some of them have ended."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from processor_time import ProcessorTime, processor_time

_NOTHING = ProcessorTime(name="", parent_pid=0, own_s=0.0, ended_s=0.0)

Processes = Mapping[int, ProcessorTime]
"""By pid."""


class TreeSeconds(NamedTuple):
    """Processor time."""

    root: float
    below: float


def processes_of(root: int) -> Processes:
    """`root` and all below it."""
    children: dict[int, list[int]] = {}
    times: dict[int, ProcessorTime] = {}
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        with suppress(OSError):  # it has ended
            times[pid] = processor_time(pid)
            children.setdefault(times[pid].parent_pid, []).append(pid)
    tree, pending = {}, [root]
    while pending:
        pid = pending.pop()
        tree[pid] = times[pid]
        pending += children.get(pid, [])
    return tree


def used_between(before: Processes, after: Processes, root: int) -> TreeSeconds:
    """What `root` itself has used, and what all below it have.

    What a process that has ended used after `before` is known only where its parent has waited for it. Where that
    ignores SIGCHLD nothing is counted of it: what it used before is not taken off what others have used, but for such
    as have ended under the same process.
    """
    before_end = _used_by_ended(before, after)
    below_s = 0.0
    for pid, time in after.items():
        since = before.get(pid, _NOTHING)
        below_s += max(0.0, time.ended_s - since.ended_s - before_end.get(pid, 0.0))
        if pid != root:
            below_s += time.own_s - since.own_s
    return TreeSeconds(after[root].own_s - before[root].own_s, below_s)


def _used_by_ended(before: Processes, after: Processes) -> Mapping[int, float]:
    """What those that have ended had used until `before`, by the nearest process above them that has not ended."""
    used_s: dict[int, float] = {}
    for pid in before.keys() - after.keys():
        above = before[pid].parent_pid
        while above not in after:
            above = before[above].parent_pid
        used_s[above] = used_s.get(above, 0.0) + before[pid].own_s + before[pid].ended_s
    return used_s
