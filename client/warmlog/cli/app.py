"""The commands, joined into one program."""

import os
import sys
from typing import Annotated

import typer

from warmlog.cli.commands import consume, index, log, offsets, produce, serve, spark_export, topic
from warmlog.cli.demo import command as demo
from warmlog.cli.terminal.exits import DEBUG_VARIABLE, INTERRUPTED
from warmlog.cli.terminal.output import line

PROGRAM = "warmlog"


def _show_version(is_asked_for: bool) -> None:
    if is_asked_for:
        from importlib.metadata import version

        line(f"{PROGRAM} {version(PROGRAM)}")
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
    is 0, 1 when a command failed, 2 when it was misused.
    """
    if is_debug:
        os.environ[DEBUG_VARIABLE] = "1"


def build_app(*, is_terminal: bool) -> typer.Typer:
    """The program; its help is drawn by rich for a terminal and is plain text elsewhere."""
    app = typer.Typer(
        name=PROGRAM,
        callback=_options,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if is_terminal else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    serve.register(app)
    topic.register(app)
    produce.register(app)
    consume.register(app)
    offsets.register(app)
    log.register(app)
    index.register(app)
    spark_export.register(app)
    demo.register(app)
    return app


def run() -> None:
    """Runs the process's arguments and ends the process."""
    try:
        build_app(is_terminal=sys.stdout.isatty() and sys.stderr.isatty())(prog_name=PROGRAM)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
