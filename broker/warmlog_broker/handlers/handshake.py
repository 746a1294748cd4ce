"""Handshake: who answers, and what it speaks."""

import logging

from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request_context import RequestContext
from warmlog_protocol.messages import APIS, ApiVersions, HandshakeRequest, HandshakeResponse

_SHOWN_CHARACTERS = 100

_log = logging.getLogger(__name__)


def handshake(services: Services, context: RequestContext, request: HandshakeRequest) -> HandshakeResponse:
    """The broker's version, its cluster, and the versions of every API."""
    version = request.client_version[:_SHOWN_CHARACTERS]
    _log.debug("connection with %s: client %r %r", context.peer, context.client_id, version)
    return HandshakeResponse(
        broker_version=services.version,
        cluster_id=services.cluster.cluster_id,
        node_id=services.cluster.node_id,
        max_frame_bytes=services.config.socket_request_max_bytes,
        apis=[ApiVersions(api.key, api.min_version, api.max_version) for api in APIS.values()],
    )
