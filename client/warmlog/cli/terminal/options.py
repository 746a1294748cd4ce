"""Options and arguments that several commands take, and the event loop that they run in."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from warmlog.cli.terminal.exits import is_debug
from warmlog.cli.terminal.output import json_line, note
from warmlog.cli.terminal.profile import chosen_profile, login_options

if TYPE_CHECKING:
    from logging import LogRecord

    from warmlog import Admin

BROKER_VARIABLE = "WARMLOG_BROKER"
DEFAULT_BROKER = "127.0.0.1:7400"
_BROKER, _JSON = "warmlog.broker", "warmlog.json"
"""What of a command's options is kept with its context."""
COMPLETION_TIMEOUT_MS = 1000
"""How long a shell waits for names of topics or groups."""

T = TypeVar("T")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class BrokerChoice(NamedTuple):
    """An address, and what named it: an option, the environment, the profile or the default."""

    address: str
    origin: str


def broker_choice(context: click.Context) -> BrokerChoice:
    """Return the broker in force for a command with the option --broker."""
    text = context.meta.get(_BROKER, DEFAULT_BROKER)
    source = context.get_parameter_source("broker")
    before_command = context.find_root().params.get("broker")
    if source is ParameterSource.COMMANDLINE:
        return BrokerChoice(text, "--broker")
    if before_command:
        return BrokerChoice(before_command, "--broker")
    if source is ParameterSource.ENVIRONMENT:
        return BrokerChoice(text, BROKER_VARIABLE)
    profile = chosen_profile()
    if profile.broker is not None:
        return BrokerChoice(profile.broker, profile.origins["broker"])
    return BrokerChoice(text, "default")


def chosen_broker() -> str:
    """Return the address of the broker in force for the command that runs, which has the option --broker."""
    return broker_choice(click.get_current_context()).address


def _keep_broker(context: click.Context, _: click.Parameter, text: str) -> None:
    """Keep the value of --broker; a usage error unless the broker in force is HOST:PORT, or several."""
    context.meta[_BROKER] = text
    if not context.resilient_parsing:
        check_broker(broker_choice(context).address)


def check_broker(text: str) -> None:
    """Raise a usage error unless `text` is HOST:PORT, or several separated by commas."""
    from warmlog_transport.address import parse_addresses

    try:
        parse_addresses(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def connection(*, asks: bool = True) -> dict[str, Any]:
    """Return the options of connections, for Admin, Consumer and Producer: the profile's, and the environment's login.

    A password that is missing is asked for on a terminal, unless `asks` is false.
    """
    return login_options(chosen_profile().connection, asks=asks)


# --- names that a shell completes -----------------------------------------------------------------------------------


def _completed_by(ask: "Callable[[Admin], Awaitable[list[str]]]") -> Callable[..., list[str]]:
    """Return what completes the names that the broker gives; it completes none if the broker is away."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        timeouts = {"connect_timeout_ms": COMPLETION_TIMEOUT_MS, "request_timeout_ms": COMPLETION_TIMEOUT_MS}
        with suppress(Exception):
            broker = broker_choice(context).address
            names = run_admin(ask, broker=broker, **{**connection(asks=False), **timeouts})
            return [name for name in names if name.startswith(incomplete) and name.isprintable()]
        return []

    return complete


async def _groups(admin: "Admin") -> list[str]:
    return [group.name for group in await admin.list_groups()]


async def _transactional_ids(admin: "Admin") -> list[str]:
    return [each.transactional_id for each in await admin.list_transactions()]


topic_names = _completed_by(lambda admin: admin.topic_names())
group_names = _completed_by(_groups)

# --- options and arguments ------------------------------------------------------------------------------------------


def _keep_json(context: click.Context, _: click.Parameter, is_wanted: bool) -> None:
    context.meta[_JSON] = is_wanted


json_option = click.option(
    "--json", is_flag=True, expose_value=False, callback=_keep_json, help="Print JSON, for scripts."
)
broker_option = click.option(
    "--broker",
    default=DEFAULT_BROKER,
    metavar="HOST:PORT",
    envvar=BROKER_VARIABLE,
    show_envvar=True,
    expose_value=False,
    callback=_keep_broker,
    help="The broker to connect to.",
)
certain_option = click.option(
    "--yes", "-y", "is_certain", is_flag=True, help="Do not ask for confirmation; needed without a terminal."
)
partition_option = click.option("--partition", type=click.IntRange(min=0), metavar="N", help="Only this partition.")
compression_option = click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    help="What batches are compressed with.",
)
topic_argument = click.argument("topic", metavar="TOPIC", shell_complete=topic_names, help="The topic's name.")
topics_argument = click.argument(
    "topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=topic_names, help="Names of topics."
)
group_argument = click.argument("group", metavar="GROUP", shell_complete=group_names, help="The group's name.")
groups_argument = click.argument(
    "groups", nargs=-1, required=True, metavar="GROUP...", shell_complete=group_names, help="Names of groups."
)
transactional_id_argument = click.argument(
    "transactional_id", metavar="ID", shell_complete=_completed_by(_transactional_ids), help="The transactional id."
)


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --broker and --json, which end the options of each command that asks a broker.

    They are no parameters of the command: see `chosen_broker`, `run_admin` and `print_result`.
    """
    return broker_option(json_option(command))


def to_option(default: str | None = None) -> Decorator:
    """Return the option --to, which is called `end`."""
    return click.option(
        "--to",
        "end",
        default=default,
        metavar="latest|OFFSET|-N|-1h|TIME",
        help="Where to stop, exclusive; latest is the end as it is now.",
    )


def parse_setting(text: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE; ValueError for anything else."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{text!r} is not NAME=VALUE, such as segment.bytes=16777216")
    return name.strip(), value.strip()


def wants_json() -> bool:
    """Return whether the command that runs was given --json."""
    return bool(click.get_current_context().meta[_JSON])


def print_result(document: object, say: Callable[[], None]) -> None:
    """Print what a command has found or done: the document with --json, else what `say` prints for people."""
    if wants_json():
        json_line(document)
    else:
        say()


# --- the event loop -------------------------------------------------------------------------------------------------


def run_admin(
    ask: "Callable[[Admin], Awaitable[T]]", *, broker: str | None = None, warns: bool = False, **options: Any
) -> T:
    """Return the result of `ask` with an Admin of the `chosen_broker`; `warns` shows the client's warnings.

    `options` are those of its connections; the profile's if none is given.
    """
    broker = broker or chosen_broker()
    options = options or connection()

    async def main() -> T:
        from warmlog import Admin

        async with Admin(broker, **options) as admin:
            if warns:
                show_warnings()
            return await ask(admin)

    return run_client(main)


def run_client(main: Callable[[], Coroutine[Any, Any, T]], *, is_bulk: bool = False) -> T:
    """Return the result of `main` in a new event loop; `is_bulk`, for much data, takes uvloop's."""
    import asyncio
    import logging

    logger = logging.getLogger("warmlog")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    if not is_bulk:
        return asyncio.run(main())
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def show_warnings() -> None:
    """Show the client's log from now on: once connected, it retries without an error while the broker is away."""
    import logging

    class Notes(logging.Handler):
        def emit(self, record: "LogRecord") -> None:
            note(self.format(record) if is_debug() else record.getMessage())  # with its traceback, or without

    logger = logging.getLogger("warmlog")
    logger.addHandler(Notes())
    logger.setLevel(logging.INFO)
