"""`warmlog version`, `help`, `profile` and `completion`: the command line about itself."""

import os
from typing import Any

import click

from warmlog.cli.terminal.options import broker_choice, client_options, print_result
from warmlog.cli.terminal.output import line, table
from warmlog.cli.terminal.profile import PASSWORD_FILE_KEY, chosen_profile

COMPLETION_VARIABLE = "_WARMLOG_COMPLETE"
"""What the shell's script sets to have words completed; `SHELL_source` prints the script."""


@click.command()
def version() -> None:
    """Print the version."""
    line(version_text())


def version_text() -> str:
    """Return the program's name and version."""
    from warmlog_transport.options import client_version

    return f"warmlog {client_version()}"


@click.command()
@click.pass_context
@click.argument("command", nargs=-1, metavar="[COMMAND]...", help="The command, such as topic create.")
def help_command(context: click.Context, command: tuple[str, ...]) -> None:
    """Show the help of a command, or of the program."""
    root = context.find_root()
    root.command.main([*command, "--help"], prog_name=root.info_name)


@click.command()
@click.pass_context
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="The shell.")
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, topics and groups in a shell.

    \b
        bash    echo 'source <(warmlog completion bash)' >> ~/.bashrc
        zsh     echo 'source <(warmlog completion zsh)' >> ~/.zshrc
        fish    warmlog completion fish > ~/.config/fish/completions/warmlog.fish

    In zsh the line must come after compinit. Open a new shell afterwards.
    """
    os.environ[COMPLETION_VARIABLE] = f"{shell}_source"
    root = context.find_root()
    root.command.main([], prog_name=root.info_name)


@click.command()
@click.pass_context
@client_options
def profile(context: click.Context) -> None:
    """Show the broker and the connection options that commands use, and where they come from.

    \b
        broker = "127.0.0.1:7400"
        [production]
        broker = "logs.example.org:7400"
        request_timeout_ms = 60000

    is a profile with one table: warmlog --profile production, or WARMLOG_PROFILE=production, takes it. The file is
    ~/.config/warmlog/config.toml; WARMLOG_CONFIG names another. An option takes precedence over the environment, and
    that over the profile.
    """
    from dataclasses import fields

    from warmlog_transport.options import SECRETS, ConnectionOptions

    found = chosen_profile()
    choice = broker_choice(context)
    rows: list[tuple[str, Any, str]] = [("broker", choice.address, choice.origin)]
    for field in fields(ConnectionOptions):
        is_in_file = field.name == "password" and PASSWORD_FILE_KEY in found.settings
        key = PASSWORD_FILE_KEY if is_in_file else field.name
        is_set = key in found.settings
        value = found.settings[key] if is_set else field.default
        if is_in_file:
            value = f"(in {value})"
        elif is_set and key in SECRETS:
            value = "(hidden)"
        rows.append((field.name, value, found.origins[key] if is_set else "default"))
    settings = {name: {"value": value, "origin": origin} for name, value, origin in rows}
    document = {"file": found.path, "profile": found.name, "settings": settings}
    print_result(document, lambda: table(("setting", "value", "from"), rows))
