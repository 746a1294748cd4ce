"""The server of the pages: NiceGUI within Starlette, behind the guard of `safety`, on uvicorn."""

import asyncio
import socket
import webbrowser
from contextlib import suppress

import uvicorn
from fastapi import FastAPI
from msgspec.structs import replace
from nicegui import ui

from warmlog.cli.terminal.exits import CommandFailed
from warmlog.cli.terminal.output import note
from warmlog.console import login
from warmlog.console.pages import access, groups, index, overview, records, topics, transactions  # noqa: F401
from warmlog.console.safety import HEADERS, Guard, Place
from warmlog.console.sessions import Sessions, Settings

MAX_MESSAGE_BYTES = 1024 * 1024
"""Of a websocket: what a browser sends is a click or a text."""


def serve(settings: Settings, place: Place, *, opens: bool) -> None:
    """Serve until SIGTERM or Ctrl-C. Raises CommandFailed if the address cannot be used."""
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    try:
        bound = socket.create_server((place.host, place.port), family=family)
    except OSError as error:
        raise CommandFailed(f"cannot listen on {place.host}:{place.port}: {error.strerror}") from None
    place = replace(place, port=bound.getsockname()[1])
    sessions = Sessions(settings, f"warmlog_console_{place.port}")
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, routes=login.routes(sessions, place))
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
    app.add_middleware(Guard, place=place, sessions=sessions)
    config = uvicorn.Config(
        app,
        log_level="warning",
        ssl_certfile=place.tls_cert,
        ssl_keyfile=place.tls_key,
        ws_max_size=MAX_MESSAGE_BYTES,
        proxy_headers=bool(place.origins),
        server_header=False,
        headers=HEADERS,
        timeout_graceful_shutdown=2,
    )
    address = f"{place.address}login?token={sessions.token}" if settings.login else place.address
    note(f"the console is at {address}")
    if opens:
        webbrowser.open(address)

    async def run() -> None:
        try:
            await uvicorn.Server(config).serve([bound])
        finally:
            await sessions.close()

    with suppress(KeyboardInterrupt):
        asyncio.run(run())
