"""`warmlog topic create`, `alter`, `add-partitions` and `delete`."""

from typing import TYPE_CHECKING

import click

from warmlog.cli.commands.topic.describe import described, document
from warmlog.cli.terminal import options
from warmlog.cli.terminal.exits import checked, confirm_deletion
from warmlog.cli.terminal.output import counted, json_line, note
from warmlog.cli.terminal.tables import setting_text

if TYPE_CHECKING:
    from warmlog import Admin, TopicDescription


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", help="Names of topics.")
@click.option(
    "--partitions", type=click.IntRange(min=1), help="The number of partitions; the broker's default if not given."
)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1),
    help="On how many brokers of a cluster each partition is; three, or all of fewer, if not given.",
)
@click.option(
    "--config",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the topics, such as retention.ms=7d. Repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Leave a topic that exists as it is, without an error.")
@options.client_options
def create(
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    config: tuple[str, ...],
    if_not_exists: bool,
) -> None:
    """Create topics. They are on disk when the command returns."""
    configs = dict(checked("--config", options.parse_setting, text) for text in config)

    async def create_one(admin: "Admin", name: str) -> dict[str, object]:
        from warmlog import TopicAlreadyExists

        done = f"created topic {name}"
        try:
            await admin.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, configs=configs
            )
        except TopicAlreadyExists:
            if not if_not_exists:
                raise
            done = f"topic {name} exists"
        found = await described(admin, name)
        if not options.wants_json():
            note(f"{done} with {counted(len(found.partitions), 'partition')}" if found else done)
        return _document(name, found)

    async def create_all(admin: "Admin") -> list[dict[str, object]]:
        return [await create_one(admin, name) for name in dict.fromkeys(topics)]

    documents = options.run_admin(create_all)
    if options.wants_json():
        json_line(documents[0] if len(topics) == 1 else documents)


@click.command()
@options.topic_argument
@click.option(
    "--set",
    "--config",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    help="A new value, such as retention.ms=7d. Repeatable.",
)
@click.option("--unset", multiple=True, metavar="NAME", help="Return a setting to the broker's default. Repeatable.")
@options.client_options
def alter(topic: str, given: tuple[str, ...], unset: tuple[str, ...]) -> None:
    """Change settings of a topic. They are on disk and in force when the command returns."""
    changed = dict(checked("--set / --config", options.parse_setting, text) for text in given)
    removed = list(unset)
    if not changed and not removed:
        raise click.BadParameter("give --set NAME=VALUE or --unset NAME, such as --set retention.ms=7d")

    async def change(admin: "Admin") -> "TopicDescription | None":
        await admin.alter_topic(topic, set=changed, unset=removed)
        return await described(admin, topic)

    found = options.run_admin(change)
    names = [*changed, *removed]
    settings = [f"{name}={setting_text(name, found.configs[name].value)}" for name in names] if found else names
    options.print_result(_document(topic, found), lambda: note(f"altered topic {topic}: {', '.join(settings)}"))


@click.command()
@options.topic_argument
@click.option(
    "--total", type=click.IntRange(min=1), required=True, metavar="N", help="The number of partitions afterwards."
)
@options.client_options
def add_partitions(topic: str, total: int) -> None:
    """Add partitions to a topic. They are on disk when the command returns.

    Records stay where they are; keys may belong to other partitions from then on.
    """

    async def add(admin: "Admin") -> "TopicDescription | None":
        await admin.add_partitions(topic, total)
        return await described(admin, topic)

    found = options.run_admin(add)
    count = counted(len(found.partitions) if found else total, "partition")
    options.print_result(_document(topic, found), lambda: note(f"topic {topic} has {count} now"))


def _document(name: str, found: "TopicDescription | None") -> dict[str, object]:
    return {"name": name} if found is None else document(found)


@click.command()
@options.topics_argument
@options.certain_option
@options.client_options
def delete(topics: tuple[str, ...], is_certain: bool) -> None:
    """Delete topics and all their records. Asks for confirmation, unless --yes is given.

    Nothing is deleted if one of the topics does not exist.
    """
    names = list(dict.fromkeys(topics))

    async def check(admin: "Admin") -> None:
        for name in names:
            await described(admin, name)

    async def delete_all(admin: "Admin") -> None:
        for name in names:
            await admin.delete_topic(name)
            if not options.wants_json():
                note(f"deleted topic {name}")

    options.run_admin(check)
    one = f"{names[0]} and all its records"
    several = f"{counted(len(names), 'topic')} ({', '.join(names)}) and all their records"
    confirm_deletion(names, one, several, is_certain=is_certain)
    options.run_admin(delete_all)
    documents = [{"name": name, "deleted": True} for name in names]
    if options.wants_json():
        json_line(documents[0] if len(names) == 1 else documents)
