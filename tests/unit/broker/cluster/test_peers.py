"""How a broker proves to another one that it is one of the cluster: nothing else in a request makes it one."""

import math
from typing import Any, cast

import pytest
from msgspec.structs import replace

from warmlog_broker.cluster.data_path.peers import PEER_PRINCIPAL, Identity
from warmlog_broker.config.listeners import DEFAULT_LISTENER
from warmlog_broker.network.request import ANONYMOUS_PRINCIPAL, Life, RequestContext
from warmlog_broker.security.authentication import Authentication
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ClusterAuthorizationFailed, InvalidRequest, NotLeaderOrFollower
from warmlog_transport.connection import Connection


def context_of(principal: str = ANONYMOUS_PRINCIPAL) -> RequestContext:
    return RequestContext(DEFAULT_LISTENER, "c", principal, "127.0.0.1:4711", life=Life(max_in_flight=1))


class Wire:
    """A connection to a broker, without sockets."""

    def __init__(self, broker: Identity, context: RequestContext) -> None:
        self.broker, self.context = broker, context

    async def call(self, message: m.PeerHelloRequest, _expected: type[m.PeerHelloResponse]) -> m.PeerHelloResponse:
        return self.broker.greet(self.context, message)


async def introduce(
    one: Identity, other: Identity, context: RequestContext | None = None, to: int = 2
) -> RequestContext:
    """Returns what broker `other` knows of the connection then."""
    context = context or context_of()
    await one.introduce(cast("Connection", Wire(other, context)), to)
    return context


async def test_a_broker_with_the_secret_is_one() -> None:
    context = await introduce(Identity("c", 1, "s3cret"), Identity("c", 2, "s3cret"))
    assert context.life.broker == 1
    assert context.life.max_in_flight == math.inf, "or a report of a flush would wait for markers that wait for it"


async def test_a_request_by_an_earlier_connection_than_the_last_one_is_late() -> None:
    broker, other = Identity("c", 1, "s3cret"), Identity("c", 2, "s3cret")
    first = await introduce(broker, other, replace(context_of(), connection=7))
    other.check_order(first)
    second = await introduce(broker, other, replace(context_of(), connection=9))
    other.check_order(second)
    with pytest.raises(NotLeaderOrFollower, match="broker 1 has a later connection"):
        other.check_order(first)
    third = await introduce(Identity("c", 3, "s3cret"), other, replace(context_of(), connection=8))
    other.check_order(third)


async def test_who_has_another_secret_is_none_on_either_side() -> None:
    context = context_of()
    with pytest.raises(ClusterAuthorizationFailed, match="its secret is another one"):
        await introduce(Identity("c", 1, "guessed"), Identity("c", 2, "s3cret"), context)
    assert (context.life.broker, context.life.max_in_flight) == (None, 1)

    class Pretender(Identity):
        def greet(self, context: RequestContext, request: m.PeerHelloRequest) -> m.PeerHelloResponse:
            response = super().greet(context, request)
            return replace(response, data=b"v=AAAA") if response.is_done else response

    with pytest.raises(ClusterAuthorizationFailed, match="broker 2 cannot prove"):
        await introduce(Identity("c", 1, "s3cret"), Pretender("c", 2, "s3cret"))


async def test_a_proof_that_was_overheard_proves_nothing() -> None:
    one, other = Identity("c", 1, "s3cret"), Identity("c", 2, "s3cret")
    sent: list[m.PeerHelloRequest] = []

    class Overheard(Wire):
        async def call(self, message: m.PeerHelloRequest, expected: Any) -> m.PeerHelloResponse:
            sent.append(message)
            return await super().call(message, expected)

    await one.introduce(cast("Connection", Overheard(other, context_of())), 2)
    context = context_of()
    other.greet(context, sent[0])
    with pytest.raises(ClusterAuthorizationFailed):
        other.greet(context, sent[1])
    with pytest.raises(ClusterAuthorizationFailed):
        other.greet(context_of(), sent[1])
    assert context.life.broker is None


async def test_a_certificate_proves_it_only_where_certificates_identify() -> None:
    one, other = Identity("c", 1), Identity("c", 2)
    context = await introduce(one, other, context_of(PEER_PRINCIPAL))
    assert context.life.broker == 1
    by_password = replace(context_of(PEER_PRINCIPAL), authentication=cast("Authentication", object()))
    for context in (context_of(), by_password):
        with pytest.raises(ClusterAuthorizationFailed):
            await introduce(one, other, context)
        assert context.life.broker is None


@pytest.mark.parametrize(
    ("one", "to", "says"),
    [
        (Identity("another", 1, "s3cret"), 2, "of cluster 'another'"),
        (Identity("c", 2, "s3cret"), 2, "this is broker 2"),
        (Identity("c", 1, "s3cret"), 3, "not the one that was expected"),
    ],
)
async def test_a_broker_of_another_cluster_or_address_is_told_so(one: Identity, to: int, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        await introduce(one, Identity("c", 2, "s3cret"), to=to)
