"""How a connection authenticates: the requests of one SCRAM exchange, for the shells on asyncio and plain sockets."""

import random
from collections.abc import Generator

from warmlog.cluster.address import Address
from warmlog.cluster.options import ConnectionOptions
from warmlog.errors import InvalidConfig, SaslAuthenticationFailed, UnsupportedSaslMechanism
from warmlog_protocol.messages import AuthenticateRequest, AuthenticateResponse, HandshakeResponse
from warmlog_protocol.sasl.scram import ClientExchange, ScramError

Login = Generator[AuthenticateRequest, AuthenticateResponse, float]
"""Yields each request, is sent its response, and returns in how many seconds to authenticate again; 0: never."""


def login(address: Address, broker: HandshakeResponse, options: ConnectionOptions) -> Login:
    """Authenticate as `options` say, if the broker asks for it. Raises SaslAuthenticationFailed, or one of its kinds.

    A password is never sent, and a broker that does not prove that it knows the user is refused.
    """
    if not broker.mechanisms and not options.username:
        return 0
    if not broker.mechanisms:
        raise UnsupportedSaslMechanism(
            f"broker {address} does not authenticate clients at this address, and may not be the one that is meant: "
            "connect to a listener that does, or leave out `username` and `password`"
        )
    if not options.username:
        raise SaslAuthenticationFailed(f"broker {address} authenticates its clients: give `username` and `password`")
    mechanism = options.sasl_mechanism
    if mechanism not in broker.mechanisms:
        raise UnsupportedSaslMechanism(
            f"broker {address} offers {', '.join(broker.mechanisms)}, not {mechanism}: set `sasl_mechanism`"
        )
    try:
        exchange = ClientExchange(mechanism, options.username, current_password(options))
        response = yield AuthenticateRequest(mechanism, exchange.first())
        response = yield AuthenticateRequest(mechanism, exchange.final(response.data))
        exchange.finish(response.data)
    except ScramError as error:
        raise SaslAuthenticationFailed(f"broker {address} cannot be authenticated with: {error}") from None
    except ValueError as error:
        raise InvalidConfig(f"username or password: {error}") from None
    if not response.done:
        raise SaslAuthenticationFailed(f"broker {address} continues an exchange that is complete")
    return response.session_lifetime_ms / 1000 * random.uniform(0.75, 0.9)  # noqa: S311


def current_password(options: ConnectionOptions) -> str:
    """Return the password, or what the function in its place returns. SaslAuthenticationFailed if that fails."""
    if isinstance(options.password, str):
        return options.password
    try:
        password = options.password()
    except Exception as error:
        raise SaslAuthenticationFailed(f"the function `password` raised {type(error).__name__}") from error
    if not isinstance(password, str):
        raise SaslAuthenticationFailed(f"the function `password` returned a {type(password).__name__}, not a str")
    return password
