"""`warmlog user add`, `list`, `rotate` and `delete`: users and their passwords."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from warmlog.cli.commands.access import data_dir_option, run_access
from warmlog.cli.terminal.exits import checked, confirm_deletion
from warmlog.cli.terminal.options import certain_option, client_options, print_result, wants_json
from warmlog.cli.terminal.output import counted, json_line, line, note, table
from warmlog.cli.terminal.paths import ANY_PATH
from warmlog.cli.terminal.profile import STDIN, read_password
from warmlog.cli.terminal.tables import Cell, Instant, local_time

if TYPE_CHECKING:
    from datetime import datetime

    from warmlog import Admin, UserDescription

HEADINGS = ("user", "kind", "mechanisms", "password since", "old password until")

user_argument = click.argument("name", metavar="NAME", help="The user's name.")
password_file_option = click.option(
    "--password-file",
    type=ANY_PATH,
    metavar="FILE",
    help="The user's password is the first line of this file; - is stdin. Without it the terminal is asked.",
)


@click.command()
@user_argument
@password_file_option
@click.option("--token", "is_token", is_flag=True, help="For a machine: the password is a random secret, printed once.")
@data_dir_option
@client_options
def add(name: str, password_file: Path | None, is_token: bool, data_dir: Path | None) -> None:
    """Create a user, with a password from a file, stdin or the terminal, or with a random one."""

    async def create(admin: "Admin") -> str:
        if is_token:
            return await admin.create_token(name)
        await admin.create_user(name, password)
        return ""

    password = "" if is_token else _new_password(name, password_file)
    _tell("added", name, run_access(data_dir, create))


@click.command()
@user_argument
@password_file_option
@click.option(
    "--grace", default="1d", metavar="TIME", help="For how long the old password stays valid, such as 90s, 1h or 0."
)
@data_dir_option
@client_options
def rotate(name: str, password_file: Path | None, grace: str, data_dir: Path | None) -> None:
    """Give a user another password; a token gets another random secret, printed once."""
    from warmlog.errors import ResourceNotFound
    from warmlog.points import parse_duration_ms

    grace_ms = checked("--grace", parse_duration_ms, grace)

    async def find(admin: "Admin") -> "UserDescription":
        for user in await admin.list_users():
            if user.name == name:
                return user
        raise ResourceNotFound(f"there is no user {name!r}")

    async def rotate_one(admin: "Admin") -> "tuple[str, datetime | None]":
        secret = ""
        if (await find(admin)).is_token:
            secret = await admin.rotate_token(name, grace_ms=grace_ms)
        else:
            await admin.rotate_user(name, _new_password(name, password_file), grace_ms=grace_ms)
        return secret, (await find(admin)).previous_until

    secret, until = run_access(data_dir, rotate_one)
    _tell("rotated", name, secret, until)


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", help="Names of users.")
@certain_option
@data_dir_option
@client_options
def delete(names: tuple[str, ...], is_certain: bool, data_dir: Path | None) -> None:
    """Delete users, whose connections end. Asks for confirmation, unless --yes is given."""
    names = tuple(dict.fromkeys(names))
    confirm_deletion(names, f"user {names[0]}", counted(len(names), "user"), is_certain=is_certain)

    async def delete_all(admin: "Admin") -> None:
        for name in names:
            await admin.delete_user(name)
            _tell("deleted", name, "")

    run_access(data_dir, delete_all)


def _tell(done: str, name: str, secret: str, until: "datetime | None" = None) -> None:
    """Say what was done, and `until` when an old password works; a secret is the only line on stdout."""
    if wants_json():
        old = {"old_password_until": until} if done == "rotated" else {}
        json_line({"name": name, done: True, **({"password": secret} if secret else {}), **old})
        return
    text = "the old password works no longer"
    if until is not None:
        text = f"the old password works until {local_time(round(until.timestamp() * 1000))}, with --grace 0 no longer"
    note(f"{done} user {name}: {text}" if done == "rotated" else f"{done} user {name}")
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
def list_users(data_dir: Path | None) -> None:
    """List the users, without anything of their passwords."""
    users = run_access(data_dir, lambda admin: admin.list_users())
    print_result(users, lambda: table(HEADINGS, list(map(user_row, users))))


def user_row(user: "UserDescription") -> tuple[Cell, ...]:
    until = -1 if user.previous_until is None else round(user.previous_until.timestamp() * 1000)
    kind, since = "token" if user.is_token else "password", round(user.changed.timestamp() * 1000)
    return user.name, kind, ", ".join(user.mechanisms), Instant(since), Instant(until)
