"""The login: a page without scripts, which opens a session and gives the browser its cookie."""

import asyncio
import secrets
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from warmlog.cli.terminal.exits import describe
from warmlog.console.safety import Place
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


def routes(sessions: Sessions, place: Place) -> list[Route]:
    """Return /login and /logout."""
    settings = sessions.settings

    async def enter(login: dict[str, str], wanted: str) -> Response:
        """Go to the page that was wanted, with a new session; without one, show the form and say why."""
        try:
            secret = await sessions.open(login)
        except (WarmlogError, OSError) as error:
            is_refused = isinstance(error, SaslAuthenticationFailed)
            said = "" if is_refused and not login else escape(describe(error))
            page = PAGE.format(broker=escape(settings.broker), error=said, next=escape(wanted))
            return HTMLResponse(page, 503 if not is_refused else 401 if login else 200)
        local = wanted if wanted.startswith("/") and not wanted.startswith(("//", "/\\")) else "/"
        response = RedirectResponse(f"{place.root}{local}", 303)
        cookie: dict[str, Any] = {"path": place.root or "/", "secure": place.is_secure}
        response.set_cookie(sessions.cookie, secret, httponly=True, samesite="lax", **cookie)
        return response

    async def show(request: Request) -> Response:
        """Without a form for the profile's user, who has the token, and for a broker that asks for no login."""
        token = request.query_params.get("token", "")
        has_token = bool(settings.login) and secrets.compare_digest(token.encode(), sessions.token.encode())
        if has_token:
            sessions.token = secrets.token_urlsafe(32)  # it stays in a browser's history, and enters once
        response = await enter(settings.login if has_token else {}, request.query_params.get("next", "/"))
        if has_token and response.status_code == 503:
            sessions.token = token
        return response

    async def log_in(request: Request) -> Response:
        given: Any = await request.form(max_files=0, max_fields=8)
        login = {name: str(given.get(name, "")) for name in ("username", "password")}
        response = await enter(login, str(given.get("next", "/")))
        if response.status_code != 303:
            await asyncio.sleep(PAUSE_S)
        return response

    async def log_out(request: Request) -> Response:
        await sessions.end(request.cookies.get(sessions.cookie, ""))
        response = RedirectResponse(f"{place.root}/login", 303)
        response.delete_cookie(sessions.cookie, path=place.root or "/")
        return response

    return [
        Route("/login", show, methods=["GET"]),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]
