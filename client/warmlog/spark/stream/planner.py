"""Plans the micro-batches of one stream: the part of a stream that asks the broker and remembers.

It lives as long as the query runs, in a process of its own on the driver. What a micro-batch reads is decided by the
offsets in the checkpoint. What is remembered here helps to notice a topic that was made anew, whose records are not
those, a log that was cut, as by a power cut with write.caching, and a first micro-batch that is run again, and to hold
back what `minOffsetsPerTrigger` wants to wait for. The checkpoint has no room for topic ids and leader epochs.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from warmlog.errors import TOPIC_IS_GONE, LogTruncated, OffsetOutOfRange
from warmlog.ranges.discover import Discovery, find_cuts
from warmlog.ranges.offset_range import PartitionState, Piece, TopicPartition, sized_ranges
from warmlog.ranges.resolve import Loss, resolve_ranges, starting_times
from warmlog.ranges.retrying import retrying
from warmlog.spark.options.stream_options import Admission, StreamOptions
from warmlog.spark.read.plan import Task, plan_tasks
from warmlog.spark.read.planning import chosen_states, size_ranges
from warmlog.spark.stream.admission import admit_bytes, admit_offsets, is_enough
from warmlog.spark.stream.ranges import advance, first_end, first_start, stream_ranges

T = TypeVar("T")
Offsets = Mapping[TopicPartition, int]
Cut = tuple[int, int]
"""Up to where a stream had read, and where the log was cut below that."""

LIKELY_RECORD_BYTES = 64
"""How far to ask for sizes first, when bytes are limited; further if records are smaller."""
PIECES = 64
"""Into how many pieces a limit in bytes is divided, or into pieces of so many bytes at least: see LEAST_PIECE_BYTES."""
LEAST_PIECE_BYTES = 64 * 1024

_log = logging.getLogger("warmlog.spark")


class StreamPlanner:
    """Where a stream starts, how far its next micro-batch goes, and which tasks that makes. `clock` is in ms."""

    def __init__(self, options: StreamOptions, clock: Callable[[], float], discovery: Discovery) -> None:
        self._options = options
        self._clock = clock
        self._discovery = discovery
        self._initial: dict[TopicPartition, int] | None = None
        self._starts_at_end: set[TopicPartition] = set()
        self._states: dict[TopicPartition, PartitionState] = {}
        self._planned_ends: list[Offsets] = []
        """By this process: the end of the last tasks, if it was planned here, and all that have no tasks yet."""
        self._has_begun = False
        self._topic_ids: dict[str, bytes] = {}
        self._epochs: dict[TopicPartition, int] = {}
        """The leader epoch in force when the end of the last micro-batch was planned."""
        self._cuts: dict[TopicPartition, Cut] = {}
        """Logs that were cut, until a micro-batch that reads nothing has gone back there."""
        self._target: Offsets | None = None
        self._missing: set[str] = set()
        self._last_batch_at_ms: float | None = None

    def initial(self) -> dict[TopicPartition, int]:
        """Where a new stream starts: decided once."""
        if self._initial is None:
            bounds = self._options.bounds
            states = self._discover(fails_on_missing=True)
            times = self._ask(lambda: self._discovery.offsets(starting_times(bounds.starting, states)))
            resolved = resolve_ranges(states, bounds, times)
            self._report(resolved.losses)
            self._initial = {planned.place: planned.start for planned in resolved.ranges}
            self._starts_at_end = {state.place for state in states if self._initial[state.place] >= state.latest}
        return self._initial

    def latest(self) -> dict[TopicPartition, int]:
        """The end of every partition as it was when the broker was last asked."""
        return {place: state.latest for place, state in self._states.items()}

    def set_target(self) -> None:
        """From now on nothing is read that comes later than what there is now."""
        self._target = {state.place: state.latest for state in self._discover()}

    def next_end(self, start: Offsets, admission: Admission) -> dict[TopicPartition, int]:
        """Where the micro-batch from `start` ends; at `start` when there is to be none."""
        try:
            end = self._next_end(start, admission)
        except TOPIC_IS_GONE:  # in the middle of it: now it is reported as a loss, unless it was never there
            end = self._next_end(start, admission)
        self._topic_ids.update({state.topic: state.topic_id for state in self._states.values()})
        self._epochs.update({state.place: state.leader_epoch for state in self._states.values()})
        self._has_begun = True
        return end

    def _next_end(self, start: Offsets, admission: Admission) -> dict[TopicPartition, int]:
        states = self._discover(start, fails_on_missing=self._options.bounds.fails_on_data_loss)
        made_anew = {state.topic for state in states if self._is_made_anew(state)}
        cuts = self._find_cuts(start, [state for state in states if state.topic not in made_anew])
        available, losses = advance(start, states, made_anew, cuts)
        self._report(losses)
        if self._target is not None:
            available = _within(self._target, start, available)
        elif not losses and not cuts and not self._may_go(start, available, admission):
            return dict(start)
        if not self._has_begun and start == self._initial:
            available = first_end(start, available, self._starts_at_end)
        end = self._admit({**start, **cuts}, available, admission)
        if end != start:
            self._last_batch_at_ms = self._clock()
        if end not in self._planned_ends:
            self._planned_ends.append(end)
        return end

    def tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        """The tasks of a micro-batch; none when it is empty.

        One whose end another process has planned is run again. Of a topic made anew since the end was planned nothing
        is read: its offsets are not those of the micro-batch.
        """
        if end in self._planned_ends:
            self._planned_ends = [end]
        else:
            self._discover_unchanged()
            start = self._first_start(end) if start == self._initial else start
        self._has_begun = True
        try:
            return self._tasks(start, end)
        except TOPIC_IS_GONE:
            self._discover_unchanged()
            return self._tasks(start, end)

    def _discover_unchanged(self) -> None:
        states = self._discover()
        self._states = {state.place: state for state in states if not self._is_made_anew(state)}

    def _tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        back = {place: until for place, until in end.items() if self._cuts.get(place) == (start.get(place), until)}
        ranges, losses = stream_ranges({**start, **back}, end, self._states)
        self._report(losses)
        limits = self._options.limits
        return plan_tasks(self._ask(lambda: size_ranges(self._discovery, ranges, limits)), limits)

    def _first_start(self, end: Offsets) -> dict[TopicPartition, int]:
        """Where the first micro-batch started, which ends at `end` and was never committed by the process before."""
        assert self._initial is not None
        if self._options.is_start_counted:
            raise OffsetOutOfRange(
                "the first micro-batch of this stream was not committed, and where it started was counted from then: "
                "start the query with a new checkpoint, nothing was committed to this one"
            )
        return first_start(self._initial, end, self._options.bounds.starting)

    # --- within -----------------------------------------------------------------------------------------------------

    def _may_go(self, start: Offsets, available: Offsets, admission: Admission) -> bool:
        """Whether enough is there, or it has waited for long enough; the first micro-batch never waits."""
        if admission.min_offsets is None or self._last_batch_at_ms is None:
            return True
        waited_ms = self._clock() - self._last_batch_at_ms
        return waited_ms >= admission.max_delay_ms or is_enough(start, available, admission.min_offsets)

    def _admit(
        self, start: Offsets, available: dict[TopicPartition, int], admission: Admission
    ) -> dict[TopicPartition, int]:
        if admission.max_offsets is not None:
            available = admit_offsets(start, available, admission.max_offsets)
        if admission.max_bytes is not None:
            available = admit_bytes(available, self._pieces(start, available, admission.max_bytes), admission.max_bytes)
        return available

    def _pieces(self, start: Offsets, available: Offsets, max_bytes: int) -> dict[TopicPartition, list[Piece]]:
        """The stored batches from `start` on, of at least `max_bytes` together where there are so many."""
        ranges, _ = stream_ranges(start, available, self._states)
        piece_bytes = max(LEAST_PIECE_BYTES, max_bytes // PIECES)
        span = max(1, max_bytes // LIKELY_RECORD_BYTES)
        while True:
            near = [planned._replace(end=min(planned.end, planned.start + span)) for planned in ranges]
            found = self._ask(lambda near=near: self._discovery.splits(near, piece_bytes))  # type: ignore[misc]
            pieces = {
                planned.place: [piece for sized in sized_ranges(planned, splits) for piece in sized.pieces]
                for planned, splits in zip(near, found, strict=True)
            }
            are_all = all(planned.end <= asked.end for planned, asked in zip(ranges, near, strict=True))
            size_bytes = sum(piece.size_bytes for own in pieces.values() for piece in own)
            if are_all or size_bytes > max_bytes:
                return pieces
            span *= 4

    def _find_cuts(self, start: Offsets, states: Sequence[PartitionState]) -> dict[TopicPartition, int]:
        """Where logs were cut below `start` since its offsets were planned by this process; they are reported.

        Where that is not known, the stream goes on at its offset.
        """
        found = self._ask(lambda: find_cuts(self._discovery, states, start, self._epochs))
        for place, end in found.items():
            error = LogTruncated(*place, start[place], end)
            if self._options.bounds.fails_on_data_loss:
                raise error.reworded(f"{error}; to go on, {self._options.reading.remedies.when_cut}")
            _log.warning("%s; going on at %d, as failOnDataLoss is false", error, end if end >= 0 else start[place])
        self._cuts = {place: cut for place, cut in self._cuts.items() if cut[0] == start.get(place)}
        self._cuts.update({place: (start[place], end) for place, end in found.items() if end >= 0})
        return {state.place: self._cuts[state.place][1] for state in states if state.place in self._cuts}

    def _is_made_anew(self, state: PartitionState) -> bool:
        return self._topic_ids.get(state.topic, state.topic_id) != state.topic_id

    def _discover(
        self, known: Collection[TopicPartition] = (), *, fails_on_missing: bool = False
    ) -> list[PartitionState]:
        """What there is; see `chosen_states`. What is lost of what has been read is reported by the caller."""
        choice = self._options.topics
        states = self._ask(lambda: chosen_states(self._discovery, choice, known, fails_on_missing=fails_on_missing))
        self._states = {state.place: state for state in states}
        for state in states:
            self._topic_ids.setdefault(state.topic, state.topic_id)
            self._epochs.setdefault(state.place, state.leader_epoch)
        found = {state.topic for state in states}
        missing = {f"topic {name}" for name in choice.names if name not in found}
        assigned = {(topic, number) for topic in found for number in choice.assigned.get(topic, ())}
        missing |= {f"partition {topic}-{partition}" for topic, partition in assigned - self._states.keys()}
        for what in sorted(missing - self._missing):
            _log.warning("%s does not exist now: nothing is read of it", what)
        self._missing = missing
        return states

    def _ask(self, question: Callable[[], T]) -> T:
        """What `question` returns, asked again as the options say.

        Once a broker has told what there is, its address is right: then for as long as a task would try, too.
        """
        has_asked = bool(self._states) or bool(self._planned_ends)
        patience_s = self._options.reading.deadline_s if has_asked else 0.0
        retries = self._options.retries
        return retrying(question, retries=retries.count, interval_ms=retries.interval_ms, patience_s=patience_s)

    def _report(self, losses: Sequence[Loss]) -> None:
        if losses and self._options.bounds.fails_on_data_loss:
            raise OffsetOutOfRange(f"{losses[0]}; to go on, {self._options.reading.remedies.when_lost}")
        for loss in losses:
            _log.warning("%s; skipped, as failOnDataLoss is false", loss)


def _within(target: Offsets, start: Offsets, available: Offsets) -> dict[TopicPartition, int]:
    """`available` without what lies behind `target`; partitions that came later are left out."""
    ends: dict[TopicPartition, int] = {}
    for place, end in available.items():
        begin = start.get(place)
        if begin is not None and end < begin:
            ends[place] = end
        elif place in target or begin is not None:
            ends[place] = max(min(end, target.get(place, 0)), begin or 0)
    return ends
