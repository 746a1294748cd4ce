"""`warmlog topic delete`."""

from typing import TYPE_CHECKING

from warmlog.cli.commands.topic.describe import described
from warmlog.cli.terminal.exits import CommandFailed, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, IsCertain, Topics, run_admin
from warmlog.cli.terminal.output import confirmed, counted, json_line, note

if TYPE_CHECKING:
    from warmlog import Admin


@ends_cleanly
def delete(
    topics: Topics,
    is_certain: IsCertain = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Delete topics and all their records. Asks for confirmation on a terminal.

    Nothing is deleted if one of the topics does not exist.
    """
    names = list(dict.fromkeys(topics))

    async def check(admin: "Admin") -> None:
        for name in names:
            await described(admin, name)

    async def delete_all(admin: "Admin") -> None:
        for name in names:
            await admin.delete_topic(name)
            if not as_json:
                note(f"deleted topic {name}")

    run_admin(broker, check)
    if not is_certain and not confirmed(_question(names)):
        raise CommandFailed(f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} not deleted")
    run_admin(broker, delete_all)
    documents = [{"name": name, "deleted": True} for name in names]
    if as_json:
        json_line(documents[0] if len(names) == 1 else documents)


def _question(names: list[str]) -> str:
    if len(names) == 1:
        return f"Delete {names[0]} and all its records?"
    return f"Delete {counted(len(names), 'topic')} ({', '.join(names)}) and all their records?"
