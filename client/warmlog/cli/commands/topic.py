"""`warmlog topic`: create, list, describe and delete topics, and their oldest records (`delete_records`)."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.commands.delete_records import delete_records
from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Topic, parse_setting, run_client, show_warnings
from warmlog.cli.terminal.output import is_terminal, json_line, line, note, table

if TYPE_CHECKING:
    from warmlog import TopicDescription


def register(app: typer.Typer) -> None:
    """Adds the family to the program."""
    family = typer.Typer(no_args_is_help=True, help="Create, list, describe and delete topics.")
    family.command("create")(create)
    family.command("list")(list_topics)
    family.command("describe")(describe)
    family.command("delete")(delete)
    family.command("delete-records")(delete_records)
    app.add_typer(family, name="topic")


@ends_cleanly
def create(
    topic: Topic,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="How many partitions; the broker's default when not given.")
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

    async def run() -> "TopicDescription":
        from warmlog import Admin

        async with Admin(broker) as admin:
            await admin.create_topic(topic, partitions=partitions, configs=configs)
            return await admin.describe_topic(topic)

    created = run_client(run)
    if as_json:
        json_line(_document(created))
    else:
        note(f"created topic {created.name} with {_count(len(created.partitions), 'partition')}")


@ends_cleanly
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="List the broker's internal topics, too.")] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """List all topics: one name a line, with the number of partitions on a terminal."""

    async def run() -> "list[TopicDescription]":
        from warmlog import Admin

        async with Admin(broker) as admin:
            return await admin.list_topics(internal=internal)

    topics = sorted(run_client(run), key=lambda topic: topic.name)
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
    show_all: Annotated[bool, typer.Option("--all", help="Show settings that nobody changed, too.")] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Show a topic's partitions and its settings. It fails, after that, when a partition is offline."""

    async def run() -> "TopicDescription":
        from warmlog import Admin

        async with Admin(broker) as admin:
            show_warnings()
            return await admin.describe_topic(topic)

    found = run_client(run)
    if as_json:
        json_line(_document(found))
    else:
        _print_description(found, show_all=show_all)
    errors = [str(partition.error) for partition in found.partitions if partition.error is not None]
    if errors:
        raise CommandFailed("; ".join(errors))


def _print_description(found: "TopicDescription", *, show_all: bool) -> None:
    partitions = _count(len(found.partitions), "partition")
    line(f"topic {found.name}, {partitions}, id {found.topic_id}")
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
    is_certain: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Delete a topic and all its records. Asks first when it is typed at a terminal."""
    if not is_certain and sys.stdin.isatty() and not typer.confirm(f"Delete {topic} and all its records?", err=True):
        raise CommandFailed(f"{topic} was not deleted")

    async def run() -> None:
        from warmlog import Admin

        async with Admin(broker) as admin:
            await admin.delete_topic(topic)

    run_client(run)
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
    """One row a partition. What lies between high watermark and log end is written but not yet durable."""
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
