"""`warmlog user add`, `rotate` and `delete`."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import CommandFailed, checked, ends_cleanly
from warmlog.cli.terminal.options import DEFAULT_BROKER, AsJson, Broker, IsCertain, run_admin
from warmlog.cli.terminal.output import confirmed, counted, json_line, line, note
from warmlog.cli.terminal.profile import STDIN, read_password

if TYPE_CHECKING:
    from warmlog import Admin
    from warmlog_protocol.messages import AlteredUser, ListedUser

DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        show_default=False,
        help="Change the data directory of a broker that does not run, instead of asking a broker.",
    ),
]
User = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.", show_default=False)]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="The user's password is the first line of this file; - is stdin. Without it the terminal is asked.",
    ),
]
IsToken = Annotated[bool, typer.Option("--token", help="For a machine: the password is a random secret, printed once.")]


@ends_cleanly
def add(
    name: User,
    password_file: PasswordFile = None,
    is_token: IsToken = False,
    data_dir: DataDir = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Create a user, with a password from a file, stdin or the terminal, or with a random one."""
    from warmlog.admin.access.user_changes import creation, new_secret

    password = new_secret() if is_token else _new_password(name, password_file)
    change = creation(name, password, is_token=is_token)

    async def ask(admin: "Admin") -> None:
        await admin._alter_user(change)

    _make(data_dir, broker, lambda _: change, ask)
    _tell("added", name, password if is_token else "", as_json)


@ends_cleanly
def rotate(
    name: User,
    password_file: PasswordFile = None,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="For how long the old password stays valid, such as 90s, 1h or 0.")
    ] = "1d",
    data_dir: DataDir = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
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

    async def ask(admin: "Admin") -> None:
        await admin._alter_user(change(await admin._listed_users()))

    _make(data_dir, broker, change, ask)
    _tell("rotated", name, secret[0] if secret else "", as_json)


@ends_cleanly
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of users.", show_default=False)],
    is_certain: IsCertain = False,
    data_dir: DataDir = None,
    broker: Broker = DEFAULT_BROKER,
    as_json: AsJson = False,
) -> None:
    """Delete users, whose connections end. Asks for confirmation on a terminal."""
    from warmlog.admin.access.user_changes import deletion

    names = list(dict.fromkeys(names))
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
        _change_offline(data_dir, lambda _: deletion(name))  # noqa: B023  (called at once)
        _tell("deleted", name, "", as_json)


def _make(
    data_dir: Path | None,
    broker: str,
    change: "Callable[[list[ListedUser]], AlteredUser]",
    ask: "Callable[[Admin], Awaitable[None]]",
) -> None:
    if data_dir is None:
        run_admin(broker, ask)
    else:
        _change_offline(data_dir, change)


def _change_offline(data_dir: Path, change: "Callable[[list[ListedUser]], AlteredUser]") -> None:
    from warmlog_broker.tools.users import change_user

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
        return str(typer.prompt(prompt, hide_input=True, confirmation_prompt="The same again", err=True))
    return read_password(path or STDIN)
