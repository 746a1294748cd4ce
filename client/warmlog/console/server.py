"""The server of the pages: NiceGUI within Starlette, behind the guard of `safety`, on uvicorn."""

import asyncio
import socket
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from msgspec import Struct
from nicegui import ui

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.console import access, groups, index, login, overview, records, topics, transactions
from warmlog.console.safety import Guard, Rules
from warmlog.console.sessions import Sessions, Settings

PAGES = (overview, topics, records, groups, transactions, access, index)
MAX_MESSAGE_BYTES = 1024 * 1024
"""Of a websocket: what a browser sends is a click or a text."""


class Place(Struct, frozen=True):
    """Where the console is."""

    host: str
    port: int
    tls_cert: Path | None
    tls_key: Path | None
    origins: tuple[str, ...]
    root_path: str
    is_remote: bool

    @property
    def is_secure(self) -> bool:
        """Whether all browsers come by TLS."""
        return self.tls_cert is not None or (
            bool(self.origins) and all(url.startswith("https:") for url in self.origins)
        )

    def rules(self, port: int) -> Rules:
        """Return the rules for a console at this port. Without names of its own, TLS says which names are its."""
        own = {urlsplit(url).netloc for url in self.origins}
        if self.is_remote and not own:
            return Rules(None)
        return Rules({*own, *(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))}, self.origins)

    def address(self, port: int) -> str:
        """Return the address to open in a browser."""
        if self.origins:
            return f"{self.origins[0]}{self.root_path}/"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{host}:{port}{self.root_path}/"


def serve(settings: Settings, place: Place, *, on_ready: Callable[[str], None], opens: bool) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises CommandFailed if the address cannot be used."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        bound = socket.create_server((place.host, place.port), family=family)
    except OSError as error:
        raise CommandFailed(f"cannot listen on {place.host}:{place.port}: {error.strerror}") from None
    port = bound.getsockname()[1]
    sessions = Sessions(settings)
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, routes=login.routes(sessions, place.root_path))
    for each in PAGES:
        each.add()
    ui.run_with(
        app,
        title="warmlog",
        dark=None,
        language="en-US",
        tailwind=False,
        gzip_middleware_factory=None,
        show_welcome_message=False,
        reconnect_timeout=10.0,
    )
    app.add_middleware(Guard, rules=place.rules(port), sessions=sessions, root=place.root_path)
    config = uvicorn.Config(
        app,
        log_level="warning",
        ssl_certfile=place.tls_cert,
        ssl_keyfile=place.tls_key,
        ws_max_size=MAX_MESSAGE_BYTES,
        proxy_headers=bool(place.origins),
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    address = place.address(port)
    if settings.login:
        address += f"login?token={sessions.token}"
    on_ready(f"the console is at {address}")
    if opens:
        webbrowser.open(address)

    async def run() -> None:
        try:
            await uvicorn.Server(config).serve([bound])
        finally:
            await sessions.close()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())
