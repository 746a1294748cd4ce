"""SaslHandshake and SaslAuthenticate: a client says which mechanism it has chosen, and sends its messages."""

from typing import Any

from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, IllegalSaslState
from warmlog_protocol.kafka.schema import API

_Handshake = API["SaslHandshake"].response
_Authenticated = API["SaslAuthenticate"].response
FRAMED_FROM = 1
"""After version 0 a client would send messages that are no requests."""


def sasl_handshake(_kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Note the mechanism; it may be chosen again, before each authentication."""
    authentication = context.authentication
    if authentication is None:
        raise IllegalSaslState("this listener does not authenticate")
    offered = authentication.mechanisms
    if request.api_version < FRAMED_FROM:
        return _Handshake(ErrorCode.UNSUPPORTED_VERSION, offered)
    if request.mechanism not in offered:
        return _Handshake(ErrorCode.UNSUPPORTED_SASL_MECHANISM, offered)
    authentication.chosen = request.mechanism
    return _Handshake(ErrorCode.NONE, offered)


def sasl_authenticate(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Take the next message of the exchange."""
    if context.authentication is None or not context.authentication.chosen:
        raise IllegalSaslState("SaslHandshake comes first")
    message = m.AuthenticateRequest(context.authentication.chosen, request.auth_bytes)

    def back(done: Any) -> Ready:
        return _Authenticated(auth_bytes=done.data, session_lifetime_ms=done.session_lifetime_ms)

    return then(kafka.call(context, message), back)
