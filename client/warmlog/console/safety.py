"""Which requests of browsers the console accepts, and what it tells browsers to refuse.

A page elsewhere must neither act in a user's name nor read what is shown. So a request must name a host that is ours
(a name that an attacker has pointed to this address is not), and whatever may change something, websockets included,
must come from a page of ours (`Origin`). Pages may not be framed, and load scripts, styles and pictures only from here.

The Content-Security-Policy needs 'unsafe-eval', because Vue compiles NiceGUI's templates in the browser, and
'unsafe-inline' for styles, which NiceGUI sets on elements. Scripts inside the page have a nonce of that response.
"""

import secrets
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import Struct

from warmlog.console.sessions import Sessions

COOKIE = "warmlog_console"
SESSION = "warmlog.session"
"""Where the session of a request is in its scope."""
PUBLIC = ("/login", "/_nicegui/", "/favicon.ico")
"""What is served without a session: the login, and files that NiceGUI is made of."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Callable[[], Awaitable[Message]], Send], Awaitable[None]]

HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


def policy(nonce: str) -> bytes:
    """Return the Content-Security-Policy of a response."""
    return (
        f"default-src 'none'; script-src 'self' 'nonce-{nonce}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ).encode()


class Rules(Struct, frozen=True):
    """Where the console is: `hosts` (with ports) that requests may name, None for any; and further `origins`."""

    hosts: Collection[str] | None
    origins: Collection[str] = ()

    def refusal(self, host: str, origin: str | None, *, may_change: bool) -> str:
        """Return why a request is refused; "" if it is not. `may_change`: it is not just GET or HEAD."""
        if self.hosts is not None and host.lower() not in self.hosts:
            return f"this console is not at {host}: start it with --origin, if that is its address"
        if origin is None:
            return "the browser does not say which page has sent this (Origin)" if may_change else ""
        if origin.lower() not in self.origins and urlsplit(origin.lower()).netloc != host.lower():
            return f"a page of {origin} may not do this"
        return ""


class Guard:
    """The ASGI application around all others."""

    def __init__(self, app: App, *, rules: Rules, sessions: Sessions, root: str = "") -> None:
        """`root` is the path below which a proxy has the console, whether or not it passes that on."""
        self.app = app
        self._root = root
        self._rules = rules
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Callable[[], Awaitable[Message]], send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        # The prefix comes from --root-path alone: a client could name any.
        scope["headers"] = [each for each in scope["headers"] if each[0] != b"x-forwarded-prefix"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        is_page = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        root = scope["root_path"] = self._root
        path = scope["path"].removeprefix(root)
        scope["path"] = root + path
        session = self._sessions.find(_cookie(headers.get("cookie", "")))
        if text := self._rules.refusal(headers.get("host", ""), headers.get("origin"), may_change=not is_page):
            await _refuse(scope, send, 403, text)
        elif session is None and not path.startswith(PUBLIC):
            query = scope["query_string"].decode("latin-1")
            wanted = quote(f"{path}?{query}" if query else path, safe="/")
            location = f"{root}/login?next={wanted}" if is_page and not path.startswith("/_") else ""
            await _refuse(scope, send, 303 if location else 401, "log in first", location)
        else:
            scope[SESSION] = session
            await self.app(scope, receive, _Protected(send).send)


class _Protected:
    """Adds the headers to a response, and the nonce to the scripts of a page."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._nonce = secrets.token_urlsafe(16)
        self._start: Message | None = None
        """The start of a page, which is held back until its length is known."""
        self._body = bytearray()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *HEADERS, (b"content-security-policy", policy(self._nonce))]
            if dict(message["headers"]).get(b"content-type", b"").startswith(b"text/html"):
                self._start = message
                return
        elif self._start is not None and message["type"] == "http.response.body":
            self._body += message.get("body", b"")
            if message.get("more_body"):
                return
            body = bytes(self._body).replace(b"<script", b'<script nonce="%s"' % self._nonce.encode())
            kept = [each for each in self._start["headers"] if each[0] not in (b"content-length", b"cache-control")]
            self._start["headers"] = [
                *kept,
                (b"content-length", b"%d" % len(body)),
                (b"cache-control", b"no-store"),
            ]
            start, self._start = self._start, None
            await self._send(start)
            message = {"type": "http.response.body", "body": body}
        await self._send(message)


def _cookie(header: str) -> str:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


async def _refuse(scope: Scope, send: Send, status: int, text: str, location: str = "") -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": text[:100]})
        return
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *HEADERS]
    if location:
        headers.append((b"location", location.encode("latin-1")))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})
