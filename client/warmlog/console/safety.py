"""Where the console is, which requests of browsers it accepts there, and what it tells browsers to refuse.

A page elsewhere must neither act in a user's name nor read what is shown. So a request must name a host that is ours
(a name that an attacker has pointed to this address is not), and whatever may change something, websockets included,
must come from a page of ours (`Origin`). Pages may not be framed, and load scripts, styles and pictures only from here.

The Content-Security-Policy needs 'unsafe-eval', because Vue compiles NiceGUI's templates in the browser, and
'unsafe-inline' for styles, which NiceGUI sets on elements. Scripts inside the page have a nonce of that response.
"""

import secrets
from pathlib import Path
from urllib.parse import quote, urlsplit

from msgspec import Struct
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from warmlog.console.sessions import Sessions

LOOPBACK = ("127.0.0.1", "localhost", "::1")
SESSION = "warmlog.session"
"""Where the session of a request is in its scope."""
PUBLIC = ("/login", "/_nicegui/", "/favicon.ico")
"""What is served without a session: the login, and files that NiceGUI is made of."""
HEADERS = [
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
]
"""Of each response."""
POLICY = (
    "default-src 'none'; script-src 'self' 'nonce-{}' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


class Place(Struct, frozen=True):
    """Where the console listens, and where browsers find it: `origins` behind a proxy, below the path `root`."""

    host: str
    port: int
    tls_cert: Path | None = None
    tls_key: Path | None = None
    origins: tuple[str, ...] = ()
    root: str = ""

    @property
    def is_secure(self) -> bool:
        """Whether all browsers come by TLS."""
        urls = self.origins or (("https:",) if self.tls_cert else ("http:",))
        return all(url.startswith("https:") for url in urls)

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        here = f"{'https' if self.tls_cert else 'http'}://{host}:{self.port}"
        return f"{self.origins[0] if self.origins else here}{self.root}/"

    def refusal(self, host: str, origin: str | None, *, may_change: bool) -> str:
        """Return why a request is refused; "" if it is not. `may_change`: it is not just GET or HEAD.

        Without origins, a console that is not just at loopback has any name that its certificate has.
        """
        ours = {urlsplit(url).netloc for url in self.origins}
        local = {f"{name}:{self.port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if (ours or self.host in LOOPBACK) and host.lower() not in ours | local:
            return f"this console is not at {host}: start it with --origin, if that is its address"
        if origin is None:
            return "the browser does not say which page has sent this (Origin)" if may_change else ""
        if origin.lower() not in self.origins and urlsplit(origin.lower()).netloc != host.lower():
            return f"a page of {origin} may not do this"
        return ""


class Guard:
    """The ASGI application around all others."""

    def __init__(self, app: ASGIApp, *, place: Place, sessions: Sessions) -> None:
        self._app = app
        self._place = place
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        # The prefix comes from --root-path alone: a client could name any.
        scope["headers"] = [each for each in scope["headers"] if each[0] != b"x-forwarded-prefix"]
        root = scope["root_path"] = self._place.root
        path = scope["path"].removeprefix(root)  # proxies differ in whether they pass the root on
        scope["path"] = root + path
        asked = HTTPConnection(scope)
        is_page = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        host, origin = asked.headers.get("host", ""), asked.headers.get("origin")
        session = scope[SESSION] = self._sessions.find(asked.cookies.get(self._sessions.cookie, ""))
        refusal, status = self._place.refusal(host, origin, may_change=not is_page), 403
        if not refusal and session is None and not path.startswith(PUBLIC):
            refusal, status = "log in first", 401
        answer: ASGIApp
        if not refusal:
            answer, send = self._app, protected(send)
        elif scope["type"] == "websocket":
            answer = WebSocketClose(1008, refusal[:100])
        elif status == 401 and is_page and not path.startswith("/_"):
            query = f"?{asked.url.query}" if asked.url.query else ""
            answer = RedirectResponse(f"{root}/login?next={quote(path + query, safe='/')}", 303)
        else:
            answer = PlainTextResponse(f"{refusal}\n", status)
        await answer(scope, receive, send)


def protected(send: Send) -> Send:
    """Return what sends a response with the policy, whose nonce the scripts of a page get."""
    nonce = secrets.token_urlsafe(16)
    start: Message | None = None
    body = bytearray()

    async def send_protected(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            headers["content-security-policy"] = POLICY.format(nonce)
            if headers.get("content-type", "").startswith("text/html"):
                start = message  # it is sent when the length of the page is known
                return
        elif start is not None and message["type"] == "http.response.body":
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            page = bytes(body).replace(b"<script", b'<script nonce="%s"' % nonce.encode())
            headers = MutableHeaders(scope=start)
            headers["content-length"], headers["cache-control"] = str(len(page)), "no-store"
            await send(start)
            message, start = {**message, "body": page}, None
        await send(message)

    return send_protected
