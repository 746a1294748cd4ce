"""The login: a page without scripts, which opens a session and gives the browser its cookie."""

import asyncio
import secrets
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from warmlog.cli.terminal.exits import describe
from warmlog.console.safety import COOKIE
from warmlog.console.sessions import Sessions
from warmlog.errors import SaslAuthenticationFailed, WarmlogError

PAUSE_S = 1.0
"""How long a login that failed takes at least, so that passwords cannot be tried quickly."""

PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Log in · warmlog</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>body{{font:1rem system-ui,sans-serif;max-width:24rem;margin:4rem auto;padding:0 1rem}}
label,input,button{{display:block;width:100%;box-sizing:border-box;font:inherit}}label{{margin-top:1rem}}
input,button{{padding:.5rem;margin-top:.25rem}}button{{margin-top:1.5rem}}</style></head>
<body><main><h1>warmlog</h1><p>Broker {broker}</p><p role="alert">{error}</p>
<form method="post"><input type="hidden" name="next" value="{next}">
<label>User <input name="username" autocomplete="username" required autofocus></label>
<label>Password <input name="password" type="password" autocomplete="current-password" required></label>
<button>Log in</button></form></main></body></html>"""


def routes(sessions: Sessions, root: str) -> list[Route]:
    """Return /login and /logout of a console below the path `root`."""
    settings = sessions.settings

    def enter(cookie: str, wanted: str) -> Response:
        local = wanted if wanted.startswith("/") and not wanted.startswith(("//", "/\\")) else "/"
        response = RedirectResponse(f"{root}{local}", 303)
        response.set_cookie(COOKIE, cookie, path=root or "/", httponly=True, samesite="lax", secure=settings.is_secure)
        return response

    def form(error: str, wanted: str, status: int) -> Response:
        text = PAGE.format(broker=escape(settings.broker), error=escape(error), next=escape(wanted))
        return HTMLResponse(text, status)

    async def show(request: Request) -> Response:
        """Without a form for the profile's user, who has the token, and for a broker that asks for no login."""
        wanted, token = request.query_params.get("next", "/"), request.query_params.get("token", "")
        has_token = bool(settings.login) and secrets.compare_digest(token.encode(), sessions.token.encode())
        if has_token:
            sessions.token = secrets.token_urlsafe(32)  # it stays in a browser's history, and enters once
        try:
            return enter(await sessions.open(settings.login if has_token else {}), wanted)
        except SaslAuthenticationFailed as error:
            return form(describe(error) if has_token else "", wanted, 200)
        except (WarmlogError, OSError) as error:
            if has_token:
                sessions.token = token
            return form(describe(error), wanted, 503)

    async def log_in(request: Request) -> Response:
        given: Any = await request.form(max_files=0, max_fields=8)
        wanted = str(given.get("next", "/"))
        login = {name: str(given.get(name, "")) for name in ("username", "password")}
        try:
            return enter(await sessions.open(login), wanted)
        except (WarmlogError, OSError) as error:
            await asyncio.sleep(PAUSE_S)
            return form(describe(error), wanted, 401 if isinstance(error, SaslAuthenticationFailed) else 503)

    async def log_out(request: Request) -> Response:
        await sessions.end(request.cookies.get(COOKIE, ""))
        response = RedirectResponse(f"{root}/login", 303)
        response.delete_cookie(COOKIE, path=root or "/")
        return response

    return [
        Route("/login", show, methods=["GET"]),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]
