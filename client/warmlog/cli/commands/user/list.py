"""`warmlog user list`."""

from warmlog.cli.commands.user.change import DataDir
from warmlog.cli.terminal.exits import ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, run_admin
from warmlog.cli.terminal.output import json_line, table
from warmlog.cli.terminal.tables import Instant


@ends_cleanly
def list_users(data_dir: DataDir = None, broker: Broker = DEFAULT_BROKER, as_json: AsJson = False) -> None:
    """List the users, without anything of their passwords."""
    from warmlog.admin.access.users import describe_users

    if data_dir is None:
        users = run_admin(broker, lambda admin: admin.list_users())
    else:
        from warmlog_broker.tools.users import users_in

        users = describe_users(users_in(data_dir))
    if as_json:
        json_line(users)
        return
    headings = ("user", "kind", "mechanisms", "password since", "old password until")
    rows = []
    for user in users:
        until = -1 if user.previous_until is None else round(user.previous_until.timestamp() * 1000)
        kind, since = "token" if user.is_token else "password", round(user.changed.timestamp() * 1000)
        rows.append((user.name, kind, ", ".join(user.mechanisms), Instant(since), Instant(until)))
    table(headings, rows)
