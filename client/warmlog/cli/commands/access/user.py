"""`warmlog user add`, `list`, `rotate` and `delete`: users and their passwords."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.commands.access import data_dir_option
from warmlog.cli.terminal.exits import CommandFailed, checked
from warmlog.cli.terminal.options import certain_option, client_options, run_admin
from warmlog.cli.terminal.output import confirmed, counted, json_line, line, note, table
from warmlog.cli.terminal.profile import STDIN, read_password
from warmlog.cli.terminal.tables import Instant

if TYPE_CHECKING:
    from warmlog import Admin
    from warmlog_protocol.messages import AlteredUser, ListedUser

user_argument = click.argument("name", metavar="NAME", help="The user's name.")
password_file_option = click.option(
    "--password-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The user's password is the first line of this file; - is stdin. Without it the terminal is asked.",
)


@click.command()
@user_argument
@password_file_option
@click.option("--token", "is_token", is_flag=True, help="For a machine: the password is a random secret, printed once.")
@data_dir_option
@client_options
def add(
    name: str, password_file: Path | None, is_token: bool, data_dir: Path | None, broker: str, as_json: bool
) -> None:
    """Create a user, with a password from a file, stdin or the terminal, or with a random one."""
    from warmlog.admin.access.user_changes import creation, new_secret

    password = new_secret() if is_token else _new_password(name, password_file)
    change = creation(name, password, is_token=is_token)
    _alter(data_dir, broker, lambda _: change)
    _tell("added", name, password if is_token else "", as_json)


@click.command()
@user_argument
@password_file_option
@click.option(
    "--grace", default="1d", metavar="TIME", help="For how long the old password stays valid, such as 90s, 1h or 0."
)
@data_dir_option
@client_options
def rotate(
    name: str, password_file: Path | None, grace: str, data_dir: Path | None, broker: str, as_json: bool
) -> None:
    """Give a user another password; a token gets another random secret, printed once."""
    from warmlog.admin.access.user_changes import new_secret, rotation
    from warmlog.errors import ResourceNotFound
    from warmlog.points import parse_duration_ms

    grace_ms = checked("--grace", parse_duration_ms, grace)
    secret: list[str] = []

    def change(users: "list[ListedUser]") -> "AlteredUser":
        user = next((user for user in users if user.name == name), None)
        if user is None:
            raise ResourceNotFound(f"there is no user {name!r}")
        if user.is_token:
            secret.append(new_secret())
        return rotation(user, secret[0] if secret else _new_password(name, password_file), grace_ms)

    _alter(data_dir, broker, change, reads=True)
    _tell("rotated", name, secret[0] if secret else "", as_json)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", help="Names of users.")
@certain_option
@data_dir_option
@client_options
def delete(names: tuple[str, ...], is_certain: bool, data_dir: Path | None, broker: str, as_json: bool) -> None:
    """Delete users, whose connections end. Asks for confirmation on a terminal."""
    from warmlog.admin.access.user_changes import deletion

    names = tuple(dict.fromkeys(names))
    question = f"Delete {f'user {names[0]}' if len(names) == 1 else counted(len(names), 'user')}?"
    if not is_certain and not confirmed(question):
        raise CommandFailed(f"{', '.join(names)} {'was' if len(names) == 1 else 'were'} not deleted")

    async def ask(admin: "Admin") -> None:
        for name in names:
            await admin.delete_user(name)
            _tell("deleted", name, "", as_json)

    if data_dir is None:
        run_admin(broker, ask)
        return
    for name in names:
        _alter(data_dir, broker, lambda _: deletion(name))  # noqa: B023  (called at once)
        _tell("deleted", name, "", as_json)


def _alter(
    data_dir: Path | None, broker: str, change: "Callable[[list[ListedUser]], AlteredUser]", *, reads: bool = False
) -> None:
    """Make the change that `change` returns for the present users, which a broker is only asked for if it `reads`."""

    async def ask(admin: "Admin") -> None:
        await admin._alter_user(change(await admin._listed_users() if reads else []))

    if data_dir is None:
        run_admin(broker, ask)
        return
    from warmlog_broker.tools.access import change_user

    change_user(data_dir, change)


def _tell(done: str, name: str, secret: str, as_json: bool) -> None:
    """Say what was done; a secret is the only line on stdout."""
    if as_json:
        json_line({"name": name, done: True, **({"password": secret} if secret else {})})
        return
    note(f"{done} user {name}")
    if secret:
        line(secret)


def _new_password(name: str, path: Path | None) -> str:
    """Return the password that a user gets: from the file, from the terminal, which is asked twice, or from stdin."""
    if path is None and sys.stdin.isatty():
        prompt = f"New password of user {name}"
        return str(click.prompt(prompt, hide_input=True, confirmation_prompt="The same again", err=True))
    return read_password(STDIN if path is None else str(path))


@click.command()
@data_dir_option
@client_options
def list_users(data_dir: Path | None, broker: str, as_json: bool) -> None:
    """List the users, without anything of their passwords."""
    from warmlog.admin.access.users import describe_users

    if data_dir is None:
        users = run_admin(broker, lambda admin: admin.list_users())
    else:
        from warmlog_broker.tools.access import users_in

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
