"""How a client authenticates a new connection: the requests of one SCRAM exchange, without I/O."""

import random
from collections.abc import Callable, Generator

from warmlog_protocol.errors import InvalidConfig, SaslAuthenticationFailed, UnsupportedSaslMechanism
from warmlog_protocol.messages import AuthenticateRequest, AuthenticateResponse, HandshakeResponse
from warmlog_protocol.sasl.scram import ClientExchange, ScramError

Password = str | Callable[[], str]
"""The password, or a function that returns it."""
Login = Generator[AuthenticateRequest, AuthenticateResponse, float]
"""Yields each request, is sent its response, and returns in how many seconds to authenticate again; 0: never."""


def login(name: str, broker: HandshakeResponse, username: str, password: Password, mechanism: str) -> Login:
    """Authenticate with the broker, called `name` in errors, if it asks for that; `username` is empty if there is none.

    A password is never sent, and a broker that does not prove that it knows the user is refused. Raises
    SaslAuthenticationFailed, or one of its kinds; InvalidConfig for a name or a password that cannot be one.
    """
    if not broker.mechanisms and not username:
        return 0
    if not broker.mechanisms:
        raise UnsupportedSaslMechanism(
            f"broker {name} does not authenticate clients at this address, and may not be the one that is meant: "
            "connect to a listener that does, or leave out `username` and `password`"
        )
    if not username:
        raise SaslAuthenticationFailed(f"broker {name} authenticates its clients: give `username` and `password`")
    if mechanism not in broker.mechanisms:
        raise UnsupportedSaslMechanism(
            f"broker {name} offers {', '.join(broker.mechanisms)}, not {mechanism}: set `sasl_mechanism`"
        )
    try:
        exchange = ClientExchange(mechanism, username, current_password(password))
        response = yield AuthenticateRequest(mechanism, exchange.first())
        response = yield AuthenticateRequest(mechanism, exchange.final(response.data))
        exchange.finish(response.data)
    except ScramError as error:
        raise SaslAuthenticationFailed(f"broker {name} cannot be authenticated with: {error}") from None
    except ValueError as error:
        raise InvalidConfig(f"username or password: {error}") from None
    if not response.done:
        raise SaslAuthenticationFailed(f"broker {name} continues an exchange that is complete")
    return response.session_lifetime_ms / 1000 * random.uniform(0.75, 0.9)  # noqa: S311


def current_password(password: Password) -> str:
    """Return the password as it is now. SaslAuthenticationFailed if the function in its place fails."""
    if isinstance(password, str):
        return password
    try:
        found = password()
    except Exception as error:
        raise SaslAuthenticationFailed(f"the function `password` raised {type(error).__name__}") from error
    if not isinstance(found, str):
        raise SaslAuthenticationFailed(f"the function `password` returned a {type(found).__name__}, not a str")
    return found
