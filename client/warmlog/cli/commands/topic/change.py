"""`warmlog topic create`, `alter` and `add-partitions`."""

from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.commands.topic.describe import described, document
from warmlog.cli.terminal.exits import checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Topic, parse_setting, run_admin
from warmlog.cli.terminal.output import counted, json_line, note
from warmlog.cli.terminal.tables import setting_text

if TYPE_CHECKING:
    from warmlog import Admin, TopicDescription


@ends_cleanly
def create(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Names of topics.", show_default=False)],
    partitions: Annotated[
        int | None, typer.Option(min=1, help="The number of partitions; the broker's default if not given.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A setting of the topics, such as retention.ms=7d. Repeatable."),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="Leave a topic that exists as it is, without an error.")
    ] = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Create topics. They are on disk when the command returns."""
    configs = dict(checked("--config", parse_setting, text) for text in config or ())

    async def create_one(admin: "Admin", name: str) -> dict[str, object]:
        from warmlog import TopicAlreadyExists

        done = f"created topic {name}"
        try:
            await admin.create_topic(name, partitions=partitions, configs=configs)
        except TopicAlreadyExists:
            if not if_not_exists:
                raise
            done = f"topic {name} exists"
        found = await described(admin, name)
        if not as_json:
            note(f"{done} with {counted(len(found.partitions), 'partition')}" if found else done)
        return _document(name, found)

    async def create_all(admin: "Admin") -> list[dict[str, object]]:
        return [await create_one(admin, name) for name in dict.fromkeys(topics)]

    documents = run_admin(broker, create_all)
    if as_json:
        json_line(documents[0] if len(topics) == 1 else documents)


@ends_cleanly
def alter(
    topic: Topic,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "--config", metavar="NAME=VALUE", help="A new value, such as retention.ms=7d. Repeatable."
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Return a setting to the broker's default. Repeatable."),
    ] = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Change settings of a topic. They are on disk and in force when the command returns."""
    changed = dict(checked("--set / --config", parse_setting, text) for text in given or ())
    removed = unset or []
    if not changed and not removed:
        raise typer.BadParameter("give --set NAME=VALUE or --unset NAME, such as --set retention.ms=7d")

    async def change(admin: "Admin") -> "TopicDescription | None":
        await admin.alter_topic(topic, set=changed, unset=removed)
        return await described(admin, topic)

    found = run_admin(broker, change)
    if as_json:
        json_line(_document(topic, found))
        return
    names = [*changed, *removed]
    settings = [f"{name}={setting_text(name, found.configs[name].value)}" for name in names] if found else names
    note(f"altered topic {topic}: {', '.join(settings)}")


@ends_cleanly
def add_partitions(
    topic: Topic,
    total: Annotated[
        int, typer.Option(min=1, metavar="N", help="The number of partitions afterwards.", show_default=False)
    ],
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic. They are on disk when the command returns.

    Records stay where they are; keys may belong to other partitions from then on.
    """

    async def add(admin: "Admin") -> "TopicDescription | None":
        await admin.add_partitions(topic, total)
        return await described(admin, topic)

    found = run_admin(broker, add)
    if as_json:
        json_line(_document(topic, found))
    else:
        note(f"topic {topic} has {counted(len(found.partitions) if found else total, 'partition')} now")


def _document(name: str, found: "TopicDescription | None") -> dict[str, object]:
    return {"name": name} if found is None else document(found)
