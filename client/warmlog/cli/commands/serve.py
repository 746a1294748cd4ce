"""`warmlog serve`: run a broker."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from warmlog.cli.terminal.exits import DEBUG_VARIABLE, checked, ends_cleanly
from warmlog.cli.terminal.options import BROKER_VARIABLE, parse_setting

if TYPE_CHECKING:
    from warmlog_broker.config.broker_config import BrokerConfig

OF_CLIENTS = (BROKER_VARIABLE, DEBUG_VARIABLE)
"""Variables of the environment that belong to the command line and are no settings of a broker."""


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command("serve")(serve)


@ends_cleanly
def serve(
    data_dir: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            help="Where everything is kept; made when it is missing. Repeatable: one for each disk.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where to listen; 127.0.0.1:7400 if not given, port 0 takes a free one."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings as TOML.", exists=True, dir_okay=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting, such as flush.threads=8. Repeatable."),
    ] = None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Settings come from --config, then from the environment (flush.threads is WARMLOG_FLUSH_THREADS), then from here;
    the later wins. A topic's setting given to the broker is the default of all topics.
    """
    given = dict(checked("--set", parse_setting, text) for text in settings or ())
    if data_dir:
        given["data.dir" if len(data_dir) == 1 else "data.dirs"] = ",".join(map(str, data_dir))
    if listen is not None:
        given["listen"] = listen
    broker_config = _load(given, config)

    from warmlog_broker.server.process import serve as serve_until_stopped

    raise typer.Exit(serve_until_stopped(broker_config))


def _load(given: dict[str, str], file: Path | None) -> "BrokerConfig":
    """The configuration; a setting that is unknown or out of bounds is misuse."""
    from warmlog_broker.config.sources import load_settings
    from warmlog_protocol.errors import InvalidConfig

    environment = {name: value for name, value in os.environ.items() if name not in OF_CLIENTS}
    try:
        return load_settings(given, file=file, environment=environment)
    except InvalidConfig as error:
        raise typer.BadParameter(str(error), param_hint="settings") from None
