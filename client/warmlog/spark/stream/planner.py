"""Plans the micro-batches of one stream: the part of a stream that asks the broker and keeps state.

It exists as long as the query runs, in another process on the driver. The offsets in the checkpoint decide what a
micro-batch reads; the checkpoint has no room for topic ids and leader epochs. The state kept here serves to notice a
topic that was recreated, a log that was cut, as by a power cut with write.caching, and a rerun of the first
micro-batch, and to wait for `minOffsetsPerTrigger`.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from warmlog.errors import LogTruncated, OffsetOutOfRange
from warmlog.ranges.discover import Discovery, find_cuts
from warmlog.ranges.offset_range import PartitionOffsets, Piece, sized_ranges
from warmlog.ranges.resolve import Loss, resolve_ranges, starting_times
from warmlog.spark.options.read_options import Admission, StreamOptions
from warmlog.spark.read.group_offsets import check_no_members, commit_offsets, started_where_committed
from warmlog.spark.read.plan import Task, plan_tasks
from warmlog.spark.read.planning import chosen_states, retrying, size_ranges
from warmlog.spark.stream.ranges import (
    Offsets,
    admit_bytes,
    admit_offsets,
    advance,
    first_end,
    first_start,
    is_enough,
    stream_ranges,
)
from warmlog_transport.errors import TOPIC_IS_GONE
from warmlog_transport.responses import TopicPartition

T = TypeVar("T")
Cut = tuple[int, int]
"""How far a stream had read, and the lower offset where the log was cut."""

LIKELY_RECORD_BYTES = 64
"""How many offsets to request sizes of first, for a limit in bytes; more if records are smaller."""
PIECES = 64
LEAST_PIECE_BYTES = 64 * 1024
"""A limit in bytes is divided into PIECES pieces, but into pieces of at least this size."""

_log = logging.getLogger("warmlog.spark")


class StreamPlanner:
    """Decides where a stream starts, where its next micro-batch ends, and on its tasks. `clock` is in ms."""

    def __init__(self, options: StreamOptions, clock: Callable[[], float], discovery: Discovery) -> None:
        self._options = options
        self._clock = clock
        self._discovery = discovery
        self._initial: dict[TopicPartition, int] | None = None
        self._starting = options.bounds.starting
        """The points of `_initial`: with startingOffsets=committed, the offsets that were committed then."""
        self._starts_at_end: set[TopicPartition] = set()
        self._states: dict[TopicPartition, PartitionOffsets] = {}
        self._planned_ends: list[Offsets] = []
        """Ends planned by this process: the one of the last tasks, and all that have no tasks yet."""
        self._has_begun = False
        self._topic_ids: dict[str, bytes] = {}
        self._epochs: dict[TopicPartition, int] = {}
        """The leader epoch in force when the end of the last micro-batch was planned."""
        self._cuts: dict[TopicPartition, Cut] = {}
        """Logs that were cut, until a micro-batch that reads nothing has gone back to the cut."""
        self._committed: Offsets | None = None
        """What was last committed to the group; None until the group is known to have no members."""
        self._target: Offsets | None = None
        self._missing: set[str] = set()
        self._last_batch_at_ms: float | None = None

    def initial(self) -> dict[TopicPartition, int]:
        """Return where a new stream starts, which is decided once."""
        if self._initial is None:
            states = self._discover(fails_on_missing=True)
            group = self._options.group
            bounds = self._ask(lambda: started_where_committed(self._options.bounds, group, self._discovery, states))
            times = self._ask(lambda: self._discovery.offsets(starting_times(bounds.starting, states)))
            resolved = resolve_ranges(states, bounds, times)
            self._report(resolved.losses)
            self._starting = bounds.starting
            self._initial = {planned.tp: planned.start for planned in resolved.ranges}
            self._starts_at_end = {state.tp for state in states if self._initial[state.tp] >= state.latest}
        return self._initial

    def latest(self) -> dict[TopicPartition, int]:
        """Return the end of every partition as the broker last reported it."""
        return {tp: state.latest for tp, state in self._states.items()}

    def set_target(self) -> None:
        """Read nothing after the present ends of the partitions."""
        self._target = {state.tp: state.latest for state in self._discover()}

    def commit(self, offsets: Offsets) -> None:
        """Commit `offsets`, before which everything is done, to the group of the options, if they say so.

        The start of the stream is not committed, as nothing is done there. Raises NonEmptyGroup if there are members.
        """
        group = self._options.group
        if group is None or not group.commits:
            return
        if self._committed is None:
            self._ask(lambda: check_no_members(self._discovery, group.name))
            self._committed = {}
        if not self._committed and offsets == self._initial:
            return
        new = {tp: offset for tp, offset in offsets.items() if self._committed.get(tp) != offset}
        if new:
            self._ask(lambda: commit_offsets(self._discovery, group.name, new, self._topic_ids))
        self._committed = offsets

    def next_end(self, start: Offsets, admission: Admission) -> dict[TopicPartition, int]:
        """Return where the micro-batch from `start` ends; `start` if there is to be none."""
        try:
            end = self._next_end(start, admission)
        except TOPIC_IS_GONE:  # while it was planned: now it is reported as a loss, unless it never existed
            end = self._next_end(start, admission)
        self._topic_ids.update({state.topic: state.topic_id for state in self._states.values()})
        self._epochs.update({state.tp: state.leader_epoch for state in self._states.values()})
        self._has_begun = True
        return end

    def _next_end(self, start: Offsets, admission: Admission) -> dict[TopicPartition, int]:
        states = self._discover(start, fails_on_missing=self._options.bounds.fails_on_data_loss)
        recreated = {state.topic for state in states if self._is_recreated(state)}
        cuts = self._find_cuts(start, [state for state in states if state.topic not in recreated])
        available, losses = advance(start, states, recreated, cuts)
        self._report(losses)
        if self._target is not None:
            available = _within(self._target, start, available)
        elif not losses and not cuts and admission.min_offsets is not None and self._last_batch_at_ms is not None:
            # The first micro-batch never waits.
            waited_ms = self._clock() - self._last_batch_at_ms
            if waited_ms < admission.max_delay_ms and not is_enough(start, available, admission.min_offsets):
                return dict(start)
        if not self._has_begun and start == self._initial:
            available = first_end(start, available, self._starts_at_end)
        end, begin = available, {**start, **cuts}
        if admission.max_offsets is not None:
            end = admit_offsets(begin, end, admission.max_offsets)
        if admission.max_bytes is not None:
            end = admit_bytes(end, self._pieces(begin, end, admission.max_bytes), admission.max_bytes)
        if end != start:
            self._last_batch_at_ms = self._clock()
        if end not in self._planned_ends:
            self._planned_ends.append(end)
        return end

    def tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        """Return the tasks of a micro-batch; none if it is empty.

        If another process has planned its end, this is a rerun. A topic that was recreated since is not read, as its
        offsets are not those of the micro-batch.
        """
        if end in self._planned_ends:
            self._planned_ends = [end]
        else:
            self._discover_unchanged()
            if self._initial is not None and start == self._initial:  # the first micro-batch was not committed
                if self._options.is_start_counted:
                    raise OffsetOutOfRange(
                        "the first micro-batch of this stream was not committed, and its start was relative to the "
                        "time when it was planned: start the query with a new checkpoint, nothing was committed to "
                        "this one"
                    )
                start = first_start(self._initial, end, self._starting)
        self._has_begun = True
        try:
            return self._tasks(start, end)
        except TOPIC_IS_GONE:
            self._discover_unchanged()
            return self._tasks(start, end)

    def _discover_unchanged(self) -> None:
        states = self._discover()
        self._states = {state.tp: state for state in states if not self._is_recreated(state)}

    def _tasks(self, start: Offsets, end: Offsets) -> list[Task]:
        back = {tp: until for tp, until in end.items() if self._cuts.get(tp) == (start.get(tp), until)}
        ranges, losses = stream_ranges({**start, **back}, end, self._states)
        self._report(losses)
        limits = self._options.limits
        return plan_tasks(self._ask(lambda: size_ranges(self._discovery, ranges, limits)), limits)

    def _pieces(self, start: Offsets, available: Offsets, max_bytes: int) -> dict[TopicPartition, list[Piece]]:
        """Return stored batches from `start` on, of at least `max_bytes` in total if there are so many."""
        ranges, _ = stream_ranges(start, available, self._states)
        piece_bytes = max(LEAST_PIECE_BYTES, max_bytes // PIECES)
        span = max(1, max_bytes // LIKELY_RECORD_BYTES)
        while True:
            near = [planned._replace(end=min(planned.end, planned.start + span)) for planned in ranges]
            found = self._ask(lambda near=near: self._discovery.splits(near, piece_bytes))  # type: ignore[misc]
            pieces = {
                planned.tp: [piece for sized in sized_ranges(planned, splits) for piece in sized.pieces]
                for planned, splits in zip(near, found, strict=True)
            }
            are_all = all(planned.end <= asked.end for planned, asked in zip(ranges, near, strict=True))
            size_bytes = sum(piece.size_bytes for own in pieces.values() for piece in own)
            if are_all or size_bytes > max_bytes:
                return pieces
            span *= 4

    def _find_cuts(self, start: Offsets, states: Sequence[PartitionOffsets]) -> dict[TopicPartition, int]:
        """Return where logs were cut below `start` since this process planned its offsets, and report them.

        If the offset of a cut is unknown, the stream continues at its own offset.
        """
        found = self._ask(lambda: find_cuts(self._discovery, states, start, self._epochs))
        for tp, end in found.items():
            error = LogTruncated(*tp, start[tp], end)
            if self._options.bounds.fails_on_data_loss:
                raise error.reworded(f"{error}; to continue, {self._options.reading.remedies.when_cut}")
            _log.warning("%s; continuing at %d, as failOnDataLoss is false", error, end if end >= 0 else start[tp])
        self._cuts = {tp: cut for tp, cut in self._cuts.items() if cut[0] == start.get(tp)}
        self._cuts.update({tp: (start[tp], end) for tp, end in found.items() if end >= 0})
        return {state.tp: self._cuts[state.tp][1] for state in states if state.tp in self._cuts}

    def _is_recreated(self, state: PartitionOffsets) -> bool:
        return self._topic_ids.get(state.topic, state.topic_id) != state.topic_id

    def _discover(
        self, known: Collection[TopicPartition] = (), *, fails_on_missing: bool = False
    ) -> list[PartitionOffsets]:
        """Return the chosen partitions (see `chosen_states`). The caller reports what is lost."""
        choice = self._options.topics
        states = self._ask(lambda: chosen_states(self._discovery, choice, known, fails_on_missing=fails_on_missing))
        self._states = {state.tp: state for state in states}
        for state in states:
            self._topic_ids.setdefault(state.topic, state.topic_id)
            self._epochs.setdefault(state.tp, state.leader_epoch)
        found = {state.topic for state in states}
        missing = {f"topic {name}" for name in choice.names if name not in found}
        assigned = {(topic, number) for topic in found for number in choice.assigned.get(topic, ())}
        missing |= {f"partition {topic}-{partition}" for topic, partition in assigned - self._states.keys()}
        for what in sorted(missing - self._missing):
            _log.warning("%s does not exist now and is not read", what)
        self._missing = missing
        return states

    def _ask(self, question: Callable[[], T]) -> T:
        """Return the result of `question`, retried as the options say.

        Once a broker has responded its address is right, and it is retried for at least as long as a task would.
        """
        has_asked = bool(self._states) or bool(self._planned_ends)
        patience_s = self._options.reading.deadline_s if has_asked else 0.0
        return retrying(question, self._options.retries, patience_s=patience_s)

    def _report(self, losses: Sequence[Loss]) -> None:
        if losses and self._options.bounds.fails_on_data_loss:
            raise OffsetOutOfRange(f"{losses[0]}; to continue, {self._options.reading.remedies.when_lost}")
        for loss in losses:
            _log.warning("%s; skipped, as failOnDataLoss is false", loss)


def _within(target: Offsets, start: Offsets, available: Offsets) -> dict[TopicPartition, int]:
    """Return `available` up to `target`, without partitions that were created later."""
    ends: dict[TopicPartition, int] = {}
    for tp, end in available.items():
        begin = start.get(tp)
        if begin is not None and end < begin:
            ends[tp] = end
        elif tp in target or begin is not None:
            ends[tp] = max(min(end, target.get(tp, 0)), begin or 0)
    return ends
