"""`warmlog topic list` and `describe`, and how many records a topic has, how large it is, when it was last written."""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from warmlog.cli.commands.topic.open_transactions import Held, held_back, held_documents, show_held
from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.options import client_options, print_result, run_admin, topic_argument, wants_json
from warmlog.cli.terminal.output import counted, facts, is_terminal, json_line, line, table
from warmlog.cli.terminal.tables import (
    NO_LIMIT,
    Cell,
    Count,
    Instant,
    Size,
    duration_words,
    human_size,
    local_time,
    setting_text,
)

if TYPE_CHECKING:
    from warmlog import Admin, ConfigValue, PartitionDescription, TopicDescription
    from warmlog_protocol.messages import SegmentDescription

    Segments = tuple[int, list[SegmentDescription]]
    """A partition, and its newest segments."""

BY_DEFAULT = "default"
NO_TIME = -1
UNKNOWN = -1


class Figures(NamedTuple):
    """Of one partition, or sums over a topic's. An offline partition has no records; its size is unknown."""

    records: int
    """Offsets from the log start to the high watermark: those that compaction removed count, too."""
    size_bytes: int
    last_record_ms: int = NO_TIME
    """The latest timestamp of a record."""


def total(figures: Collection[Figures]) -> Figures:
    """Return the sums, and the latest of the times; an unknown size counts as none, unless all are."""
    sizes = [each.size_bytes for each in figures if each.size_bytes != UNKNOWN]
    return Figures(
        sum(each.records for each in figures),
        sum(sizes) if sizes or not figures else UNKNOWN,
        max((each.last_record_ms for each in figures), default=NO_TIME),
    )


async def sizes_on_disk(admin: "Admin", topics: list[str] | None = None) -> dict[tuple[str, int], int]:
    """Return the size of each partition's log; without those that are offline and copies that are being moved.

    Empty if the user has no right to see the data directories.
    """
    from warmlog.errors import ClusterAuthorizationFailed

    try:
        directories = await admin.describe_log_dirs(topics)
    except ClusterAuthorizationFailed:
        return {}
    return {
        (replica.topic, replica.partition): replica.size_bytes
        for directory in directories
        for replica in directory.replicas
        if not replica.is_future and replica.offset_lag >= 0
    }


def figures_of(topic: "TopicDescription", sizes: dict[tuple[str, int], int]) -> dict[int, Figures]:
    """Return the figures of each partition, without times."""
    return {
        each.partition: Figures(
            0 if each.error is not None else each.high_watermark - each.log_start_offset,
            sizes.get((topic.name, each.partition), UNKNOWN),
        )
        for each in topic.partitions
    }


# --- commands -------------------------------------------------------------------------------------------------------


@click.command()
@click.option("--internal", is_flag=True, help="List the broker's internal topics, too.")
@client_options
def list_topics(internal: bool) -> None:
    """List all topics: one name a line; on a terminal with partitions, records and size on disk."""
    if not wants_json() and not is_terminal():
        for name in run_admin(lambda admin: admin.topic_names(internal=internal)):
            line(name)
        return

    async def describe_all(admin: "Admin") -> "list[tuple[TopicDescription, Figures]]":
        sizes = await sizes_on_disk(admin)
        topics = await admin.list_topics(internal=internal)
        return [(topic, total(figures_of(topic, sizes).values())) for topic in topics]

    found = run_admin(describe_all)
    rows = [
        (topic.name, Count(len(topic.partitions)), Count(figures.records), Size(figures.size_bytes))
        for topic, figures in found
    ]
    documents = [
        {"name": topic.name, "topic_id": str(topic.topic_id), "partitions": len(topic.partitions)}
        | {"records": figures.records, "size_bytes": figures.size_bytes}
        for topic, figures in found
    ]
    print_result(documents, lambda: table(("topic", "partitions", "records", "size"), rows))


@click.command()
@topic_argument
@click.option(
    "--all", "show_all", is_flag=True, help="Show every setting, and each partition's leader epoch and offsets."
)
@click.option("--segments", "max_segments", type=click.IntRange(min=1), metavar="N", help="Show the newest N segments.")
@client_options
def describe(topic: str, show_all: bool, max_segments: int | None) -> None:
    """Show a topic's records, size, retention, partitions and settings, and transactions that hold readers back.

    Offsets are counted as records: those that compaction has removed and the ends of transactions, too. The exit code
    is 1 if a partition is offline.
    """
    from msgspec import structs

    async def describe_one(admin: "Admin") -> "tuple[TopicDescription, dict[int, Figures], list[Held], list[Segments]]":
        found = await admin.describe_topic(topic)
        figures = figures_of(found, await sizes_on_disk(admin, [topic]))
        for number, latest in (await admin.look_up_offsets(topic, "max_timestamp")).items():
            if number in figures and not isinstance(latest, Exception):
                figures[number] = figures[number]._replace(last_record_ms=latest.timestamp_ms)
        segments: list[Segments] = []
        if max_segments is not None:
            logs = await admin.describe_partitions([topic], max_segments=max_segments)
            segments = [(tp[1], log.segments) for tp, log in logs.items() if not isinstance(log, Exception)]
        return found, figures, await held_back(admin, [found]), segments

    found, figures, held, segments = run_admin(describe_one, warns=True)
    if wants_json():
        shown = document(found, figures)
        for row in shown["partitions"]:
            row["open_transactions"] = held_documents(held, row["partition"])
            if max_segments is not None:
                row["segments"] = [structs.asdict(each) for each in dict(segments).get(row["partition"], [])]
        json_line(shown)
    elif is_terminal():
        _show(found, figures, show_all=show_all)
        show_held(held)
    else:
        line(f"topic {found.name}, {counted(len(found.partitions), 'partition')}, id {found.topic_id}")
        line(f"durability: {found.durability}")
        line()
        rows = [
            (*_offsets(each).values(), *_figure_cells(figures[each.partition]), *copies[1:])
            for each, copies in zip(found.partitions, _copies(found), strict=True)
        ]
        table((*OFFSET_HEADINGS, *FIGURE_HEADINGS, *_copy_headings(found)[1:]), rows)
        line()
        _settings_table(found, show_all=show_all)
        show_held(held)
    if segments and not wants_json():
        line()
        table(SEGMENT_HEADINGS, segment_rows(segments))
    errors = [str(partition.error) for partition in found.partitions if partition.error is not None]
    if errors:
        raise CommandFailed("; ".join(errors))


def segment_rows(segments: "Iterable[Segments]") -> list[tuple[Cell, ...]]:
    return [
        (number, each.base_offset, Size(each.size_bytes), Count(each.index_entries))
        for number, listed in segments
        for each in listed
    ]


def _show(found: "TopicDescription", figures: dict[int, Figures], *, show_all: bool) -> None:
    """Print the description for people."""
    whole = total(figures.values())
    offline = sum(each.error is not None for each in found.partitions)
    partitions = f"{len(found.partitions):,}"
    at_most = "at most " if "compact" in found.configs["cleanup.policy"].value else ""
    facts(
        [
            ("topic", found.name),
            ("partitions", f"{partitions}, {offline} of them offline" if offline else partitions),
            ("records", f"{at_most}{whole.records:,}"),
            ("size", human_size(whole.size_bytes)),
            ("last record", local_time(whole.last_record_ms) or "none"),
            ("retention", retention_words({name: config.value for name, config in found.configs.items()})),
            ("durability", str(found.durability)),
            ("id", str(found.topic_id)),
        ]
    )
    line()
    if show_all:
        table(OFFSET_HEADINGS, [tuple(_offsets(each).values()) for each in found.partitions])
        line()
    rows = [
        (each.partition, each.log_start_offset, each.high_watermark, *_figure_cells(figures[each.partition]), *copies)
        for each, copies in zip(found.partitions, _copies(found), strict=True)
    ]
    table(("partition", "first offset", "next offset", *FIGURE_HEADINGS, *_copy_headings(found)), rows)
    line()
    _settings_table(found, show_all=show_all)


def retention_words(settings: dict[str, str]) -> str:
    """Return in words what is deleted when."""
    policies = settings["cleanup.policy"].split(",")
    sentences = []
    if "compact" in policies:
        sentences.append("the last record of each key is kept")
    if "delete" in policies:
        age_ms, size_bytes = int(settings["retention.ms"]), int(settings["retention.bytes"])
        limits = []
        if age_ms not in NO_LIMIT:
            limits.append(f"after {duration_words(age_ms)}")
        if size_bytes not in NO_LIMIT:
            limits.append(f"when a partition exceeds {human_size(size_bytes)}")
        deleted = f"records are deleted {' or '.join(limits)}" if limits else "records are kept without limit"
        sentences.append(deleted)
    return f"{'; '.join(sentences)} (cleanup.policy={settings['cleanup.policy']})"


def _settings_table(found: "TopicDescription", *, show_all: bool) -> None:
    settings = [row for row in setting_rows(found) if show_all or row[2] != BY_DEFAULT]
    if settings:
        plain = [(name, found.configs[name].value, *rest) for name, _, *rest in settings]
        table(SETTING_HEADINGS, settings if is_terminal() else plain)
    else:
        line("all settings have their defaults (--all shows them)")


def setting_rows(found: "TopicDescription") -> list[tuple[str, str, str, str]]:
    """Return a row under SETTING_HEADINGS for each setting, its value as people write it."""
    return [
        (name, setting_text(name, config.value), origin(config), config.description)
        for name, config in sorted(found.configs.items())
    ]


def origin(config: "ConfigValue") -> str:
    """Return where a setting's value comes from: the topic, the broker or the default. 0.1.0 says only whether set."""
    return config.origin or (BY_DEFAULT if config.is_default else "topic")


SETTING_HEADINGS = ("setting", "value", "origin", "what it does")
SEGMENT_HEADINGS = ("partition", "segment", "size", "index entries")
OFFSET_HEADINGS = (
    "partition",
    "leader",
    "leader epoch",
    "log start",
    "last stable",
    "high watermark",
    "log end",
    "uncommitted",
)
FIGURE_HEADINGS = ("records", "size", "last record")
COPY_HEADINGS = ("leader", "replicas", "in sync")
"""Of a topic with more than one replica."""


def _offsets(partition: "PartitionDescription") -> dict[str, int]:
    """Return the row of a partition; `uncommitted` counts records written but not yet durable."""
    ends = ("log_start_offset", "last_stable_offset", "high_watermark", "log_end_offset", "uncommitted")
    return {name: getattr(partition, name) for name in ("partition", "leader", "leader_epoch", *ends)}


def _copy_headings(topic: "TopicDescription") -> tuple[str, ...]:
    return COPY_HEADINGS if any(len(each.replicas) > 1 for each in topic.partitions) else ()


def _copies(topic: "TopicDescription") -> list[tuple[str, ...]]:
    """Return for each partition the cells under COPY_HEADINGS: none where each has one copy."""
    if not _copy_headings(topic):
        return [()] * len(topic.partitions)
    return [
        (str(each.leader), *(",".join(map(str, nodes)) or "-" for nodes in (each.replicas, each.in_sync_replicas)))
        for each in topic.partitions
    ]


def _figure_cells(figures: Figures) -> tuple[Cell, ...]:
    return Count(figures.records), Size(figures.size_bytes), Instant(figures.last_record_ms)


async def described(admin: "Admin", name: str) -> "TopicDescription | None":
    """A topic; None if the user may not describe it, as one that may only create, change or delete it."""
    from warmlog import TopicAuthorizationFailed

    try:
        return await admin.describe_topic(name)
    except TopicAuthorizationFailed:
        return None


def document(topic: "TopicDescription", figures: dict[int, Figures] | None = None) -> dict[str, Any]:
    """Return a topic as JSON for scripts, with its `figures` if they were asked for."""
    partitions = []
    for each in topic.partitions:
        row: dict[str, Any] = {**_offsets(each), "error": None if each.error is None else str(each.error)}
        row |= {"replicas": list(each.replicas), "in_sync_replicas": list(each.in_sync_replicas)}
        partitions.append(row if figures is None else {**row, **figures[each.partition]._asdict()})
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        **({} if figures is None else total(figures.values())._asdict()),
        "durability": {
            "acks_all": "page cache" if topic.durability.write_caching else "fsync",
            "flush_ms": topic.durability.flush_ms,
            "flush_messages": topic.durability.flush_messages,
        },
        "partitions": partitions,
        "configs": {
            name: {"value": config.value, "is_default": config.is_default, "origin": origin(config)}
            for name, config in sorted(topic.configs.items())
        },
    }
