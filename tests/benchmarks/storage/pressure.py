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
from page_cache import resident_pages
from warmlog_broker.storage.index.offset_index import OffsetIndex
from warmlog_broker.storage.index.search import WARM_BYTES, classic_search, warm_cold_search
from warmlog_broker.storage.index.warm_keeper import WarmTarget, keep_warm
from warmlog_broker.storage.io.open_files import OpenFiles

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
        self.index.entries = self.index._written = entries

    def evict(self, kept: Iterable[int] = ()) -> None:
        """Has the kernel forget all pages but these."""
        mapped = self.index.mapped
        file = os.open(self.path, os.O_RDONLY)
        first, pages = 0, os.fstat(file).st_size // PAGE
        for end in [*sorted(kept), pages]:
            if end > first:
                if mapped is not None:
                    mapped.madvise(mmap.MADV_DONTNEED, first * PAGE, (end - first) * PAGE)
                os.posix_fadvise(file, first * PAGE, (end - first) * PAGE, os.POSIX_FADV_DONTNEED)
            first = end + 1
        os.close(file)

    def read_page(self, slot: int) -> int:
        """Has the page of `slot` in memory, as it is when it was written just now; returns its number."""
        page = slot // A_PAGE
        file = os.open(self.path, os.O_RDONLY)
        os.pread(file, PAGE, page * PAGE)
        os.close(file)
        return page

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


def one_log(directory: Path, index_bytes: int, lookups: int) -> dict[str, dict[str, float]]:
    """A log that is written all the time: its index grows by a page between two lookups. By the name of the search."""
    entries = index_bytes // 8 - lookups * A_PAGE
    assert entries > 4 * OffsetIndex.warm_entries
    log, found = Log(directory / "one.index", entries, lookups), {}
    os.sync()
    for name, (search, has_keeper) in SEARCHES.items():
        counted, chance = Counted(), Random(2)
        log.set_entries(entries)
        log.index.lookup(entries)
        used = pages_of(name, entries, entries)
        for _ in range(lookups):
            log.set_entries(log.entries + A_PAGE)
            newest = {log.read_page(log.entries - 2), log.read_page(log.entries - 1)}
            log.evict({*used, *newest})
            if has_keeper:
                keep_warm([log.target()], MIB)
            used = _look_up(counted, name, search, log, log.entries - chance.randrange(TAIL))
        found[name] = counted.figures()
    log.close()
    return found


def many_logs(directory: Path, index_bytes: int, count: int) -> dict[str, dict[str, float]]:
    """Logs with little traffic: nothing of an index is in memory when somebody comes, unless the keeper was there."""
    entries = index_bytes // 8
    logs, found = [Log(directory / f"{number}.index", entries, 0) for number in range(count)], {}
    os.sync()
    for name, (search, has_keeper) in SEARCHES.items():
        counted, chance, resident = Counted(), Random(3), 0
        for log in logs:
            log.index.entry(0)
            log.evict()
        if has_keeper:
            keep_warm([log.target() for log in logs], count * MIB)
        for log in logs:
            resident += len(resident_pages(log.path))
            _look_up(counted, name, search, log, entries - chance.randrange(TAIL))
        found[name] = {**counted.figures(), "resident_pages_before": resident / count}
    for log in logs:
        log.close()
    return found


def measure(directory: Path, rounds: int, lookups: int, logs: int) -> list[Figure]:
    """Every search in both stories at both sizes."""
    figures: list[Figure] = []
    for mib in (1, 10):
        index_bytes = mib * MIB
        grown = min(lookups, (index_bytes // PAGE) * 3 // 4)
        stories: dict[str, Callable[[], dict[str, dict[str, float]]]] = {
            f"one log, {mib} MiB": lambda size=index_bytes, grown=grown: one_log(directory, size, grown),  # type: ignore[misc]
            f"{logs:,} logs, {mib} MiB": lambda size=index_bytes: many_logs(directory, size, logs),  # type: ignore[misc]
        }
        for story, tell in stories.items():
            by_name = {
                name: Figure(f"{name}, {story}", {"index_bytes": index_bytes, "logs": logs}) for name in SEARCHES
            }
            for _ in range(rounds):
                for name, figure in tell().items():
                    by_name[name].runs.append(figure)
            figures.extend(by_name.values())
    return figures
