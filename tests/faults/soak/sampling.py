"""What a process takes, out of /proc, and what the disk below it does."""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from processor_time import processor_time

MIB = 1024 * 1024
SYNC_BYTES = 4096
SEGMENT_FILES = (".log", ".index", ".timeindex", ".txnindex")
DELETED = ".deleted"
UNLINKED = " (deleted)"


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One look at a process.

    `anonymous` is memory that no file backs: maps of indexes are not in it. `segment_files` are files of segments that
    exist and are open, each counted once: they come and go with the segments. `other_descriptors` are the rest, where
    every leak shows: sockets, files that are gone, second descriptors of one file.
    """

    rss_mib: float
    pss_mib: float
    anonymous_mib: float
    segment_files: int
    other_descriptors: int
    maps: int
    threads: int
    cpu_s: float

    @property
    def descriptors(self) -> int:
        """All of them."""
        return self.segment_files + self.other_descriptors


def sample(pid: int) -> ProcessSample:
    """What the process takes now; OSError when it is gone."""
    proc = Path("/proc", str(pid))
    sizes = {line.split(":")[0]: line.split()[1] for line in (proc / "smaps_rollup").read_text().splitlines()[1:]}
    descriptors, segment_files = open_files(proc / "fd")
    return ProcessSample(
        rss_mib=int(sizes["Rss"]) / 1024,
        pss_mib=int(sizes["Pss"]) / 1024,
        anonymous_mib=int(sizes["Anonymous"]) / 1024,
        segment_files=segment_files,
        other_descriptors=descriptors - segment_files,
        maps=(proc / "maps").read_text().count("\n"),
        threads=sum(1 for _ in (proc / "task").iterdir()),
        cpu_s=processor_time(pid).own_s,
    )


def open_files(descriptors: Path) -> tuple[int, int]:
    """How many descriptors there are in a `/proc/PID/fd`, and how many different files of segments they are of."""
    count = 0
    segment_files = set()
    for descriptor in descriptors.iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            target = str(descriptor.readlink())
            count += 1
            if not target.endswith(UNLINKED) and target.removesuffix(DELETED).endswith(SEGMENT_FILES):
                segment_files.add(target)
    return count, len(segment_files)


def used_mib(directory: Path) -> float:
    """What all files below have on disk together."""
    used_bytes = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # retention is at work
                used_bytes += Path(parent, name).stat().st_blocks * 512
    return used_bytes / MIB


def sync_ms(directory: Path) -> float:
    """How long the disk takes now to make one block durable, whoever else uses it."""
    path = directory / "sync-probe"
    with path.open("wb", buffering=0) as file:
        file.write(b"\0" * SYNC_BYTES)
        started_s = time.monotonic()
        os.fdatasync(file.fileno())
        return 1000 * (time.monotonic() - started_s)
