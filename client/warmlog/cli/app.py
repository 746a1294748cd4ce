"""The commands, joined into one program."""

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from warmlog.cli.commands import (
    consume,
    delete_records,
    index,
    log_adopt,
    log_dirs,
    log_rebuild,
    log_verify,
    offsets,
    produce,
    serve,
    spark_export,
    topic,
    topic_copy,
)
from warmlog.cli.demo import command as demo
from warmlog.cli.dump import command as dump
from warmlog.cli.terminal.exits import DEBUG_VARIABLE, INTERRUPTED
from warmlog.cli.terminal.output import line
from warmlog_protocol import __version__

PROGRAM = "warmlog"

COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "serve": (serve.serve, ""),
    "produce": (produce.produce, produce.HELP),
    "consume": (consume.consume, consume.HELP),
    "offsets": (offsets.offsets, ""),
    "spark-export": (spark_export.spark_export, spark_export.HELP),
    "demo": (demo.demo, ""),
}
"""Each command, and its help if that is preformatted."""
FAMILIES: dict[str, tuple[str, dict[str, Callable[..., None]]]] = {
    "topic": (
        "Create, list, describe and delete topics.",
        {
            "create": topic.create,
            "list": topic.list_topics,
            "describe": topic.describe,
            "delete": topic.delete,
            "delete-records": delete_records.delete_records,
            "copy": topic_copy.copy,
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
        line(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    is_debug: Annotated[
        bool, typer.Option("--debug", help=f"Show the traceback of a failure (also {DEBUG_VARIABLE}=1).")
    ] = False,
) -> None:
    """A durable log broker: Kafka's log semantics, no JVM.

    Client commands take --broker HOST:PORT and --json. Data goes to stdout, everything else to stderr. The exit code
    is 0 on success, 1 if the command failed, 2 for a wrong option or argument.
    """
    if is_debug:
        os.environ[DEBUG_VARIABLE] = "1"


def build_app(*, is_terminal: bool) -> typer.Typer:
    """Return the program; rich formats its help for a terminal, elsewhere it is plain text."""
    app = typer.Typer(
        name=PROGRAM,
        callback=_options,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if is_terminal else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, (command, text) in COMMANDS.items():
        app.command(name, help="\b\n" + text.replace("\n\n", "\n\n\b\n") if text else None)(command)
    for name, (text, members) in FAMILIES.items():
        family = typer.Typer(no_args_is_help=True, help=text)
        for member, command in members.items():
            family.command(member)(command)
        app.add_typer(family, name=name)
    return app


def run() -> None:
    """Run the command that the process's arguments name, and end the process."""
    try:
        build_app(is_terminal=sys.stdout.isatty() and sys.stderr.isatty())(prog_name=PROGRAM)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
