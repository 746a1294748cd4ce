"""The processor time of a process, as the kernel counts it: proc_pid_stat(5)."""

import os
from pathlib import Path
from typing import NamedTuple

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


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
