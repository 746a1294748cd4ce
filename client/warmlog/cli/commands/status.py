"""`warmlog status`: the broker, its disks, its topics with their rates, and the lag of groups; once, or repeatedly."""

import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from warmlog.cli.commands.group import age_cell, total_lag
from warmlog.cli.commands.topic.describe import figures_of, sizes_on_disk, total
from warmlog.cli.terminal.exits import CommandFailed, checked, describe
from warmlog.cli.terminal.options import client_options, connection, print_result, run_admin, wants_json
from warmlog.cli.terminal.output import counted, facts, is_terminal, json_line, line, note, table, terminal_size, write
from warmlog.cli.terminal.tables import Cell, Count, Size, human_size

if TYPE_CHECKING:
    from warmlog import Admin, BrokerInfo, ConfigValue, GroupListing, LogDirDescription, TopicDescription
    from warmlog_protocol.messages import DescribeStatusResponse, FlushCounts

RESERVE = "disk.reserve.bytes"
DEFAULT_PERIOD_S = 2.0
WATCH_TIMEOUT_MS = 5_000
"""How long a broker may be silent before --watch says so, unless the profile has timeouts of its own."""
WATCHED_GROUPS = 20
"""The most groups that --watch shows without --json: the age of what a group has not read is fetched for each."""
HOME_AND_CLEAR = b"\x1b[H\x1b[J"
OTHER_LINES = 18
"""Lines of the terminal that are not for topics or data directories: facts, headings, the last two, a problem."""


@click.command()
@click.argument(
    "every",
    required=False,
    metavar="[SECONDS]",
    help=f"With --watch: how often; {DEFAULT_PERIOD_S:g} if omitted. Also a duration such as 500ms.",
)
@click.option(
    "--watch",
    "is_watching",
    is_flag=True,
    help="Show it again every SECONDS until Ctrl-C, also while the broker is away.",
)
@click.option(
    "--interval", default="1s", metavar="DURATION", help="How long to measure the rates, such as 500ms or 10s; 0s: not."
)
@client_options
def status(every: str | None, is_watching: bool, interval: str) -> None:
    """Show the broker, its disks, its topics by size with the rates of new records, and groups by their lag.

    Lag counts the records that a group has not read, behind is the age of the first of them. The exit code is 1 if the
    broker refuses records or has no groups to show because of an error, a disk has failed or is full, or a partition is
    offline; with --watch it is 0.
    """
    from warmlog.cli.terminal.times import parse_seconds

    def parse_period(text: str) -> float:
        return float(text) if text.isdecimal() and int(text) else parse_seconds(text)

    interval_s = checked("--interval", lambda text: parse_seconds(text, may_be_zero=True), interval)
    period_s = DEFAULT_PERIOD_S if every is None else checked("SECONDS", parse_period, every)
    if is_watching:
        with suppress(KeyboardInterrupt):
            _watch(interval_s, period_s)
        return
    if every is not None:
        raise click.BadParameter(f"{every!r} is how often to show it again: only with --watch", param_hint="SECONDS")
    found = run_admin(lambda admin: _ask(admin, interval_s), warns=True)
    print_result(_document(found), lambda: _show(found, len(found.topics)))
    if found.problems:
        raise CommandFailed("; ".join(found.problems))


def _watch(interval_s: float, period_s: float) -> None:
    """Show the status every `period_s` or, if that is longer, `interval_s`, without end; a terminal is redrawn."""
    from warmlog_protocol.errors import WarmlogError

    is_drawn = is_terminal() and not wants_json()
    max_groups = None if wants_json() else WATCHED_GROUPS
    if is_drawn:
        max_groups = min(WATCHED_GROUPS, max(terminal_size().lines // 4, 1))
    timeouts = {"connect_timeout_ms": WATCH_TIMEOUT_MS, "request_timeout_ms": WATCH_TIMEOUT_MS, **connection()}
    while True:
        started = time.monotonic()
        try:
            found = run_admin(lambda admin: _ask(admin, interval_s, max_groups), **timeouts)
        except (WarmlogError, OSError) as error:
            if is_drawn:
                write(HOME_AND_CLEAR)
            note(f"{describe(error)} (trying again)")
        else:
            if wants_json():
                json_line(_document(found))
            elif is_drawn:
                write(HOME_AND_CLEAR)
                other_lines = OTHER_LINES + len(found.directories) + len(found.groups)
                _show(found, max(terminal_size().lines - other_lines, 1))
                line(f"\n{time.strftime('%H:%M:%S')}, again every {period_s:g} s until Ctrl-C")
            else:
                _show(found, len(found.topics))
                line()
            if found.problems:
                note("; ".join(found.problems))
        time.sleep(max(started + period_s - time.monotonic(), 0))


class TopicStatus(NamedTuple):
    """A topic with its sizes, as --json prints it; its rates are None if they were not measured."""

    name: str
    partitions: int
    offline_partitions: list[int]
    records: int
    size_bytes: int
    records_per_s: float | None
    bytes_per_s: float | None
    page_cache_acks: bool


class GroupStatus(NamedTuple):
    """A consumer group, and its lag over all partitions, as --json prints it."""

    name: str
    state: str
    members: int
    lag_records: int
    lag_seconds: float | None


@dataclass(slots=True)
class BrokerStatus:
    """What the command shows."""

    broker: "BrokerInfo"
    directories: "list[LogDirDescription]"
    reserve: "ConfigValue"
    topics: list[TopicStatus]
    """The largest first."""
    groups: list[GroupStatus] = field(default_factory=list)
    """Those with the largest lag first."""
    further_groups: int = 0
    """How many groups with less lag are left out."""
    problems: list[str] = field(default_factory=list)
    state_of_broker: "DescribeStatusResponse | None" = None
    """None if the broker is of version 0.1."""

    def state(self, directory: "LogDirDescription") -> str:
        """Return in words whether a data directory takes records."""
        if directory.error is not None:
            return directory.error
        if 0 <= directory.usable_bytes < self.reserve_bytes(directory):
            return "below its reserve: takes no records"
        return "takes records"

    def reserve_bytes(self, directory: "LogDirDescription") -> int:
        """Return what has to be free there; the default is at most a tenth of the disk."""
        reserve = int(self.reserve.value)
        return min(reserve, directory.total_bytes // 10) if self.reserve.is_default else reserve


async def _ask(admin: "Admin", interval_s: float, max_groups: int | None = None) -> BrokerStatus:
    """Ask twice, `interval_s` apart, if rates are wanted; about all groups, or only those with the largest lag."""
    import asyncio

    from warmlog import UnsupportedVersion

    loop = asyncio.get_running_loop()
    started = loop.time()
    before = await _measure(admin) if interval_s else {}
    if interval_s:
        await asyncio.sleep(interval_s)
    elapsed_s = loop.time() - started
    topics = await admin.list_topics(internal=True)
    sizes = await sizes_on_disk(admin)
    settings = await admin.describe_broker()
    found = BrokerStatus(
        await admin.broker_info(),
        await admin.describe_log_dirs([]),
        settings[RESERVE],
        sorted(
            (_topic(topic, sizes, before.get(topic.name), elapsed_s) for topic in topics),
            key=lambda topic: (-topic.size_bytes, topic.name),
        ),
    )
    found.problems.extend(_problems(found))
    with suppress(UnsupportedVersion):
        found.state_of_broker = await admin.describe_status()
    await _add_groups(admin, found, max_groups)
    return found


async def _add_groups(admin: "Admin", found: BrokerStatus, max_groups: int | None) -> None:
    """Add the groups, or why there are none to show. A broker of 0.1.0 has none."""
    from warmlog import ApiError, UnsupportedVersion

    try:
        listed = await admin.list_groups()
        found.groups = await most_behind(admin, listed, max_groups)
        found.further_groups = len(listed) - len(found.groups)
    except UnsupportedVersion:
        pass
    except ApiError as error:
        found.problems.append(f"groups: {error}")


async def most_behind(admin: "Admin", listed: "list[GroupListing]", max_groups: int | None) -> list[GroupStatus]:
    """Return the `max_groups` groups with the largest lag: only for these the age is fetched."""
    if max_groups is not None and len(listed) > max_groups:
        lags = await admin.group_lags([each.name for each in listed], with_age=False)
        records = {name: total_lag(lag.values()).records for name, lag in lags.items()}
        listed = sorted(listed, key=lambda each: (-records[each.name], each.name))[:max_groups]
    lags = await admin.group_lags([each.name for each in listed])
    found = [
        GroupStatus(each.name, each.state, each.member_count, *total_lag(lags[each.name].values())) for each in listed
    ]
    return sorted(found, key=lambda group: (-group.lag_records, group.name))


async def _measure(admin: "Admin") -> dict[str, tuple[int, int]]:
    """Return each topic's next offsets and bytes on disk, added up."""
    topics = await admin.list_topics(internal=True)
    sizes = await sizes_on_disk(admin)
    return {topic.name: _counters(topic, sizes) for topic in topics}


def _counters(topic: "TopicDescription", sizes: dict[tuple[str, int], int]) -> tuple[int, int]:
    written = sum(max(each.high_watermark, 0) for each in topic.partitions)
    return written, sum(sizes.get((topic.name, each.partition), 0) for each in topic.partitions)


def _topic(
    topic: "TopicDescription", sizes: dict[tuple[str, int], int], before: tuple[int, int] | None, elapsed_s: float
) -> TopicStatus:
    figures = total(figures_of(topic, sizes).values())
    records_per_s = bytes_per_s = None
    if before is not None:
        now = _counters(topic, sizes)
        records_per_s, bytes_per_s = (max(new - old, 0) / elapsed_s for new, old in zip(now, before, strict=True))
    return TopicStatus(
        topic.name,
        len(topic.partitions),
        [each.partition for each in topic.partitions if each.error is not None],
        figures.records,
        figures.size_bytes,
        records_per_s,
        bytes_per_s,
        page_cache_acks=topic.durability.write_caching,
    )


def _problems(found: BrokerStatus) -> list[str]:
    problems = [found.broker.write_refusal] if found.broker.write_refusal else []
    problems += [
        f"{each.path}: {found.state(each)}" for each in found.directories if found.state(each) != "takes records"
    ]
    offline = [f"{topic.name}-{number}" for topic in found.topics for number in topic.offline_partitions]
    if offline:
        problems.append(f"{counted(len(offline), 'partition')} offline: {', '.join(offline)}")
    return problems


def _show(found: BrokerStatus, max_topics: int) -> None:
    broker = found.broker
    records = sum(topic.records for topic in found.topics)
    size_bytes = sum(max(topic.size_bytes, 0) for topic in found.topics)
    partitions = sum(topic.partitions for topic in found.topics)
    offline = sum(len(topic.offline_partitions) for topic in found.topics)
    cached = ", ".join(topic.name for topic in found.topics if topic.page_cache_acks)
    durability = "after fsync on every topic"
    if cached:
        durability = f"from the page cache on {cached} (write.caching), after fsync elsewhere"
    facts(
        [
            ("broker", f"{broker.node_id} at {broker.address}, version {broker.version}, cluster {broker.cluster_id}"),
            ("mode", f"SAFE MODE: {broker.write_refusal}" if broker.write_refusal else "takes records"),
            ("topics", f"{counted(len(found.topics), 'topic')}, {counted(partitions, 'partition')}, {offline} offline"),
            ("records", f"{records:,}, {human_size(size_bytes)}"),
            ("acks=all", f"acknowledges {durability}"),
            *facts_of_state(found.state_of_broker),
        ]
    )
    line()
    rows: list[tuple[Cell, ...]] = [
        (each.path, found.state(each), Size(each.usable_bytes), Size(found.reserve_bytes(each)), Size(each.total_bytes))
        for each in found.directories
    ]
    table(("directory", "state", "free", "reserve", "total"), rows)
    if found.topics:
        line()
        headings = ("topic", "partitions", "records", "size", "records/s", "bytes/s")
        table(headings, list(map(_row, found.topics[:max_topics])))
    if len(found.topics) > max_topics:
        line(f"and {counted(len(found.topics) - max_topics, 'smaller topic')}")
    if found.groups:
        line()
        groups: list[tuple[Cell, ...]] = [
            (each.name, each.state, Count(each.members), Count(each.lag_records), age_cell(each.lag_seconds))
            for each in found.groups
        ]
        table(("group", "state", "members", "lag", "behind"), groups)
    if found.further_groups:
        line(f"and {counted(found.further_groups, 'group')} with less lag: `warmlog status` shows all")


def facts_of_state(state: "DescribeStatusResponse | None") -> list[tuple[str, str]]:
    """Return what a broker counts, as names and texts; none if it is unknown."""
    if state is None:
        return []
    slowest = [quantile_ms(each, 0.99) for each in state.flushes]
    requests = counted(state.requests_in_flight, "request")
    return [
        ("connections", f"{state.connections:,} of {state.connections_limit:,}, {requests}"),
        ("flushes", f"99 % within {max(slowest, default=0):g} ms since the start of the broker"),
    ]


def quantile_ms(flushes: "FlushCounts", share: float) -> float:
    """Return within how long this share of the flushes was done: infinity past the last bound, 0 without any."""
    wanted, seen = sum(flushes.counts) * share, 0
    for bound_us, count in zip([*flushes.bounds_us, float("inf")], flushes.counts, strict=True):
        seen += count
        if seen and seen >= wanted:
            return bound_us / 1000
    return 0.0


def _row(topic: TopicStatus) -> tuple[Cell, ...]:
    records_per_s: Cell = "" if topic.records_per_s is None else Count(round(topic.records_per_s))
    bytes_per_s: Cell = "" if topic.bytes_per_s is None else Size(round(topic.bytes_per_s))
    return topic.name, topic.partitions, Count(topic.records), Size(topic.size_bytes), records_per_s, bytes_per_s


def _document(found: BrokerStatus) -> dict[str, Any]:
    from msgspec import structs

    return {
        "broker": {**structs.asdict(found.broker), "write_refusal": found.broker.write_refusal or None},
        "problems": found.problems,
        "state": found.state_of_broker and structs.asdict(found.state_of_broker),
        "disks": [
            {
                "path": each.path,
                "state": found.state(each),
                "error": each.error,
                "free_bytes": each.usable_bytes,
                "total_bytes": each.total_bytes,
                "reserve_bytes": found.reserve_bytes(each),
            }
            for each in found.directories
        ],
        "topics": [topic._asdict() for topic in found.topics],
        "groups": [group._asdict() for group in found.groups],
    }
