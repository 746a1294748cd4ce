"""`warmlog console`: start it."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from warmlog.cli.terminal.exits import CommandFailed, checked
from warmlog.cli.terminal.options import broker_option, chosen_broker
from warmlog.cli.terminal.paths import FILE
from warmlog.cli.terminal.profile import chosen_profile, login_options
from warmlog.extras import install_hint

DEFAULT_LISTEN = "127.0.0.1:7480"


@click.command()
@click.option("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="Where to serve the pages.")
@click.option("--allow-remote", is_flag=True, help="Let --listen be another address than a loopback one.")
@click.option("--tls-cert", type=FILE, metavar="FILE", help="The console's certificate, as PEM.")
@click.option("--tls-key", type=FILE, metavar="FILE", help="Its key, if not in the same file.")
@click.option(
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="The address in the browser behind a proxy, such as https://logs.example.org. Repeatable.",
)
@click.option("--root-path", default="", metavar="/PATH", help="The path below which a proxy has the console.")
@click.option(
    "--read-only/--allow-changes",
    "is_read_only",
    default=None,
    help="Whether pages can change nothing; the default for a broker without a login.",
)
@click.option(
    "--decoder",
    metavar="MODULE:FUNCTION",
    help='A function of (topic, "key" or "value", bytes): what it returns is shown.',
)
@click.option("--open/--no-open", "opens", default=None, help="Open the browser; the default at a terminal.")
@broker_option
def console(
    listen: str,
    allow_remote: bool,
    tls_cert: Path | None,
    tls_key: Path | None,
    origins: tuple[str, ...],
    root_path: str,
    is_read_only: bool | None,
    decoder: str | None,
    opens: bool | None,
) -> None:
    """Show topics, records, groups and the broker in a browser, until Ctrl-C.

    With a broker that authenticates, each browser logs in as a user of the broker, and can do what that user may; if
    the profile names a user, the address that is printed logs in as that user.
    """
    try:
        from warmlog.console.safety import LOOPBACK, Place
        from warmlog.console.server import serve
        from warmlog.console.sessions import Settings
    except ImportError:
        raise CommandFailed(f"the console needs NiceGUI: {install_hint('console')}") from None

    host, port = checked("--listen", _address, listen)
    urls = tuple(checked("--origin", _origin, text) for text in origins)
    if host not in LOOPBACK:
        if not allow_remote:
            text = f"{host} is not a loopback address: add --allow-remote and TLS"
            raise click.BadParameter(text, param_hint="--listen")
        is_private = [url.startswith("https:") or urlsplit(url).hostname in LOOPBACK for url in urls]
        if tls_cert is None and not (urls and all(is_private)):
            text = "give --tls-cert, or the --origin of the proxy that ends TLS: passwords would be readable"
            raise click.BadParameter(text, param_hint="--allow-remote")
    if root_path and (not root_path.startswith("/") or root_path.endswith("/")):
        raise click.BadParameter(f"{root_path!r}: a path such as /console expected", param_hint="--root-path")
    connection = login_options(chosen_profile().connection)
    login = {name: connection.pop(name) for name in ("username", "password") if connection.get(name)}
    may_change = None if is_read_only is None else not is_read_only
    function = None if decoder is None else checked("--decoder", _function, decoder)
    serve(
        Settings(chosen_broker(), connection, login, may_change, function),
        Place(host, port, tls_cert, tls_key, urls, root_path),
        opens=sys.stdout.isatty() if opens is None else opens,
    )


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) >= 2**16:
        raise ValueError(f"{text!r} is not HOST:PORT; with port 0 the system chooses one")
    return host.strip("[]"), int(port)


def _origin(text: str) -> str:
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.netloc or url.path not in ("", "/") or url.query:
        raise ValueError(f"{text!r} is not an address such as https://logs.example.org")
    return f"{url.scheme}://{url.netloc}".lower()


def _function(text: str) -> Any:
    module, _, name = text.partition(":")
    sys.path.append("")  # the current directory, which the installed command does not look in
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{text!r} is not MODULE:FUNCTION: {error}") from None
