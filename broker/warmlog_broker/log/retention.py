"""Which segments a log may give up, and when their files are unlinked.

Segments go from the oldest on, for one of three reasons, each looked at in turn and from where the one before it
stopped: all their records lie below the log start offset; without them the log still holds `retention.bytes`; their
newest record is older than `retention.ms`. The first holds whatever the `cleanup.policy` (KAFKA-7400), the other two
where that says delete. Only what lies below the high watermark goes, and never the empty active
segment. Files are renamed to end in `.deleted` at once and unlinked after `file.delete.delay.ms`, so that a reader
that has found them is not disturbed. The delay is counted by elapsed time, which no change of the clock affects. After
a restart there is no such reader: files that still wait are unlinked at the next start, whatever the delay.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol, TypeVar

from warmlog_broker.log.config import UNLIMITED, LogConfig

Reason = Literal["log start", "retention.bytes", "retention.ms"]


class SegmentFacts(Protocol):
    """What retention looks at. `largest_timestamp_ms` may cost a read, and is asked for last."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def largest_timestamp_ms(self) -> int: ...
    @property
    def modified_ms(self) -> int: ...


Segment = TypeVar("Segment", bound=SegmentFacts)


def deletable_segments(
    segments: Sequence[Segment],
    *,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    config: LogConfig,
    now_ms: int,
) -> list[tuple[Segment, Reason]]:
    """The segments, oldest first, that may go, with the reason for each. `segments` are all, the active one last."""
    candidates = _below_high_watermark(segments, log_end_offset, high_watermark)
    reasons: list[Reason] = []

    next_bases = [segment.base_offset for segment in segments[1:]]
    for next_base in next_bases[: len(candidates)]:
        if next_base > log_start_offset:
            break
        reasons.append("log start")

    if config.deletes and config.retention_bytes != UNLIMITED:
        excess_bytes = sum(segment.size_bytes for segment in segments[len(reasons) :]) - config.retention_bytes
        for segment in candidates[len(reasons) :]:
            excess_bytes -= segment.size_bytes
            if excess_bytes < 0:
                break
            reasons.append("retention.bytes")

    if config.deletes and config.retention_ms != UNLIMITED:
        for place in range(len(reasons), len(candidates)):
            if now_ms - newest_record_ms(segments, place, now_ms) <= config.retention_ms:
                break
            reasons.append("retention.ms")

    return list(zip(candidates, reasons, strict=False))


def newest_record_ms(segments: Sequence[Segment], place: int, now_ms: int) -> int:
    """When the newest record of the segment at `place` was written, as far as that can be believed.

    A timestamp ahead of the clock cannot be (KAFKA-14991: one such record kept its segment, and all behind it, for
    ever): then it is when the file was last written to. If that lies ahead as well, since the clock was wrong at the
    time, it is when a later file was, for what came before that is not newer.
    """
    newest_ms = segments[place].largest_timestamp_ms
    if newest_ms <= now_ms:
        return newest_ms
    return next((later.modified_ms for later in segments[place:] if later.modified_ms <= now_ms), now_ms)


def _below_high_watermark(segments: Sequence[Segment], log_end_offset: int, high_watermark: int) -> list[Segment]:
    """The oldest segments that end at or below the high watermark, without an empty active one."""
    ends = [*(segment.base_offset for segment in segments[1:]), log_end_offset]
    candidates = [segment for segment, end_offset in zip(segments, ends, strict=True) if end_offset <= high_watermark]
    if len(candidates) == len(segments) and segments[-1].size_bytes == 0:
        candidates.pop()
    return candidates


class DueDeletions:
    """Deletions that wait, in the order in which they were added. Housekeeping takes what is due.

    The wait of each begins with the first `take_due` after it was added, so that only one caller needs a clock.
    """

    def __init__(self) -> None:
        self._new: list[Callable[[], None]] = []
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def __len__(self) -> int:
        return len(self._new) + len(self._waiting)

    def add(self, deletion: Callable[[], None]) -> None:
        """Have `deletion` called once, after those that were added before it."""
        self._new.append(deletion)

    def take_due(self, elapsed_ms: int, delay_ms: int) -> list[Callable[[], None]]:
        """Take out what has waited for `delay_ms`. `elapsed_ms` is a clock that never goes back."""
        self._waiting.extend((elapsed_ms, deletion) for deletion in self._new)
        self._new.clear()
        due = []
        while self._waiting and self._waiting[0][0] + delay_ms <= elapsed_ms:
            due.append(self._waiting.popleft()[1])
        return due


def run_deletions(deletions: Iterable[Callable[[], None]]) -> None:
    """Carries out all of `deletions`, in any thread.

    The first OSError is raised when all were tried; what failed is not tried again before the next start.
    """
    first_error: OSError | None = None
    for deletion in deletions:
        try:
            deletion()
        except OSError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
