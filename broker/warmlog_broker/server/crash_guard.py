"""What keeps a broker from crashing again and again.

Each start is noted (`start_notes`). After `crash.loop.limit` starts within `crash.loop.window.ms` that have not ended
well, the next one is in safe mode:

- no records are taken and no topics are made (SafeMode, which can be tried again); nothing is compacted. Reading,
  deleting and retention go on, so that data can be taken away and room be made;
- a partition that was being opened at two or more of the crashes is not opened: it is offline, and the rest is served;
- the others are opened one at a time, so that the notes name the one that the next crash is at.

A stop and a start by hand end it, as an orderly stop forgets all crashes; so does having served for the window, when
records are taken again. A start that is refused in words, or told to stop, has not crashed.

`judge` is pure; `CrashGuard` joins it to the file and to the broker.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from warmlog_broker.config.broker_config import BrokerConfig
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.server.crash_journal import StartNote, StartNotes
from warmlog_protocol.errors import ApiError, SafeMode, StorageError

SUSPECT_CRASHES = 2
"""A partition that was being opened at so many crashes is not opened in safe mode."""
MAX_NAMED = 5
"""Of crashes, and of partitions at a crash, in a message."""
SERVING = "serving"

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
    """Whether there were too many crashes lately; None when there were not, or with `limit` 0.

    What lies in the future counts as well: a clock that was wrong does not keep a crash from being one.
    """
    crashes = [start for start in earlier if abs(now_ms - start.begun_ms) <= window_ms]
    if not limit or len(crashes) < limit:
        return None
    times = Counter(name for crash in crashes for name in crash.checking)
    return CrashLoop(crashes, frozenset(name for name, count in times.items() if count >= SUSPECT_CRASHES))


def describe(crash: StartNote) -> str:
    """When a start began and how far it came, for people."""
    begun = _clock_time(crash.begun_ms)
    if crash.checking:
        names = list(crash.checking)
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        return f"begun {begun}, while opening {', '.join(names[:MAX_NAMED])}{more}"
    return f"begun {begun}, while {crash.step} (since {_clock_time(crash.step_ms)})"


def _clock_time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


class CrashGuard:
    """The notes of this start, and whether it is in safe mode."""

    def __init__(self, config: BrokerConfig, now_ms: Callable[[], int] = now_ms) -> None:
        """`now_ms` is the time of day."""
        self.loop: CrashLoop | None = None
        """Why the broker is in safe mode; None when it is not."""
        self._config = config
        self._now_ms = now_ms
        self._notes: StartNotes | None = None
        self._hint = ""

    def begin(self, directory: Path) -> None:
        """Notes this start in the first data directory, which is locked, and judges by the earlier ones."""
        config, now_ms = self._config, self._now_ms()
        self._notes = StartNotes.begin(directory, now_ms)
        self.loop = judge(
            self._notes.earlier, now_ms=now_ms, limit=config.crash_loop_limit, window_ms=config.crash_loop_window_ms
        )
        self._hint = (
            f"Find out why (the log before this start), then stop and start the broker, or remove {self._notes.path} "
            f"before a start; crash.loop.limit=0 turns this off. Without either it takes records again after "
            f"{config.crash_loop_window_ms // 1000} s of serving"
        )
        if self.loop is not None:
            _log.critical("SAFE MODE, no records are taken: %s. %s", self.loop, self._hint)
        elif self._notes.earlier:
            _log.warning("the last start has ended in a crash: %s", describe(self._notes.earlier[-1]))

    @contextmanager
    def opening(self, name: str) -> Iterator[None]:
        """Notes that the log of a partition is opened within the context; StorageError when it is not to be opened."""
        if self.loop is not None and name in self.loop.suspects:
            raise StorageError(f"{name} is not opened in safe mode: the broker has crashed while opening it")
        if self._notes is None:
            yield
            return
        self._notes.checking(name)
        try:
            yield
        except ApiError:  # in words: the partition is offline, and the start goes on
            self._notes.checked(name)
            raise
        self._notes.checked(name)

    def write_refusal(self) -> SafeMode | None:
        """Why no records are taken and no topics made; None when they are."""
        if self.loop is None:
            return None
        return SafeMode(
            f"the broker is in safe mode and takes no records, until it is stopped and started: {self.loop}"
        )

    def serving(self) -> None:
        """The start is over."""
        if self._notes is not None:
            self._notes.step(SERVING, self._now_ms())

    def end_safe_mode(self) -> None:
        """It has served for long enough."""
        if self.loop is not None:
            self.loop = None
            _log.warning("safe mode is over, records are taken again: the broker has served for crash.loop.window.ms")

    def start_has_ended(self) -> None:
        """It was refused in words, or told to stop: no crash."""
        if self._notes is not None:
            self._notes.forget_this_start()

    def stopped(self, in_order: bool) -> None:
        """The broker has stopped; `in_order` says whether earlier crashes are forgotten."""
        if self._notes is None:
            return
        if in_order:
            self._notes.forget_all()
        else:
            self._notes.close()
