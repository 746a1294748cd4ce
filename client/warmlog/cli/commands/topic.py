"""`warmlog topic`: create, list, describe and delete topics."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Topic, parse_setting, run_admin
from warmlog.cli.terminal.output import counted, is_terminal, json_line, line, note, table

if TYPE_CHECKING:
    from warmlog import Admin, TopicDescription


@ends_cleanly
def create(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="The number of partitions; the broker's default if not given.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the topic, such as retention.ms=-1. Repeatable."),
    ] = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Create a topic. It is on disk when the command returns."""
    configs = dict(checked("--config", parse_setting, text) for text in config or ())

    async def create_and_describe(admin: "Admin") -> "TopicDescription":
        await admin.create_topic(topic, partitions=partitions, configs=configs)
        return await admin.describe_topic(topic)

    created = run_admin(broker, create_and_describe)
    if as_json:
        json_line(_document(created))
    else:
        note(f"created topic {created.name} with {counted(len(created.partitions), 'partition')}")


@ends_cleanly
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="List the broker's internal topics, too.")] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """List all topics: one name a line, with the number of partitions on a terminal."""
    described = run_admin(broker, lambda admin: admin.list_topics(internal=internal))
    topics = sorted(described, key=lambda topic: topic.name)
    if as_json:
        json_line(
            [
                {"name": topic.name, "topic_id": str(topic.topic_id), "partitions": len(topic.partitions)}
                for topic in topics
            ]
        )
    elif is_terminal():
        table(("topic", "partitions"), [(topic.name, len(topic.partitions)) for topic in topics])
    else:
        for topic in topics:
            line(topic.name)


@ends_cleanly
def describe(
    topic: Topic,
    show_all: Annotated[bool, typer.Option("--all", help="Show settings with their defaults too.")] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Show a topic's partitions and settings. The exit code is 1 if a partition is offline."""
    found = run_admin(broker, lambda admin: admin.describe_topic(topic), warns=True)
    if as_json:
        json_line(_document(found))
    else:
        _print_description(found, show_all=show_all)
    errors = [str(partition.error) for partition in found.partitions if partition.error is not None]
    if errors:
        raise CommandFailed("; ".join(errors))


def _print_description(found: "TopicDescription", *, show_all: bool) -> None:
    line(f"topic {found.name}, {counted(len(found.partitions), 'partition')}, id {found.topic_id}")
    line(f"durability: {found.durability}")
    line()
    table(PARTITION_HEADINGS, [tuple(row.values()) for row in _partition_rows(found)])
    settings = [
        (name, config.value, "" if config.is_default else "set", config.description)
        for name, config in sorted(found.configs.items())
        if show_all or not config.is_default
    ]
    line()
    if settings:
        table(("setting", "value", "origin", "what it does"), settings)
    else:
        line("all settings have their defaults (--all shows them)")


@ends_cleanly
def delete(
    topic: Topic,
    is_certain: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and all its records. Asks for confirmation on a terminal."""
    if not is_certain and sys.stdin.isatty() and not typer.confirm(f"Delete {topic} and all its records?", err=True):
        raise CommandFailed(f"{topic} was not deleted")
    run_admin(broker, lambda admin: admin.delete_topic(topic))
    if as_json:
        json_line({"name": topic, "deleted": True})
    else:
        note(f"deleted topic {topic}")


PARTITION_HEADINGS = (
    "partition",
    "leader",
    "leader epoch",
    "log start",
    "last stable",
    "high watermark",
    "log end",
    "uncommitted",
)


def _partition_rows(topic: "TopicDescription") -> list[dict[str, int]]:
    """Return one row for each partition; `uncommitted` counts records written but not yet durable."""
    return [
        {
            "partition": partition.partition,
            "leader": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "log_start_offset": partition.log_start_offset,
            "last_stable_offset": partition.last_stable_offset,
            "high_watermark": partition.high_watermark,
            "log_end_offset": partition.log_end_offset,
            "uncommitted": partition.uncommitted,
        }
        for partition in topic.partitions
    ]


def _document(topic: "TopicDescription") -> dict[str, object]:
    return {
        "name": topic.name,
        "topic_id": str(topic.topic_id),
        "durability": {
            "acks_all": "page cache" if topic.durability.write_caching else "fsync",
            "flush_ms": topic.durability.flush_ms,
            "flush_messages": topic.durability.flush_messages,
        },
        "partitions": [
            {**row, "error": None if partition.error is None else str(partition.error)}
            for row, partition in zip(_partition_rows(topic), topic.partitions, strict=True)
        ],
        "configs": {
            name: {"value": config.value, "is_default": config.is_default}
            for name, config in sorted(topic.configs.items())
        },
    }
