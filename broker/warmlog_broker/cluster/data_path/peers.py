"""Connections between the brokers of a cluster, and how each proves to the other that it is one of them.

By a secret that only brokers have, as the password of the user PEER_NAME: each side proves by SCRAM that it knows it,
and none shows it. Or, on a listener with tls.client.auth, by a certificate whose principal is PEER_NAME. Nothing else
makes the sender of a request a broker.
"""

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable

from msgspec.structs import replace

from warmlog_broker.network.request import RequestContext
from warmlog_protocol import messages as m
from warmlog_protocol.errors import (
    ApiError,
    ClusterAuthorizationFailed,
    InvalidRequest,
    NotLeaderOrFollower,
    WarmlogError,
)
from warmlog_protocol.messages import HandshakeResponse
from warmlog_protocol.sasl.credential import SALT_BYTES
from warmlog_protocol.sasl.derivation import make_credential
from warmlog_protocol.sasl.scram import ClientExchange, ScramError, ServerExchange
from warmlog_protocol.wire.login import Login
from warmlog_transport.address import Address
from warmlog_transport.connection import Connection, cancel
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.retries import pause_s

PEER_PRINCIPAL = f"{m.USER_PREFIX}{m.PEER_NAME}"

_log = logging.getLogger(__name__)

OnChange = Callable[[bool], None]
"""Called with True when the connection is there, with False when it is lost or could not be made."""


class PeerOptions(ConnectionOptions):
    """How a broker connects to another one: it does not log in, also where clients have to, since PeerHello follows."""

    def login(self, _address: Address, _broker: HandshakeResponse) -> Login:
        yield from ()
        return 0.0


class Identity:
    """This broker in its cluster, and the secret by which brokers know one another; "" if certificates prove it."""

    def __init__(self, cluster_id: str, node: int, secret: str = "") -> None:
        self.cluster_id = cluster_id
        self.node = node
        self.secret = secret
        salt = hashlib.sha256(cluster_id.encode()).digest()[:SALT_BYTES]
        self._latest: dict[int, int] = {}
        """The last connection of each broker that has introduced itself."""
        self._credentials = [make_credential(m.PEER_MECHANISM, secret, salt=salt)] if secret else []

    def greet(self, context: RequestContext, request: m.PeerHelloRequest) -> m.PeerHelloResponse:
        """Take a step of another broker's introduction. InvalidRequest, ClusterAuthorizationFailed."""
        if request.cluster_id != self.cluster_id:
            raise InvalidRequest(f"broker {request.node_id} is of cluster {request.cluster_id!r}: this is another one")
        if request.to_node_id != self.node or request.node_id == self.node:
            raise InvalidRequest(f"this is broker {self.node}, and not the one that was expected at this address")
        life = context.life
        if not request.data:
            if context.authentication is not None or context.principal != PEER_PRINCIPAL:
                raise self._refusal(context)
            self._introduced(context, request.node_id)
            return m.PeerHelloResponse(b"", is_done=True)
        if not self._credentials:
            raise ClusterAuthorizationFailed("this broker has no cluster.secret.file: certificates prove who is one")
        exchange, life.introduction = life.introduction, None
        try:
            if not isinstance(exchange, ServerExchange):
                exchange = ServerExchange(m.PEER_MECHANISM, lambda _: self._credentials)
                data = exchange.first(request.data)
                life.introduction = exchange
                return m.PeerHelloResponse(data, is_done=False)
            data = exchange.final(request.data)
        except ScramError:
            raise self._refusal(context) from None
        self._introduced(context, request.node_id)
        return m.PeerHelloResponse(data, is_done=True)

    def _introduced(self, context: RequestContext, node: int) -> None:
        context.life.broker, context.life.max_in_flight = node, math.inf
        self._latest[node] = max(context.connection, self._latest.get(node, 0))

    def check_order(self, context: RequestContext) -> None:
        """NotLeaderOrFollower for a request by an earlier connection of a broker than its last one.

        It was sent again since. Of transactions that keep their epoch, nothing tells it from one of the next.
        """
        assert context.life.broker is not None
        if context.connection < self._latest.get(context.life.broker, 0):
            raise NotLeaderOrFollower(f"broker {context.life.broker} has a later connection: this request is late")

    def _refusal(self, context: RequestContext) -> ApiError:
        _log.warning("%s says that it is a broker of this cluster, and cannot prove it", context.peer)
        return ClusterAuthorizationFailed("this is not a broker of the cluster: its secret is another one")

    async def introduce(self, connection: Connection, to: int) -> None:
        """Prove to broker `to` that this is a broker, and see that it proves the same. WarmlogError."""
        hello = m.PeerHelloRequest(self.cluster_id, self.node, to)
        if not self.secret:
            await connection.call(hello, m.PeerHelloResponse)
            return
        exchange = ClientExchange(m.PEER_MECHANISM, m.PEER_NAME, self.secret)
        try:
            first = await connection.call(replace(hello, data=exchange.first()), m.PeerHelloResponse)
            final = await connection.call(replace(hello, data=exchange.final(first.data)), m.PeerHelloResponse)
            exchange.finish(final.data)
        except ScramError as error:
            raise ClusterAuthorizationFailed(f"broker {to} cannot prove that it is one: {error}") from None


class _Peer:
    """At most one connection to another broker, made again when it is wanted and lost."""

    def __init__(self, node: int, peers: "Peers") -> None:
        self.connection: Connection | None = None
        self.told: dict[OnChange, None] = {}
        self.attempt: asyncio.Task[None] | None = None
        self._node = node
        self._peers = peers
        self._failures = 0

    def want(self) -> None:
        if self.connection is None and self.attempt is None:
            self.attempt = asyncio.get_running_loop().create_task(self._connect(), name=f"connect to {self._node}")

    async def _connect(self) -> None:
        peers = self._peers
        connection: Connection | None = None
        try:
            await asyncio.sleep(pause_s(self._failures, peers.options))
            address = peers.address_of(self._node)
            if address is not None:
                connection = await Connection(address, peers.options, self._changed).open()
                await peers.identity.introduce(connection, self._node)
        except WarmlogError as error:
            self._failures += 1
            if self._failures == 2:
                _log.warning("broker %d cannot be reached: %s; trying again", self._node, error)
            if connection is not None:
                await connection.close()
            connection = None
        finally:
            self.attempt = None
        self.connection = connection if connection is not None and connection.is_open else None
        if self.connection is not None:
            self._failures = 0
        self._tell()

    def _changed(self) -> None:
        if self.connection is not None and not self.connection.is_open:
            self.connection = None
            self._tell()

    def _tell(self) -> None:
        for told in list(self.told):
            told(self.connection is not None)


class Peers:
    """The connections of this broker to the others."""

    def __init__(
        self, identity: Identity, options: ConnectionOptions, address_of: Callable[[int], Address | None]
    ) -> None:
        """`address_of` returns where a broker is now; None if it is not registered."""
        self.identity = identity
        self.options = options
        self.address_of = address_of
        self._peers: dict[int, _Peer] = {}

    def connection(self, node: int, *, on_change: OnChange) -> Connection | None:
        """Return the connection to a broker if there is one now; else try to get one, and tell how that ended."""
        peer = self._peer(node)
        peer.told[on_change] = None
        peer.want()
        return peer.connection

    async def connected(self, node: int) -> Connection | None:
        """Return the connection to a broker, after one attempt to get it if there is none."""
        peer = self._peer(node)
        peer.want()
        if peer.attempt is not None:
            await asyncio.wait([peer.attempt])
        return peer.connection

    def _peer(self, node: int) -> _Peer:
        peer = self._peers.get(node)
        if peer is None:
            peer = self._peers[node] = _Peer(node, self)
        return peer

    async def close(self) -> None:
        peers, self._peers = list(self._peers.values()), {}
        for peer in peers:
            peer.told.clear()
            await cancel(peer.attempt)
            if peer.connection is not None:
                await peer.connection.close()
