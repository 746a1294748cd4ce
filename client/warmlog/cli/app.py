"""The commands, joined into one program."""

import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from warmlog.cli.commands import (
    about,
    consume,
    index,
    log_dirs,
    offsets,
    produce,
    serve,
    spark_export,
    status,
)
from warmlog.cli.commands.acl import change as acl_change
from warmlog.cli.commands.acl import show as acl_show
from warmlog.cli.commands.backup import backup, restore
from warmlog.cli.commands.config import change as config_change
from warmlog.cli.commands.config import check as config_check
from warmlog.cli.commands.config import show as config_show
from warmlog.cli.commands.group import delete as group_delete
from warmlog.cli.commands.group import describe as group_describe
from warmlog.cli.commands.group import reset as group_reset
from warmlog.cli.commands.log import adopt as log_adopt
from warmlog.cli.commands.log import rebuild as log_rebuild
from warmlog.cli.commands.log import verify as log_verify
from warmlog.cli.commands.quota import change as quota_change
from warmlog.cli.commands.quota import show as quota_show
from warmlog.cli.commands.topic import change, copy, delete, delete_records, describe
from warmlog.cli.commands.txn import abort as txn_abort
from warmlog.cli.commands.txn import show as txn_show
from warmlog.cli.commands.user import change as user_change
from warmlog.cli.commands.user import list as user_list
from warmlog.cli.demo import command as demo
from warmlog.cli.dump import command as dump
from warmlog.cli.terminal.exits import DEBUG_VARIABLE, INTERRUPTED
from warmlog.cli.terminal.options import check_broker
from warmlog.cli.terminal.output import open_closed_streams
from warmlog.cli.terminal.profile import (
    PASSWORD_FILE_VARIABLE,
    PASSWORD_VARIABLE,
    PROFILE_VARIABLE,
    SSL_VARIABLES,
    USERNAME_VARIABLE,
)

PROGRAM = about.PROGRAM
COMPLETION_VARIABLE = "_WARMLOG_COMPLETE"
"""What the shell's script sets to have words completed; `source_SHELL` prints the script."""

COMPLETION_HELP = """Print the script that completes commands, options, topics and groups in a shell.

    bash    echo 'source <(warmlog completion bash)' >> ~/.bashrc
    zsh     echo 'source <(warmlog completion zsh)' >> ~/.zshrc
    fish    warmlog completion fish > ~/.config/fish/completions/warmlog.fish

In zsh the line must come after compinit. Open a new shell afterwards."""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell.", show_default=False)],
) -> None:
    os.environ[COMPLETION_VARIABLE] = f"source_{shell}"
    build_app(is_terminal=False)(prog_name=PROGRAM)


COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "serve": (serve.serve, ""),
    "produce": (produce.produce, produce.HELP),
    "consume": (consume.consume, consume.HELP),
    "offsets": (offsets.offsets, ""),
    "spark-export": (spark_export.spark_export, spark_export.HELP),
    "status": (status.status, ""),
    "backup": (backup.backup, ""),
    "restore": (restore.restore, ""),
    "profile": (about.profile, about.PROFILE_HELP),
    "demo": (demo.demo, ""),
    "completion": (completion, COMPLETION_HELP),
    "version": (about.version, ""),
    "help": (about.help_command, ""),
}
"""Each command, and its help if that has blocks, which are indented and keep their lines."""
FAMILIES: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "topic": (
        "Create, list, describe, change and delete topics.",
        {
            "create": change.create,
            "list": describe.list_topics,
            "describe": describe.describe,
            "alter": change.alter,
            "add-partitions": change.add_partitions,
            "delete": delete.delete,
            "delete-records": delete_records.delete_records,
            "copy": copy.copy,
        },
    ),
    "group": (
        "List, describe, reset and delete consumer groups.",
        {
            "list": group_describe.list_groups,
            "describe": group_describe.describe,
            "members": group_describe.members,
            "reset": group_reset.reset,
            "delete": group_delete.delete,
        },
    ),
    "txn": (
        "List, describe and abort transactions.",
        {
            "list": txn_show.list_transactions,
            "describe": txn_show.describe,
            "abort": txn_abort.abort,
        },
    ),
    "user": (
        "Add, list and delete users, and change their passwords.",
        {
            "add": user_change.add,
            "list": user_list.list_users,
            "rotate": user_change.rotate,
            "delete": user_change.delete,
        },
    ),
    "acl": (
        "Add, list, delete and check rights.",
        {
            "add": acl_change.add,
            "list": acl_show.list_acls,
            "delete": acl_change.delete,
            "check": acl_show.check,
        },
    ),
    "quota": (
        "Set, list and delete quotas of users and clients.",
        {
            "set": quota_change.set_quota,
            "list": quota_show.list_quotas,
            "delete": quota_change.delete,
        },
    ),
    "config": (
        "Check, show and alter the settings of a broker.",
        {
            "check": config_check.check,
            "show": config_show.show,
            "set": config_change.set_settings,
            "unset": config_change.unset_settings,
        },
    ),
    "log": (
        "Inspect, check and adopt the files of a data directory.",
        {
            "dump": dump.dump,
            "dirs": log_dirs.dirs,
            "move": log_dirs.move,
            "verify": log_verify.verify,
            "rebuild-index": log_rebuild.rebuild_index,
            "adopt": log_adopt.adopt,
        },
    ),
    "index": ("Show what a search in an index reads.", {"trace": index.trace}),
}


def _show_version(is_asked_for: bool) -> None:
    if is_asked_for:
        about.version()
        raise typer.Exit


def _options(
    _version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_show_version, is_eager=True, help="Print the version and exit."),
    ] = False,
    is_debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of a failure (also {DEBUG_VARIABLE}=1).")
    ] = False,
    broker: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="The broker, for commands that connect to one.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"A table of the client profile (also {PROFILE_VARIABLE}=NAME)."),
    ] = None,
    username: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"The user to connect as (also {USERNAME_VARIABLE}=NAME).")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"A file with that user's password (also {PASSWORD_FILE_VARIABLE}=FILE, {PASSWORD_VARIABLE}=…).",
        ),
    ] = None,
    uses_tls: Annotated[
        bool | None,
        typer.Option("--ssl/--no-ssl", help=f"Connect by TLS (also {SSL_VARIABLES['ssl']}).", show_default=False),
    ] = None,
    cafile: Annotated[
        str | None,
        typer.Option(
            "--ssl-cafile",
            metavar="FILE",
            help=f"The issuers of brokers' certificates, as PEM (also {SSL_VARIABLES['ssl_cafile']}).",
        ),
    ] = None,
    certfile: Annotated[
        str | None,
        typer.Option(
            "--ssl-certfile",
            metavar="FILE",
            help=f"The client's certificate, as PEM (also {SSL_VARIABLES['ssl_certfile']}).",
        ),
    ] = None,
    keyfile: Annotated[
        str | None,
        typer.Option(
            "--ssl-keyfile",
            metavar="FILE",
            help=f"Its key, if not in the same file (also {SSL_VARIABLES['ssl_keyfile']}; its password: "
            f"{SSL_VARIABLES['ssl_keypassword']}).",
        ),
    ] = None,
    checks_hostname: Annotated[
        bool | None,
        typer.Option(
            "--ssl-check-hostname/--ssl-no-check-hostname",
            help=f"Whether the broker's certificate must be for its host (also {SSL_VARIABLES['ssl_check_hostname']}).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """A durable log broker: Kafka's log semantics, no JVM.

    Client commands take --broker HOST:PORT and --json. Data goes to stdout, everything else to stderr. The exit code
    is 0 on success, 1 if the command failed, 2 for a wrong option or argument.
    """
    if is_debug:
        os.environ[DEBUG_VARIABLE] = "1"
    if broker is not None:
        check_broker(broker)
    if profile is not None:
        os.environ[PROFILE_VARIABLE] = profile
    if username is not None:
        os.environ[USERNAME_VARIABLE] = username
    if password_file is not None:
        os.environ[PASSWORD_FILE_VARIABLE] = str(password_file)
    switches = {"ssl": uses_tls, "ssl_check_hostname": checks_hostname}
    files = {"ssl_cafile": cafile, "ssl_certfile": certfile, "ssl_keyfile": keyfile}
    for name, given in {**switches, **files}.items():
        if given is not None:
            os.environ[SSL_VARIABLES[name]] = str(given).lower() if name in switches else str(given)


class Program(TyperGroup):
    """The commands; a value that is not one of an option's choices is told without the name of Python's error."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


def build_app(*, is_terminal: bool) -> typer.Typer:
    """Return the program; rich formats its help for a terminal, elsewhere it is plain text."""
    app = typer.Typer(
        name=PROGRAM,
        cls=Program,
        callback=_options,
        help=_help(_options.__doc__, is_terminal),
        no_args_is_help=True,
        add_completion=COMPLETION_VARIABLE in os.environ,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if is_terminal else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, (command, text) in COMMANDS.items():
        app.command(name, help=_help(text or command.__doc__, is_terminal))(command)
    for name, (text, members) in FAMILIES.items():
        family = typer.Typer(no_args_is_help=True, help=text)
        for member, command in members.items():
            family.command(member, help=_help(command.__doc__, is_terminal))(command)
        app.add_typer(family, name=name)
    return app


def _help(text: str | None, is_terminal: bool) -> str:
    """Return a command's help for typer: blocks, which are indented, keep their lines; the rest has its width."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    shown = "\n\n".join(f"\b\n{each}" if each[:1] == " " else " ".join(each.split()) for each in paragraphs)
    return shown.replace("[", r"\[") if is_terminal else shown


def run() -> None:
    """Run the command that the process's arguments name, and end the process."""
    open_closed_streams()
    try:
        build_app(is_terminal=sys.stdout.isatty() and sys.stderr.isatty())(prog_name=PROGRAM)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
