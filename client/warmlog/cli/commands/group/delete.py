"""`warmlog group delete`."""

from typing import TYPE_CHECKING

from warmlog.cli.terminal.exits import CommandFailed, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, Groups, IsCertain, run_admin
from warmlog.cli.terminal.output import confirmed, counted, json_line, note

if TYPE_CHECKING:
    from warmlog import Admin


@ends_cleanly
def delete(
    groups: Groups,
    is_certain: IsCertain = False,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Delete groups without members, and their committed offsets. Asks for confirmation on a terminal.

    Nothing is deleted if one of the groups has members or does not exist.
    """
    names = list(dict.fromkeys(groups))

    async def check(admin: "Admin") -> None:
        for name in names:
            await admin.describe_group(name)

    run_admin(broker, check)
    if not is_certain and not confirmed(_question(names)):
        raise CommandFailed(f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} not deleted")
    run_admin(broker, lambda admin: admin.delete_groups(names))
    documents = [{"name": name, "deleted": True} for name in names]
    if as_json:
        json_line(documents[0] if len(names) == 1 else documents)
        return
    for name in names:
        note(f"deleted group {name}")


def _question(names: list[str]) -> str:
    if len(names) == 1:
        return f"Delete group {names[0]} and its committed offsets?"
    return f"Delete {counted(len(names), 'group')} ({', '.join(names)}) and their committed offsets?"
