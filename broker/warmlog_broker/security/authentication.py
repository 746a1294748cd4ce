"""The authentication of one connection: which requests it may send, and who it is.

=============  ===========================  =====================================================================
state          allowed                      next
=============  ===========================  =====================================================================
before         Handshake, Authenticate      Authenticate with the client-first message: exchanging
exchanging     Authenticate                 with a correct client-final message: authenticated; else closed
authenticated  everything                   another exchange by the same user begins the next session; at the end of
                                            the session: expired
expired        Handshake, Authenticate      as `authenticated`; a request of another kind closes the connection
=============  ===========================  =====================================================================

A failure closes the connection. So does a Handshake too many before the authentication: anyone could keep the broker
busy with them. A client of warmlog sends one; in Kafka's protocol, ApiVersions has its place, which clients may repeat.
"""

import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from warmlog_broker.security.users import Users
from warmlog_protocol.errors import IllegalSaslState, SaslAuthenticationFailed, UnsupportedSaslMechanism
from warmlog_protocol.messages import AuthenticateRequest, AuthenticateResponse
from warmlog_protocol.sasl.credential import MECHANISMS, PLAIN, Credential

if TYPE_CHECKING:
    from warmlog_protocol.sasl.scram import ServerExchange

FAILED = "authentication failed: there is no such user, or the password is wrong"
_SHOWN_CHARACTERS = 40

InThread = Callable[[Callable[[], Credential | None]], Awaitable[Credential | None]]
"""Calls a function in a thread."""


class SessionExpired(Exception):
    """The session has ended, and the client sent something else than an authentication."""


class AuthenticationFailed(Exception):
    """An exchange failed; the message says why, for the log, and has nothing secret. `user` is "" if not known."""

    def __init__(self, reason: str, user: str = "") -> None:
        super().__init__(reason)
        self.user = user


class AuthenticationRules(NamedTuple):
    mechanisms: tuple[str, ...]
    session_lifetime_ms: int
    """0: a session does not end."""


class Authentication:
    """The state of one connection of a listener that authenticates."""

    __slots__ = ("_exchange", "_expires_s", "_greetings", "_mechanism", "_now_s", "_rules", "_users", "chosen", "user")

    def __init__(self, users: Users, rules: AuthenticationRules, now_s: Callable[[], float]) -> None:
        self.user = ""
        """The user that has authenticated; "" before."""
        self.chosen = ""
        """The mechanism that a client of Kafka has said before it authenticates."""
        self._users = users
        self._rules = rules
        self._now_s = now_s
        self._greetings = 0
        """How often it has sent a Handshake."""
        self._mechanism = ""
        self._exchange: ServerExchange | None = None
        self._expires_s = math.inf

    @property
    def mechanisms(self) -> list[str]:
        """What the Handshake offers."""
        return list(self._rules.mechanisms)

    def greeted(self, most: int = 1) -> None:
        """Note a Handshake. Raises IllegalSaslState if there are more than `most` before the authentication."""
        self._greetings += 1
        if self._greetings > most and not self.user:
            raise IllegalSaslState(f"Handshake number {self._greetings} before the authentication")

    def check(self, *, comes_first: bool) -> None:
        """Return if a request may start, now or because its kind `comes_first`; else raise IllegalSaslState or
        SessionExpired."""
        if comes_first or (self.user and self._now_s() < self._expires_s):
            return
        if self.user:
            raise SessionExpired(f"the session of user {self.user!r} has ended, and it did not authenticate again")
        raise IllegalSaslState("this listener authenticates: give the client `username` and `password`")

    def step(self, request: AuthenticateRequest) -> AuthenticateResponse:
        """Return the response to the next message of an exchange. AuthenticationFailed, or SaslAuthenticationFailed
        for what tells the client nothing: a wrong mechanism, or another one within an exchange."""
        from warmlog_protocol.sasl.scram import ScramError  # slow to import

        exchange = self._exchange
        if exchange is None:
            return self._begin(request)
        self._exchange = None
        if request.mechanism != self._mechanism:
            raise IllegalSaslState(f"an exchange begun by {self._mechanism} continues with another mechanism")
        try:
            data = exchange.final(request.data)
        except ScramError as error:
            raise self._failure(str(error), exchange.username) from None
        return self._succeed(exchange.username, data)

    async def show_password(self, data: bytes, in_thread: InThread) -> AuthenticateResponse:
        """Return the response to a message of PLAIN: nothing, the user and the password, with zeros between (RFC 4616).

        Raises AuthenticationFailed, SaslAuthenticationFailed.
        """
        from warmlog_protocol.sasl.derivation import is_password_of  # slow to import

        self._check_offered(PLAIN)
        try:
            authorization, name, password = data.decode().split("\0")
        except ValueError:
            raise AuthenticationFailed("a malformed message of PLAIN") from None
        if authorization not in ("", name):
            raise self._failure("another user to act for, which is not supported", name)

        def stored() -> list[Credential]:
            return [each for mechanism in MECHANISMS for each in self._users.credentials(name, mechanism)]

        before = stored()
        fitting = await in_thread(lambda: next((each for each in before if is_password_of(each, password)), None))
        if fitting is None or fitting not in stored():  # the user may have been deleted or altered meanwhile
            raise self._failure("the password is wrong", name)
        return self._succeed(name, b"")

    def _succeed(self, name: str, data: bytes) -> AuthenticateResponse:
        if self.user not in ("", name):
            raise SaslAuthenticationFailed(f"this connection is one of user {self.user!r}: another user needs its own")
        self.user = name
        lifetime_ms = self._rules.session_lifetime_ms
        self._expires_s = self._now_s() + lifetime_ms / 1000 if lifetime_ms else math.inf
        return AuthenticateResponse(data, True, lifetime_ms)

    def _check_offered(self, mechanism: str) -> None:
        if mechanism not in self._rules.mechanisms:
            raise UnsupportedSaslMechanism(
                f"mechanism {mechanism[:_SHOWN_CHARACTERS]!r} is not offered: this listener has "
                f"{', '.join(self._rules.mechanisms)}"
            )

    def _begin(self, request: AuthenticateRequest) -> AuthenticateResponse:
        mechanism = request.mechanism
        self._check_offered(mechanism)
        from warmlog_protocol.sasl.scram import ScramError, ServerExchange  # slow to import

        exchange = ServerExchange(mechanism, lambda name: self._users.credentials(name, mechanism))
        try:
            data = exchange.first(request.data)
        except ScramError as error:
            raise self._failure(str(error), exchange.username) from None
        self._mechanism, self._exchange = mechanism, exchange
        return AuthenticateResponse(data, False)

    def _failure(self, reason: str, name: str) -> AuthenticationFailed:
        """A name that is unknown may be a password that was typed in its place: it is not told."""
        if name in self._users:
            return AuthenticationFailed(reason, name)
        return AuthenticationFailed("there is no such user" if name else reason)
