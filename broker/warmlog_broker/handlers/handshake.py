"""Handshake: who answers, and what it speaks."""

import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_protocol.messages import APIS, ApiVersions, HandshakeRequest, HandshakeResponse
from warmlog_protocol.wire.connection import Request

_SHOWN_CHARACTERS = 100

_log = logging.getLogger(__name__)


def handshake(services: Services, asker: Asker, request: Request) -> HandshakeResponse:
    """The broker's version, its cluster, and the versions of every API."""
    message = request.message
    assert isinstance(message, HandshakeRequest)
    client = f"{message.client_name[:_SHOWN_CHARACTERS]!r} {message.client_version[:_SHOWN_CHARACTERS]!r}"
    _log.debug("connection with %s: client %s", asker.name, client)
    return HandshakeResponse(
        broker_version=services.version,
        cluster_id=services.cluster_id,
        node_id=services.config.node_id,
        max_frame_bytes=services.config.socket_request_max_bytes,
        apis=[ApiVersions(api.key, api.min_version, api.max_version) for api in APIS.values()],
    )
