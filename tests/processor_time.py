"""The processor time of a process, as the kernel counts it: proc_pid_stat(5)."""

import os
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SUM_S = 0.006
"""Of processor time: what a sum of 100,000 squares takes on the machine on which the tests' bars were measured."""


class ProcessorTime(NamedTuple):
    """User and system time together, of all threads, since the process began."""

    name: str
    """The kernel's: the program's, up to 15 bytes of it."""
    parent_pid: int
    own_s: float
    ended_s: float
    """Of children that have ended and that the process has waited for, and of theirs."""


def processor_time(pid: int) -> ProcessorTime:
    """Of the process `pid`. OSError when there is none."""
    before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    fields = after.split()
    user, system, ended_user, ended_system = map(int, fields[11:15])
    return ProcessorTime(
        name=before.partition("(")[2],
        parent_pid=int(fields[1]),
        own_s=(user + system) / _TICKS_PER_S,
        ended_s=(ended_user + ended_system) / _TICKS_PER_S,
    )


@cache
def slowness() -> float:
    """How many times as long this machine's processor takes as the one on which bars were measured; at least 1."""

    def sum_s() -> float:
        began_s = time.thread_time()
        sum(number * number for number in range(100_000))
        return time.thread_time() - began_s

    return max(1.0, min(sum_s() for _ in range(10)) / _SUM_S)
