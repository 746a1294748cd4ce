"""`warmlog serve`: run a broker."""

import gc
from pathlib import Path

import click
from click.exceptions import Exit

from warmlog.cli.terminal.exits import checked
from warmlog.cli.terminal.options import parse_setting
from warmlog.cli.terminal.paths import ANY_PATH, FILE


@click.command()
@click.option(
    "--data-dir",
    type=ANY_PATH,
    multiple=True,
    metavar="DIR",
    help="The directory for all data; created if missing. Repeatable: one for each disk.",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where to listen; 127.0.0.1:7400 if not given; with port 0 the system chooses one.",
)
@click.option("--kafka-listen", metavar="HOST:PORT", help="Where to serve clients of Kafka; nowhere if not given.")
@click.option(
    "--admin-listen", metavar="HOST:PORT", help="Where to serve metrics and health over HTTP; nowhere if not given."
)
@click.option("--config", type=FILE, metavar="FILE", help="Settings as TOML.")
@click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting, such as flush.threads=8. Repeatable."
)
def serve(
    data_dir: tuple[Path, ...],
    listen: str | None,
    kafka_listen: str | None,
    admin_listen: str | None,
    config: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    Settings come from --config, then from the environment (flush.threads is WARMLOG_FLUSH_THREADS), then from here;
    the later wins. A topic's setting given to the broker is the default of all topics.
    """
    given = dict(checked("--set", parse_setting, text) for text in settings)
    if data_dir:
        given["data.dir" if len(data_dir) == 1 else "data.dirs"] = ",".join(map(str, data_dir))
    addresses = {"listen": listen, "kafka.listen": kafka_listen, "admin.listen": admin_listen}
    given |= {name: address for name, address in addresses.items() if address is not None}
    gc.disable()  # until the broker serves: what is imported stays, and collecting takes a sixteenth of a start
    from warmlog_broker.config.sources import load_settings
    from warmlog_protocol.errors import InvalidConfig

    try:
        broker_config = load_settings(given, file=config)
    except InvalidConfig as error:
        raise click.BadParameter(str(error), param_hint="settings") from None
    from warmlog_broker.server.process import serve as serve_until_stopped

    raise Exit(serve_until_stopped(broker_config))
