"""`warmlog consume`: print the records of topics."""

import os
import re
import stat
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from warmlog.cli.terminal import options
from warmlog.cli.terminal.exits import CommandFailed, checked
from warmlog.cli.terminal.output import output_watched, write_shown

if TYPE_CHECKING:
    from warmlog import Batch, Consumer
    from warmlog.cli.terminal.formats import BatchWriter
    from warmlog.cli.terminal.status import Progress
    from warmlog.points import Point

RAW, JSON = "raw", "json"
COMMIT_INTERVAL_S = 1.0
"""How often what was written out is committed, at most: each commit is a flush of the broker's disk."""


class Range(NamedTuple):
    """What of each partition is printed."""

    start: "Point"
    end: "Point | None"
    max_count: int | None
    timeout_s: float | None


@click.command()
@options.topics_argument
@click.option(
    "--regex", "is_pattern", is_flag=True, help="Each TOPIC is a regular expression for whole names, as of now."
)
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|OFFSET|-N|-1h|TIME",
    help="Where to begin; earliest if not given. A TIME without UTC offset is local time.",
)
@options.to_option()
@click.option(
    "--tail",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only the last N offsets of each partition, unless --follow.",
)
@click.option("--follow", "-f", "is_following", is_flag=True, help="After --tail, go on with new records.")
@click.option("--count", "-n", type=click.IntRange(min=1), metavar="N", help="Stop after so many records.")
@click.option(
    "--timeout",
    metavar="DURATION",
    help="Stop, with exit code 0, when nothing has arrived for so long, such as 10s, 500ms or 2m, "
    "and the broker has no more.",
)
@click.option("--format", "template", metavar="raw|json|TEMPLATE", help=f"What to print; {RAW} if not given.")
@options.partition_option
@click.option(
    "--group",
    "-g",
    metavar="NAME",
    shell_complete=options.group_names,
    help="Go on where this group has committed, and commit what was written out; --from is for what it has not read.",
)
@click.option(
    "--committed",
    "is_committed",
    is_flag=True,
    help="Leave out aborted transactions, and wait for the end of open ones.",
)
@options.client_options
def consume(
    topics: tuple[str, ...],
    is_pattern: bool,
    start: str | None,
    end: str | None,
    tail: int | None,
    is_following: bool,
    count: int | None,
    timeout: str | None,
    template: str | None,
    partition: int | None,
    group: str | None,
    is_committed: bool,
) -> None:
    """Print the records of topics, from --from to --to, or without end.

    \b
        raw        each value as it is, and a newline; null is an empty line
        json       one object a line, which produce --format json reads; bytes
                   that are not UTF-8 are base64, and "value_encoding" says so
        '%k %v'    a template: %t topic, %p partition, %o offset, %k key,
                   %v value, %T local time in ISO 8601, %s timestamp in ms,
                   %h headers, %% a percent sign; escapes are backslash and
                   n, t, r, 0 or backslash; a newline follows unless it ends
                   in one

    \b
        --from -10       the last ten offsets of each partition, and then
                         new records
        --tail 10        the last ten offsets of each partition, and nothing
                         after them
        --from -1h --to -5m
                         a time ago: ms, s, m, h or d
        --from 2013-07-01T06:30
                         a time; local time unless it ends in Z or an offset
                         such as +02:00

    \b
        --group NAME --to latest
                         everything new since the last time; the exit code
                         is 0 once it is written out and committed
        --group NAME     share the partitions with other members of the group

    With --group, what a command that was killed has written since its last commit, a second at most, is written again
    by the next one. Records of a partition come in order; partitions are interleaved as they arrive. Offsets that are
    lost or damaged on the broker's disk are reported on stderr and skipped; then the exit code is 1.
    """
    from warmlog.cli.terminal.times import note_if_past_end, parse_end, parse_seconds, parse_start

    if tail is not None and (start is not None or end not in (None, "latest")):
        raise click.BadParameter("--tail says where to begin and stop: leave out --from and --to", param_hint="--tail")
    if tail is not None and group is not None:
        raise click.BadParameter("the group has committed where to begin: leave out one of them", param_hint="--tail")
    if is_following and end is not None:
        raise click.BadParameter("go on, or stop at --to: leave out one of them", param_hint="--follow")
    if is_following and tail is None:
        raise click.BadParameter(
            "without --tail, records are printed without end unless --to says where", param_hint="--follow"
        )
    if options.wants_json() and template not in (None, JSON):
        raise click.BadParameter(f"--json and --format {template} contradict each other", param_hint="--json")
    first = ("earliest" if tail is None else f"-{tail}") if start is None else start
    last = "latest" if tail is not None and not is_following else end
    begin = checked("--from", parse_start, first)
    wanted = Range(
        begin,
        None if last is None else checked("--to", partial(parse_end, start=begin), last),
        count,
        None if timeout is None else checked("--timeout", parse_seconds, timeout),
    )
    patterns = [checked("TOPIC", _compile, topic) for topic in topics] if is_pattern else None

    from warmlog.cli.commands.topic.waiting import CommittedWatch
    from warmlog.cli.terminal.formats import batch_writer
    from warmlog.cli.terminal.status import Progress

    print_batch = checked("--format", batch_writer, JSON if options.wants_json() else template or RAW)
    broker, login = options.chosen_broker(), options.connection()
    isolation = "read_committed" if is_committed else "read_uncommitted"
    progress = Progress(shows_status=sys.stderr.isatty() and stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode))

    async def run() -> None:
        from warmlog import Consumer

        names = list(dict.fromkeys(topics)) if patterns is None else await _matching(broker, login, patterns)
        options.show_warnings()
        watch = CommittedWatch(broker, login) if is_committed else None
        written = Written()
        membership: dict[str, Any] = {}
        if group is not None:
            membership = {"group": group, "commit": "manual"}
            membership |= {"on_revoked": written.commit} if partition is None else {}
        async with (
            watch or nullcontext(),
            Consumer(
                broker,
                topics=names if partition is None else None,
                partitions=None if partition is None else [(name, partition) for name in names],
                start=wanted.start,
                isolation=isolation,
                **membership,
                **login,
            ) as consumer,
        ):
            if group is None:
                await _check_start(consumer, wanted.start)
                await note_if_past_end(consumer, wanted.start)
            else:
                written.consumer = consumer
            if watch is not None:
                watch.follow(consumer)
            with output_watched():
                try:
                    await _print(consumer, ", ".join(names), wanted, print_batch, progress, written)
                finally:
                    await written.commit()
                if watch is not None and wanted.max_count is None:
                    await watch.end(consumer)

    try:
        options.run_client(run, is_bulk=True)
    finally:
        progress.clear()


class Written:
    """What was written out of each partition, and is not committed yet. Does nothing without a `consumer`."""

    def __init__(self) -> None:
        self.consumer: Consumer | None = None
        """That of the group."""
        self.offsets: dict[tuple[str, int] | str, int] = {}
        self._committed_at = time.monotonic()

    async def add(self, batch: "Batch", records: int) -> None:
        """Count the first records of `batch` as written out, and commit all, if that is due."""
        if self.consumer is None:
            return
        end = batch.next_offset if records == len(batch) else batch.offsets[records - 1] + 1
        self.offsets[batch.topic, batch.partition] = end
        if time.monotonic() - self._committed_at >= COMMIT_INTERVAL_S:
            await self.commit()

    async def commit(self, _given_up: object = None) -> None:
        """Commit all, and return when that is durable. Called before partitions are given up, too."""
        offsets, self.offsets = self.offsets, {}
        self._committed_at = time.monotonic()
        if self.consumer is not None and offsets:
            await self.consumer.commit(offsets)


async def _print(
    consumer: "Consumer",
    topics: str,
    wanted: Range,
    format_batch: "BatchWriter",
    progress: "Progress",
    written: Written,
) -> None:
    """Print batch by batch, with one write and one flush for each."""
    import asyncio

    from warmlog.cli.terminal.records import Damage

    damage, left = Damage(), wanted.max_count
    batches = consumer.batches(until=wanted.end)
    waits_again = False
    while left != 0:
        with damage.skipped():
            is_commit_due = bool(written.offsets)  # as of now: the read may commit them when partitions are given up
            try:
                async with asyncio.timeout(COMMIT_INTERVAL_S if is_commit_due else wanted.timeout_s):
                    batch = await anext(batches, None)
            except TimeoutError:
                if is_commit_due:
                    await written.commit()
                    continue
                if not waits_again:
                    available = await consumer.available()  # BrokerUnavailable if the broker is away, which is no end
                    waits_again = any(consumer.position(*tp) < offsets.stop for tp, offsets in available.items())
                    if waits_again:
                        continue
                break
            if batch is None:
                break
            waits_again = False
            records = len(batch) if left is None else min(left, len(batch))
            output = format_batch(batch, records)
            write_shown(output)
            await written.add(batch, records)
            progress.add(records, len(output))
            if left is not None:
                left -= records
    damage.check(topics)


async def _check_start(consumer: "Consumer", start: "Point") -> None:
    """CommandFailed if `start` is an offset that a partition does not have."""
    from warmlog.points import PointKind

    if start.kind is not PointKind.OFFSET:
        return
    available = await consumer.available()
    outside = [
        f"{topic}-{partition} has offsets {offsets.start} to {offsets.stop} (the next to be written)"
        for (topic, partition), offsets in available.items()
        if not offsets.start <= start.number <= offsets.stop
    ]
    if outside:
        advice = "give --partition N" if len(available) > 1 else "give one of these"
        what = f"offset {start.number} is not in the log: {', '.join(outside)}"
        raise CommandFailed(f"{what}; {advice}, or --from with earliest, -N or a time")


async def _matching(broker: str, login: dict[str, Any], patterns: Sequence[re.Pattern[str]]) -> list[str]:
    """Return the names of the topics that one of `patterns` matches as a whole. CommandFailed if there is none."""
    from warmlog import Admin

    async with Admin(broker, **login) as admin:
        names = [name for name in await admin.topic_names() if any(each.fullmatch(name) for each in patterns)]
    if not names:
        raise CommandFailed(f"no topic matches {' or '.join(repr(pattern.pattern) for pattern in patterns)}")
    return names


def _compile(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
