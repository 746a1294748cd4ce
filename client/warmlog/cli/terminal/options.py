"""Options that several commands take, and the event loop that they run in."""

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from warmlog.cli.terminal.exits import is_debug
from warmlog.cli.terminal.profile import chosen_profile, login_options

if TYPE_CHECKING:
    from logging import LogRecord
    from types import FrameType

    from warmlog import Admin

BROKER_VARIABLE = "WARMLOG_BROKER"
DEFAULT_BROKER = "127.0.0.1:7400"
COMPLETION_TIMEOUT_MS = 1000
"""How long a shell waits for names of topics or groups."""

T = TypeVar("T")


class BrokerChoice(NamedTuple):
    """An address, and what named it: an option, the environment, the profile or the default."""

    address: str
    origin: str


def broker_choice(context: typer.Context, text: str) -> BrokerChoice:
    """Return the broker in force for a command whose option --broker has the value `text`."""
    source = context.get_parameter_source("broker")
    given = "DEFAULT" if source is None else source.name
    before_command = context.find_root().params.get("broker")
    if given == "COMMANDLINE":
        return BrokerChoice(text, "--broker")
    if before_command:
        return BrokerChoice(before_command, "--broker")
    if given == "ENVIRONMENT":
        return BrokerChoice(text, BROKER_VARIABLE)
    profile = chosen_profile()
    if profile.broker is not None:
        return BrokerChoice(profile.broker, profile.origin("broker"))
    return BrokerChoice(text, "default")


def choose_broker(context: typer.Context, text: str) -> str:
    """Return the broker in force; a usage error unless it is HOST:PORT, or several separated by commas."""
    if context.resilient_parsing:
        return text
    return check_broker(broker_choice(context, text).address)


def check_broker(text: str) -> str:
    """Return `text` if it is HOST:PORT, or several separated by commas; else raise a usage error."""
    from warmlog_transport.address import parse_addresses

    try:
        parse_addresses(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def connection(*, asks: bool = True) -> dict[str, Any]:
    """Return the options of connections, for Admin, Consumer and Producer: the profile's, and the environment's login.

    A password that is missing is asked for on a terminal, unless `asks` is false.
    """
    return login_options(chosen_profile().connection, asks=asks)


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics whose names begin with `incomplete`, for a shell's completion; none if the broker is away."""
    return _names(context, incomplete, lambda admin: admin.topic_names())


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups whose names begin with `incomplete`, as `topic_names` does."""

    async def names(admin: "Admin") -> list[str]:
        return [group.name for group in await admin.list_groups()]

    return _names(context, incomplete, names)


def transactional_ids(context: typer.Context, incomplete: str) -> list[str]:
    """Return the transactional ids that begin with `incomplete`, as `topic_names` does."""

    async def names(admin: "Admin") -> list[str]:
        return [each.transactional_id for each in await admin.list_transactions()]

    return _names(context, incomplete, names)


def _names(context: typer.Context, incomplete: str, ask: "Callable[[Admin], Awaitable[list[str]]]") -> list[str]:
    with suppress(Exception):
        found = run_admin(
            broker_choice(context, context.params.get("broker") or DEFAULT_BROKER).address,
            ask,
            **{
                **connection(asks=False),
                "connect_timeout_ms": COMPLETION_TIMEOUT_MS,
                "request_timeout_ms": COMPLETION_TIMEOUT_MS,
            },
        )
        return [name for name in found if name.startswith(incomplete)]
    return []


Broker = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="HOST:PORT",
        envvar=BROKER_VARIABLE,
        callback=choose_broker,
        help="The broker to connect to.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
IsCertain = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False, autocompletion=topic_names)
]
Topics = Annotated[
    list[str],
    typer.Argument(metavar="TOPIC", help="Names of topics.", show_default=False, autocompletion=topic_names),
]
Group = Annotated[
    str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False, autocompletion=group_names)
]
TransactionalId = Annotated[
    str,
    typer.Argument(metavar="ID", help="The transactional id.", show_default=False, autocompletion=transactional_ids),
]
Groups = Annotated[
    list[str],
    typer.Argument(metavar="GROUP", help="Names of groups.", show_default=False, autocompletion=group_names),
]

OnePartition = Annotated[
    int | None, typer.Option("--partition", min=0, metavar="N", help="Only this partition.", show_default=False)
]
To = typer.Option(
    "--to", metavar="latest|OFFSET|-N|-1h|TIME", help="Where to stop, exclusive; latest is the end as it is now."
)


def parse_setting(text: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE; ValueError for anything else."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{text!r} is not NAME=VALUE, such as segment.bytes=16777216")
    return name.strip(), value.strip()


def run_admin(broker: str, ask: "Callable[[Admin], Awaitable[T]]", *, warns: bool = False, **options: Any) -> T:
    """Return the result of `ask` with a connected Admin; `warns` shows the client's warnings.

    `options` are those of its connections; the profile's if none is given.
    """
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


def take_sigterm_as_ctrl_c() -> None:
    """Make SIGTERM interrupt the command as Ctrl-C does, even if a shell in the background ignores SIGINT."""
    import signal

    def interrupt(_: int, frame: "FrameType | None") -> None:
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, interrupt)


def show_warnings() -> None:
    """Show the client's log from now on: once connected, it retries without an error while the broker is away."""
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("warmlog: %(message)s"))
    if not is_debug():
        handler.addFilter(_without_traceback)
    logger = logging.getLogger("warmlog")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _without_traceback(record: "LogRecord") -> bool:
    record.exc_info = record.exc_text = None
    return True
