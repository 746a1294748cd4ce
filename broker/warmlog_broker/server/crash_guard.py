"""What keeps a broker from crashing again and again at its start.

Each start is noted (`start_notes`). A crash counts if the start itself may be the cause, or what the broker did in its
first seconds; a broker that came to serve has recovered from the crashes before:

==================================================  ===============================================
how an earlier start ended                          its crash
==================================================  ===============================================
before it served                                    counts
in its first seconds, while it compacted something  counts
in its first seconds otherwise, or later            does not count, and neither does any before it
in safe mode, while it served                       says nothing: it is left out
==================================================  ===============================================

After `crash.loop.limit` crashes that count, all within `crash.loop.window.ms`, a start is in safe mode:

- no records are taken and no topics are made (SafeMode); nothing is compacted. Reading, deleting and retention go on,
  so that data can be taken away and room be made;
- a partition that was being opened at two or more of the crashes is not opened: it is offline, and the rest is served;
- the others are opened one at a time, so that the notes name the one that the next crash is at.

An orderly stop ends it, as that forgets all crashes; so does having served for the window, when records are taken
again. A start that is refused in words, or told to stop, has not crashed.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.server.crash_journal import FIRST_SECONDS, OPENING, SAFE_MODE, SERVING, StartNote, StartNotes
from warmlog_protocol.errors import SafeMode, StorageError, WarmlogError

FIRST_SECONDS_MS = 10_000
"""A broker that has served for so long has recovered, whatever it does at that moment."""
SUSPECT_CRASHES = 2
"""A partition that was being opened at so many crashes is not opened in safe mode."""
MAX_NAMED = 5
"""Of crashes, and of partitions at a crash, in a message."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CrashLoop:
    """Why a start is in safe mode."""

    crashes: Sequence[StartNote]
    suspects: frozenset[str]
    """The partitions that are not opened."""

    def __str__(self) -> str:
        last = "; ".join(map(describe, self.crashes[-MAX_NAMED:]))
        return f"the last {len(self.crashes)} starts have ended in a crash: {last}"


def judge(earlier: Sequence[StartNote], *, now_ms: int, limit: int, window_ms: int) -> CrashLoop | None:
    """The crash loop that `earlier` starts, the oldest first, add up to; None for too few, or with `limit` 0.

    What is in the future counts as well: a clock that was wrong does not keep a crash from being one.
    """
    crashes: list[StartNote] = []
    for start in earlier:
        if start.step == SERVING or (start.step == FIRST_SECONDS and not start.checking):
            crashes.clear()
        elif start.step != SAFE_MODE and abs(now_ms - start.begun_ms) <= window_ms:
            crashes.append(start)
    if not limit or len(crashes) < limit:
        return None
    times = Counter(name for crash in crashes if crash.step == OPENING for name in crash.checking)
    return CrashLoop(crashes, frozenset(name for name, count in times.items() if count >= SUSPECT_CRASHES))


def describe(crash: StartNote) -> str:
    """When a start began and how far it came, for people."""
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
    """The notes of this start, and whether it is in safe mode."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int] = now_ms) -> None:
        """`now_ms` is the time of day."""
        self.loop: CrashLoop | None = None
        """Why the broker is in safe mode; None when it is not."""
        self._config = config
        self._now_ms = now_ms
        self._notes = StartNotes(config.data_paths[0].absolute())

    def begin(self) -> None:
        """Note this start in the first data directory, which is locked, and judge by the earlier ones."""
        config, now_ms = self._config, self._now_ms()
        self._notes.begin(now_ms)
        earlier = self._notes.earlier
        self.loop = judge(earlier, now_ms=now_ms, limit=config.crash_loop_limit, window_ms=config.crash_loop_window_ms)
        if self.loop is not None:
            _log.critical(
                "SAFE MODE, no records are taken: %s. Find out why (the log before this start), then stop and start "
                "the broker, or remove %s before a start; crash.loop.limit=0 turns this off. Without either it takes "
                "records again after %d s of serving",
                self.loop,
                self._notes.path,
                config.crash_loop_window_ms // 1000,
            )
        elif earlier:
            _log.warning("the last start has ended in a crash: %s", describe(earlier[-1]))

    @contextmanager
    def working_on(self, name: str) -> Iterator[None]:
        """Note that a partition is opened, or compacted, within; StorageError when it is not to be opened."""
        if self.loop is not None and name in self.loop.suspects:
            raise StorageError(f"{name} is not opened in safe mode: the broker has crashed while opening it")
        self._notes.note("checking", name)
        try:
            yield
        except WarmlogError:  # in words: the partition is offline, or not compacted, and the broker goes on
            self._notes.note("checked", name)
            raise
        self._notes.note("checked", name)

    def write_refusal(self) -> SafeMode | None:
        """Why no records are taken and no topics made; None when they are."""
        if self.loop is None:
            return None
        return SafeMode(
            f"the broker is in safe mode and takes no records, until it is stopped and started: {self.loop}"
        )

    def serving(self) -> float:
        """The start is over. Call `recovered` after the seconds returned."""
        is_safe = self.loop is not None
        self._notes.note("step", SAFE_MODE if is_safe else FIRST_SECONDS)
        return (self._config.crash_loop_window_ms if is_safe else FIRST_SECONDS_MS) / 1000

    def recovered(self) -> None:
        """It has served for long enough: safe mode is over, and no crash from now on counts."""
        self._notes.note("step", SERVING)
        self._notes.close()
        if self.loop is not None:
            self.loop = None
            _log.warning("safe mode is over, records are taken again: the broker has served for crash.loop.window.ms")

    def start_has_ended(self) -> None:
        """It was refused in words, or told to stop: no crash."""
        self._notes.forget(is_all=False)

    def stopped(self) -> None:
        """The broker has stopped in order: forget earlier crashes, too."""
        self._notes.forget(is_all=True)

    def close(self) -> None:
        """Note no more. What is noted stays, if nothing of the above was called."""
        self._notes.close()
