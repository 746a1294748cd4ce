"""Lookups at the end of an index while memory is short: classic, warm/cold, and warm/cold with the keeper.

Memory pressure is brought about page by page: mapped pages leave the page tables by madvise(DONTNEED), and then the
page cache by posix_fadvise(DONTNEED). Two stories are told, each with indexes of 1 MiB and of 10 MiB:

- **one log** is written all the time, and looked into after each page that its index has grown by. What the lookup
  before did not touch has been evicted meanwhile.
- **1,000 logs** have little traffic: between two lookups in the same log all of its pages have been evicted. The
  keeper, whose interval is shorter than that, has come by in between.

Only the pages that some search visits are written, the others are holes: with 1,000 indexes of 10 MiB the disk would
be measured. A fault also reads what lies around it (128 KiB), which are holes here: that favours the classic search.
"""

import mmap
import os
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from benchmarks.storage.figures import Figure, quantiles_us
from page_cache import evict, resident_pages
from warmlog_broker.log.index_search import WARM_BYTES, classic_search, warm_cold_search
from warmlog_broker.log.offset_index import OffsetIndex
from warmlog_broker.log.open_files import OpenFiles
from warmlog_broker.log.warm_keeper import MADV_POPULATE_READ, WarmTarget, keep_warm

MIB = 1024 * 1024
PAGE = mmap.PAGESIZE
A_PAGE = PAGE // 8
"""Entries on a page."""
TAIL = 64
"""Lookups are for one of the last entries."""


@dataclass
class Counted:
    """What the lookups of one run cost."""

    times_ns: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    major_faults: int = 0

    def figures(self) -> dict[str, float]:
        return {
            **quantiles_us(self.times_ns),
            "pages_a_lookup": sum(self.pages) / len(self.pages),
            "major_faults_a_lookup": self.major_faults / len(self.times_ns),
        }


class Log:
    """One index file, sparse, mapped by the index that is looked into."""

    def __init__(self, path: Path, entries: int, growth: int) -> None:
        self.path = path
        self.entries = entries
        pages = {slot // A_PAGE for n in range(growth + 1) for slot in _visited(entries + n * A_PAGE)}
        with open(path, "wb") as file:
            file.truncate((entries + growth * A_PAGE) * 8)
            for page in pages:
                file.seek(page * PAGE)
                first = page * A_PAGE
                file.write(b"".join((slot + 1).to_bytes(4, "big") * 2 for slot in range(first, first + A_PAGE)))
        self.index = OffsetIndex(path, 0, open_files=OpenFiles())
        self.set_entries(entries)

    def set_entries(self, entries: int) -> None:
        """As if the index had so many: the file has them all, growing it would measure writing."""
        self.entries = entries
        self.index._entries = self.index._written = entries

    def evict_all(self) -> None:
        mapped = self.index.mapped
        if mapped is not None:
            mapped.madvise(mmap.MADV_DONTNEED)
        evict(self.path)

    def evict_but(self, kept: Iterable[int]) -> None:
        """Everything but these pages; they are touched, so that they count as used."""
        self.evict_all()
        file = os.open(self.path, os.O_RDONLY)
        try:
            for page in kept:
                os.pread(file, PAGE, page * PAGE)
        finally:
            os.close(file)
        mapped = self.index.mapped
        if mapped is not None:
            for page in kept:
                mapped.madvise(MADV_POPULATE_READ, page * PAGE, PAGE)

    def keep(self) -> None:
        keep_warm([self.target()], MIB)

    def target(self) -> WarmTarget:
        """What the keeper does for an index of 8-byte entries."""
        return WarmTarget(self.path, WARM_BYTES + 8, self.index, self.entries * 8)

    def close(self) -> None:
        self.index.close_handles()
        self.path.unlink()


Search = Callable[[Log, int], object]


def classic(log: Log, offset: int) -> object:
    return classic_search(log.index.probe(log.index.key), log.entries, offset)


def warm_cold(log: Log, offset: int) -> object:
    return log.index.lookup(offset)


SEARCHES: dict[str, tuple[Search, bool]] = {
    "classic": (classic, False),
    "warm/cold": (warm_cold, False),
    "warm/cold with keeper": (warm_cold, True),
}


def _visited(entries: int) -> set[int]:
    """The slots that either search reads for any target at the end."""
    slots: set[int] = set()

    def probe(slot: int) -> int:
        slots.add(slot)
        return slot + 1

    for offset in range(entries - TAIL, entries + 1):
        classic_search(probe, entries, offset)
        warm_cold_search(probe, entries, OffsetIndex.warm_entries, offset)
    return slots


def pages_of(search_name: str, entries: int, offset: int) -> list[int]:
    """The pages that a search visits."""
    slots: list[int] = []

    def probe(slot: int) -> int:
        slots.append(slot)
        return slot + 1

    if search_name == "classic":
        classic_search(probe, entries, offset)
    else:
        warm_cold_search(probe, entries, OffsetIndex.warm_entries, offset)
    return list(dict.fromkeys(slot // A_PAGE for slot in slots))


def _look_up(counted: Counted, name: str, search: Search, log: Log, offset: int) -> list[int]:
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    start = time.perf_counter_ns()
    search(log, offset)
    counted.times_ns.append(time.perf_counter_ns() - start)
    counted.major_faults += resource.getrusage(resource.RUSAGE_SELF).ru_majflt - faults
    pages = pages_of(name, log.entries, offset)
    counted.pages.append(len(pages))
    return pages


def one_log(directory: Path, name: str, index_bytes: int, lookups: int) -> dict[str, float]:
    """A log that is written all the time: its index grows by a page between two lookups."""
    search, has_keeper = SEARCHES[name]
    entries = index_bytes // 8 - lookups * A_PAGE
    assert entries > 4 * OffsetIndex.warm_entries
    log, counted, chance = Log(directory / "one.index", entries, lookups), Counted(), Random(2)
    log.index.lookup(entries)
    used = pages_of(name, entries, entries)
    for _ in range(lookups):
        log.set_entries(log.entries + A_PAGE)
        newest = (log.entries - 1) // A_PAGE  # it was written just now
        log.evict_but({*used, newest - 1, newest})
        if has_keeper:
            log.keep()
        used = _look_up(counted, name, search, log, log.entries - chance.randrange(TAIL))
    log.close()
    return counted.figures()


def many_logs(directory: Path, name: str, index_bytes: int, logs: int) -> dict[str, float]:
    """Logs with little traffic: nothing of an index is in memory when somebody comes, unless the keeper was there."""
    search, has_keeper = SEARCHES[name]
    entries = index_bytes // 8
    all_logs = [Log(directory / f"{number}.index", entries, 0) for number in range(logs)]
    counted, chance, resident = Counted(), Random(3), 0
    for log in all_logs:
        log.index.lookup(entries)
        log.evict_all()
    if has_keeper:
        keep_warm([log.target() for log in all_logs], logs * MIB)
    for log in all_logs:
        resident += len(resident_pages(log.path))
        _look_up(counted, name, search, log, entries - chance.randrange(TAIL))
        log.close()
    return {**counted.figures(), "resident_pages_before": resident / logs}


def measure(directory: Path, rounds: int, lookups: int, logs: int) -> list[Figure]:
    """Every search in both stories at both sizes."""
    figures = []
    for mib in (1, 10):
        grown = min(lookups, (mib * MIB // PAGE) * 3 // 4)
        for name in SEARCHES:
            figure = Figure(f"{name}, one log, {mib} MiB", {"index_bytes": mib * MIB, "lookups": grown})
            figure.runs.extend(one_log(directory, name, mib * MIB, grown) for _ in range(rounds))
            figures.append(figure)
        for name in SEARCHES:
            figure = Figure(f"{name}, {logs:,} logs, {mib} MiB", {"index_bytes": mib * MIB, "logs": logs})
            figure.runs.extend(many_logs(directory, name, mib * MIB, logs) for _ in range(rounds))
            figures.append(figure)
    return figures
