"""The export job: copies a topic to Parquet files, each record once, and remembers how far it has come.

What exists when a round begins is planned like a load() and read by Spark's tasks, which write the files themselves:
records never go through the JVM. A round is as many tasks as keep all cores busy for a while; it ends with a commit
(see `manifest`), so that stopping an export loses at most a round.

If no broker can be reached while planning, an export that copies once retries for some seconds, and one that follows
retries without end.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from warmlog.errors import ApiError, BrokerUnavailable, LogTruncated, OffsetOutOfRange, may_pass
from warmlog.ranges.discover import Discovery, find_cuts
from warmlog.ranges.offset_range import PartitionOffsets
from warmlog.ranges.read_settings import ReadSettings, Remedies
from warmlog.ranges.resolve import Loss
from warmlog.spark.export.manifest import Commit, Exported, ExportRefused, Manifest
from warmlog.spark.options.read_options import PlanLimits, Retries
from warmlog.spark.read.plan import Task, plan_tasks
from warmlog.spark.read.planning import retrying, size_ranges
from warmlog.spark.stream.ranges import advance, stream_ranges
from warmlog_protocol.messages import IsolationLevel
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.responses import TopicPartition

TASKS_A_CORE = 4
"""The length of a round."""
RETRIES = Retries()
"""Retries of planning, as for a load()."""

_LOSS_REMEDY = "run it with --allow-data-loss"
_COPIED_ALREADY = "new records get offsets that are copied already; export to another path"
_REMEDIES = Remedies(
    when_lost=_LOSS_REMEDY, when_cut="run it again", when_recreated="export to another path", when_damaged=_LOSS_REMEDY
)

_log = logging.getLogger("warmlog.spark")


@dataclass(frozen=True)
class ExportOptions:
    bootstrap: tuple[str, ...]
    topic: str
    path: Path
    has_headers: bool = False
    compression: str = "snappy"
    fails_on_data_loss: bool = True
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    limits: PlanLimits = PlanLimits()  # noqa: RUF009 - frozen
    connection: ConnectionOptions = ReadSettings.connection


class Copied(NamedTuple):
    """What one round has added."""

    records: int
    size_bytes: int
    files: int
    lost_offsets: int
    """Skipped, as data loss is allowed."""


def check_topic(options: ExportOptions) -> None:
    """Raise UnknownTopicOrPartition or BrokerUnavailable before Spark starts if there is nothing to copy."""
    with Discovery(options.bootstrap, options.connection) as discovery:
        retrying(lambda: discovery.topics([options.topic]), RETRIES)


class _Plan(NamedTuple):
    """What to copy next."""

    tasks: Sequence[Task]
    topic_id: str
    positions: Mapping[int, int]
    """How far each partition is copied, or skipped."""
    losses: Sequence[Loss]
    epochs: Mapping[int, int]
    """The present leader epoch of each partition."""


def export_available(session: Any, manifest: Manifest, options: ExportOptions) -> Iterator[Copied]:
    """Copy what is not copied yet, round by round. `manifest` is locked; `session` is Spark's.

    Raises ExportRefused if the path holds another topic, OffsetOutOfRange for data loss unless that is allowed, and
    BrokerUnavailable if no broker responds, after RETRIES.
    """
    yield from _copy(session, manifest, options, retrying(lambda: _plan(manifest, options), RETRIES))


def export_following(session: Any, manifest: Manifest, options: ExportOptions, interval_s: float) -> Iterator[Copied]:
    """Do the same without end, every `interval_s` after everything is copied.

    The beginning and the end of an outage of the broker, or another retriable error, are logged as warnings. Other
    errors are raised as by `export_available`.
    """
    is_away = False
    while True:
        try:
            plan = _plan(manifest, options)
        except (BrokerUnavailable, ApiError) as error:
            if not may_pass(error):
                raise
            if not is_away:
                _log.warning("%s; retrying every %g s", error, interval_s)
            is_away = True
        else:
            if is_away:
                _log.warning("the broker responds again: continuing with %s", options.topic)
            is_away = False
            yield from _copy(session, manifest, options, plan)
        time.sleep(interval_s)


def _plan(manifest: Manifest, options: ExportOptions) -> _Plan:
    with Discovery(options.bootstrap, options.connection, isolation=options.isolation) as discovery:
        states = discovery.states(discovery.topics([options.topic]))
        start = _resume(manifest, states, options)
        _check_cuts(manifest, states, discovery)
        available, _ = advance(start, states, (), {})
        ranges, losses = stream_ranges(start, available, {state.tp: state for state in states})
        if losses and options.fails_on_data_loss:
            raise OffsetOutOfRange(f"{losses[0]}; to continue without them, {_LOSS_REMEDY}")
        tasks = plan_tasks(size_ranges(discovery, ranges, options.limits), options.limits)
    _warn(losses)
    positions = {state.partition: max(start.get(state.tp, 0), state.earliest) for state in states}
    epochs = {state.partition: state.leader_epoch for state in states}
    return _Plan(tasks, states[0].topic_id.hex(), positions, losses, epochs)


def _warn(losses: Sequence[Loss]) -> None:
    for loss in losses:
        _log.warning("%s; skipped, as data loss is allowed", loss)


def _copy(session: Any, manifest: Manifest, options: ExportOptions, plan: _Plan) -> Iterator[Copied]:
    positions, losses = dict(plan.positions), list(plan.losses)
    round_tasks = max(1, session.sparkContext.defaultParallelism * TASKS_A_CORE)
    rounds = [plan.tasks[first : first + round_tasks] for first in range(0, len(plan.tasks), round_tasks)]
    if losses and not rounds:
        rounds = [()]  # nothing is left to copy, but the losses must be committed
    for chosen in rounds:
        done = _run(session, chosen, manifest.staging, options)
        lost = [loss for each in done for loss in each.losses]
        _warn(lost)
        losses += lost
        files = tuple(file for each in done for file in each.files)
        for task in chosen:
            for planned in task:
                positions[planned.partition] = planned.end
        words = tuple(map(str, losses))
        manifest.commit(
            Commit(
                options.topic,
                plan.topic_id,
                dict(positions),
                files,
                words,
                has_headers=options.has_headers,
                epochs=dict(plan.epochs),
            )
        )
        yield Copied(
            records=sum(each.records for each in files),
            size_bytes=sum(each.size_bytes for each in files),
            files=len(files),
            lost_offsets=sum(loss.end - loss.start for loss in losses),
        )
        losses = []


def _resume(
    manifest: Manifest, states: Sequence[PartitionOffsets], options: ExportOptions
) -> dict[TopicPartition, int]:
    """Return where each partition continues: at its earliest record if nothing is copied yet."""
    last = manifest.last
    if last is None:
        return {state.tp: state.earliest for state in states}
    if last.topic != options.topic:
        raise ExportRefused(f"{options.path} holds topic {last.topic}: export {options.topic} to another path")
    if last.topic_id != states[0].topic_id.hex():
        raise ExportRefused(
            f"{options.path} holds an earlier topic {options.topic}, which was recreated since: export to another path"
        )
    if last.has_headers not in (None, options.has_headers):
        had, remedy = ("with", "give") if last.has_headers else ("without", "leave out")
        raise ExportRefused(
            f"{options.path} holds topic {last.topic} {had} headers: {remedy} --headers, or export to another path"
        )
    start = {(options.topic, partition): offset for partition, offset in last.positions.items()}
    short = [state for state in states if start.get(state.tp, 0) > max(state.latest, state.high_watermark or 0)]
    if short:
        raise OffsetOutOfRange(
            f"{options.topic}-{short[0].partition} is copied up to {start[short[0].tp]} and {short[0]}: the log "
            f"has lost its end, and {_COPIED_ALREADY}"
        )
    return start


def _check_cuts(manifest: Manifest, states: Sequence[PartitionOffsets], discovery: Discovery) -> None:
    """Raise LogTruncated for a log that was cut below what is copied, and has grown again since."""
    if last := manifest.last:
        copied = {(last.topic, partition): offset for partition, offset in last.positions.items()}
        epochs = {(last.topic, partition): epoch for partition, epoch in last.epochs.items()}
        for tp, end in find_cuts(discovery, states, copied, epochs).items():
            error = LogTruncated(*tp, copied[tp], end)
            raise error.reworded(f"{error}: {_COPIED_ALREADY}")


def _run(session: Any, tasks: Sequence[Task], staging: Path, options: ExportOptions) -> list[Exported]:
    """Run one round on Spark; return what the successful attempts have copied."""
    if not tasks:
        return []
    settings = ReadSettings(
        fails_on_data_loss=options.fails_on_data_loss,
        remedies=_REMEDIES,
        isolation=options.isolation,
        bootstrap=options.bootstrap,
        connection=options.connection,
    )
    has_headers, compression = options.has_headers, options.compression

    def copy(task: Task) -> Exported:  # sent to the tasks, with the variables that it names
        from warmlog.spark.export.files import export_ranges  # numpy and pyarrow: only where records are read

        return export_ranges(task, staging, settings, has_headers=has_headers, compression=compression)

    context = session.sparkContext
    context.setJobDescription(f"warmlog export of {options.topic}")
    done: list[Exported] = context.parallelize(list(tasks), len(tasks)).map(copy).collect()
    return done
