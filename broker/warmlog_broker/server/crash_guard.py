"""Prevents a broker from crashing repeatedly at its start.

Each start is recorded (`crash_journal`). A crash counts if its cause may be the start itself, or what the broker did in
its first seconds; a broker that served after that has recovered from all earlier crashes:

==================================================  ===============================================
how an earlier start ended                          its crash
==================================================  ===============================================
before serving                                      counts
in its first seconds, while compacting a partition  counts
in its first seconds otherwise, or later            does not count, and neither do earlier ones
while serving in safe mode                          is ignored
==================================================  ===============================================

After `crash.loop.limit` crashes that count, all within `crash.loop.window.ms`, a start is in safe mode:

- it refuses records and new topics (SafeMode) and does not compact. Reading, deleting and retention continue, so that
  data can be copied and space freed;
- a partition that was being opened during two or more of the crashes is not opened: it is offline;
- the others are opened one at a time, so that the journal names the partition that causes the next crash.

Safe mode ends with an orderly stop, which forgets all crashes, or after serving for `crash.loop.window.ms`. A start
that ends with a reported error or a stop signal is not a crash.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.server.crash_journal import FIRST_SECONDS, OPENING, SAFE_MODE, SERVING, Start, StartJournal
from warmlog_protocol.errors import SafeMode, StorageError, WarmlogError

FIRST_SECONDS_MS = 10_000
"""After serving for this long a broker has recovered, whatever it is doing."""
SUSPECT_CRASHES = 2
"""A partition that was being opened during this many crashes is not opened in safe mode."""
MAX_NAMED = 5
"""The most crashes that a message names, and partitions of each."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """Why a start is in safe mode: the crashes, and the partitions that are not opened."""

    crashes: Sequence[Start]
    suspects: frozenset[str]

    def __str__(self) -> str:
        last = "; ".join(map(describe, self.crashes[-MAX_NAMED:]))
        return f"the last {len(self.crashes)} starts ended in a crash: {last}"


def judge(earlier: Sequence[Start], *, now_ms: int, limit: int, window_ms: int) -> CrashLoop | None:
    """Return the crash loop that `earlier` starts (oldest first) amount to; None for too few, or with `limit` 0.

    A crash in the future counts too: the clock may have been wrong.
    """
    crashes: list[Start] = []
    for start in earlier:
        if start.step == SERVING or (start.step == FIRST_SECONDS and not start.checking):
            crashes.clear()
        elif start.step != SAFE_MODE and abs(now_ms - start.begun_ms) <= window_ms:
            crashes.append(start)
    if not limit or len(crashes) < limit:
        return None
    times = Counter(name for crash in crashes if crash.step == OPENING for name in crash.checking)
    return CrashLoop(crashes, frozenset(name for name, count in times.items() if count >= SUSPECT_CRASHES))


def describe(crash: Start) -> str:
    """Say when a start began and how far it got."""
    names = list(crash.checking)
    listed = ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
    if not names:
        work = crash.step
    elif crash.step == OPENING:
        work = f"opening {listed}"
    else:
        work = f"{crash.step}, compacting {listed}"
    begun = datetime.fromtimestamp(crash.begun_ms / 1000, UTC)
    return f"begun {begun:%Y-%m-%d %H:%M:%S} UTC, while {work}"


class CrashGuard:
    """Records this start in `journal`, and knows whether it is in safe mode."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int] = now_ms) -> None:
        """`now_ms` is the time of day."""
        self.loop: CrashLoop | None = None
        """Why the broker is in safe mode; None if it is not."""
        self.journal = StartJournal(config.data_paths[0].absolute())
        self._config = config
        self._now_ms = now_ms

    def begin(self) -> None:
        """Record this start in the first data directory, which is locked, and judge the earlier ones."""
        config, now_ms = self._config, self._now_ms()
        self.journal.begin(now_ms)
        earlier = self.journal.earlier
        self.loop = judge(earlier, now_ms=now_ms, limit=config.crash_loop_limit, window_ms=config.crash_loop_window_ms)
        if self.loop is not None:
            _log.critical(
                "SAFE MODE, records are refused: %s. Look for the cause in the log before this start, then stop and "
                "start the broker, or remove %s before a start; crash.loop.limit=0 turns safe mode off. Otherwise the "
                "broker accepts records again after serving for %d s",
                self.loop,
                self.journal.path,
                config.crash_loop_window_ms // 1000,
            )
        elif earlier:
            _log.warning("the last start ended in a crash: %s", describe(earlier[-1]))

    @contextmanager
    def working_on(self, name: str) -> Iterator[None]:
        """Record that a partition is opened or compacted within; StorageError if safe mode does not open it."""
        if self.loop is not None and name in self.loop.suspects:
            raise StorageError(f"{name} is not opened in safe mode: the broker has crashed while opening it")
        self.journal.add("checking", name)
        try:
            yield
        except WarmlogError:  # reported: the partition is offline, or not compacted, and the broker continues
            self.journal.add("checked", name)
            raise
        self.journal.add("checked", name)

    def write_refusal(self) -> SafeMode | None:
        """Return the error for records and new topics; None if they are accepted."""
        if self.loop is None:
            return None
        return SafeMode(
            f"the broker is in safe mode and refuses records until an operator stops and starts it: {self.loop}"
        )

    def serving(self) -> float:
        """Record the end of the start; return the seconds after which to call `recovered`."""
        is_safe = self.loop is not None
        self.journal.add("step", SAFE_MODE if is_safe else FIRST_SECONDS)
        return (self._config.crash_loop_window_ms if is_safe else FIRST_SECONDS_MS) / 1000

    def recovered(self) -> None:
        """End safe mode; from now on no crash counts."""
        self.journal.add("step", SERVING)
        self.journal.close()
        if self.loop is not None:
            self.loop = None
            _log.warning("safe mode is over, records are accepted again: the broker served for crash.loop.window.ms")
