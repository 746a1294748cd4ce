"""Sessions: each is a connection of one user to the broker, and what the console keeps for it."""

import asyncio
import secrets
import time
from contextlib import suppress
from typing import Any

from msgspec import Struct, field

from warmlog.admin.admin import Admin
from warmlog.console.history import History
from warmlog.errors import ClusterAuthorizationFailed, UnsupportedVersion, WarmlogError

SAMPLE_S = 2.0
IDLE_S = 3600.0
"""A session ends when it was not used for so long: no page of it was open."""
MAX_OF_USER = 8
"""Sessions of one user. One more ends the one that was not used for longest; those of others stay."""
DEFAULTS: dict[str, Any] = {"client_name": "warmlog-console", "connect_timeout_ms": 4_000, "request_timeout_ms": 8_000}
"""Of connections, unless the profile has its own: among them, how long a broker may be silent before a page says so."""


class Settings(Struct, frozen=True):
    """What the command line says. `may_change` None: only users that have logged in may."""

    broker: str
    connection: dict[str, Any] = field(default_factory=dict)
    """Options of connections, without a login."""
    login: dict[str, str] = field(default_factory=dict)
    """The profile's user and password, for those that have the console's token."""
    may_change: bool | None = None
    decoder: Any = None
    """A function of (topic, "key" or "value", bytes), whose result is shown in place of the bytes."""


class Session:
    """One user's connection."""

    def __init__(self, settings: Settings, admin: Admin, options: dict[str, Any]) -> None:
        self.admin = admin
        self.options = options
        """Of its connections, for other clients than `admin`."""
        self.user: str = options.get("username", "")
        self.settings = settings
        self.may_change = bool(self.user) if settings.may_change is None else settings.may_change
        self.history = History()
        self.used_s = time.monotonic()
        self.status_error = ""
        """Why there is no status, if the user or the broker does not allow it."""
        self._sampled_s = 0.0
        self._sampling = asyncio.Lock()

    @property
    def is_over(self) -> bool:
        """Whether it was not used for too long."""
        return time.monotonic() - self.used_s > IDLE_S

    async def sample(self) -> None:
        """Take a sample of the broker's status, unless one was taken just now. Raises WarmlogError and OSError."""
        self.used_s = time.monotonic()
        async with self._sampling:
            if time.monotonic() - self._sampled_s < SAMPLE_S * 0.9:
                return
            try:
                self.history.add(await self.admin.describe_status())
            except (ClusterAuthorizationFailed, UnsupportedVersion) as error:
                self.status_error = str(error)
                await self.admin.broker_info()  # whether it is there
            self._sampled_s = time.monotonic()


class Sessions:
    """All sessions, by the secret in the browser's cookie."""

    def __init__(self, settings: Settings, cookie: str) -> None:
        self.settings = settings
        self.cookie = cookie
        """The name of the cookie, which has the port: browsers send cookies to all ports of a host."""
        self.token = secrets.token_urlsafe(32)
        """Who has it may use the profile's login, once: it is in the address that the command prints."""
        self._sessions: dict[str, Session] = {}

    def find(self, secret: str) -> Session | None:
        """Return the session of a browser; None if there is none, or if it was not used for too long."""
        session = self._sessions.get(secret)
        if session is None or session.is_over:
            return None
        session.used_s = time.monotonic()
        return session

    async def open(self, login: dict[str, str]) -> str:
        """Connect, and return the secret of a session. `login` is empty, or has `username` and `password`.

        All browsers share the session without a login. Raises SaslAuthenticationFailed, also if the broker wants a
        login and there is none; BrokerUnavailable.
        """
        options = {**DEFAULTS, **self.settings.connection, **login}
        admin = Admin(self.settings.broker, **options)
        await admin.start()
        for secret in [secret for secret, each in self._sessions.items() if each.is_over]:
            await self.end(secret)
        session = Session(self.settings, admin, options)
        same = [secret for secret, each in self._sessions.items() if each.user == session.user]
        if same and not login:
            await admin.close()
            return same[0]
        for secret in sorted(same, key=lambda each: -self._sessions[each].used_s)[MAX_OF_USER - 1 :]:
            await self.end(secret)
        secret = secrets.token_urlsafe(32)
        self._sessions[secret] = session
        return secret

    async def end(self, secret: str) -> None:
        """Close the connection of a session. No-op if there is none."""
        session = self._sessions.pop(secret, None)
        if session is not None:
            with suppress(WarmlogError, OSError):
                await session.admin.close()

    async def close(self) -> None:
        """End all sessions."""
        for secret in list(self._sessions):
            await self.end(secret)
