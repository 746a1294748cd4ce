"""What several commands take, and the event loop that they run in."""

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from warmlog.cli.terminal.exits import is_debug

if TYPE_CHECKING:
    from logging import LogRecord
    from types import FrameType

BROKER_VARIABLE = "WARMLOG_BROKER"
DEFAULT_BROKER = "127.0.0.1:7400"

T = TypeVar("T")


def check_broker(text: str) -> str:
    """`text` when it is HOST:PORT, or several joined by commas; a usage error otherwise."""
    from warmlog.cluster.address import parse_addresses

    try:
        parse_addresses(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


Broker = Annotated[
    str,
    typer.Option(
        "--broker", metavar="HOST:PORT", envvar=BROKER_VARIABLE, callback=check_broker, help="The broker to talk to."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]


def parse_setting(text: str) -> tuple[str, str]:
    """Name and value of NAME=VALUE; ValueError when it is not of that form."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{text!r} is not NAME=VALUE, such as segment.bytes=16777216")
    return name.strip(), value.strip()


def run_client(main: Callable[[], Coroutine[Any, Any, T]], *, is_bulk: bool = False) -> T:
    """What `main` returns, run in an event loop of its own: uvloop's when much data is on its way."""
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
    """Shows what the client has to say from now on: once it is connected, it goes on trying when the broker is gone."""
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
