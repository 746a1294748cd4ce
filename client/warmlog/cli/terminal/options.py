"""Options that several commands take, and the event loop that they run in."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from warmlog.cli.terminal.exits import is_debug

if TYPE_CHECKING:
    from logging import LogRecord
    from types import FrameType

    from warmlog import Admin

BROKER_VARIABLE = "WARMLOG_BROKER"
DEFAULT_BROKER = "127.0.0.1:7400"

T = TypeVar("T")


def check_broker(text: str) -> str:
    """Return `text` if it is HOST:PORT, or several separated by commas; else raise a usage error."""
    from warmlog.cluster.address import parse_addresses

    try:
        parse_addresses(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


Broker = Annotated[
    str,
    typer.Option(
        "--broker", metavar="HOST:PORT", envvar=BROKER_VARIABLE, callback=check_broker, help="The broker to connect to."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]


def parse_setting(text: str) -> tuple[str, str]:
    """Return name and value of NAME=VALUE; ValueError for anything else."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{text!r} is not NAME=VALUE, such as segment.bytes=16777216")
    return name.strip(), value.strip()


def run_admin(broker: str, ask: "Callable[[Admin], Awaitable[T]]", *, warns: bool = False) -> T:
    """Return the result of `ask` with a connected Admin; `warns` shows the client's warnings."""

    async def main() -> T:
        from warmlog import Admin

        async with Admin(broker) as admin:
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
