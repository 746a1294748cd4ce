"""The table of translators: what turns a request of Kafka's into calls of warmlog's handlers, and back.

A translator is a function in the named module that has the name of its API: `describe_cluster(kafka, context, request)`
for DescribeCluster. The request is the struct of `messages.table` and says in which `api_version` it came. A translator
calls handlers by `Kafka.call`, with the rights and quotas of everybody, and changes what they return by `then`; if it
needs several of them, it awaits `Kafka.ask`. It may raise an ApiError: `describe_cluster_failed(request, error)` in the
same module returns the response then. Without that function, the response has an error code of its own.

What is in the table is what ApiVersions offers.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

from msgspec import Struct

from warmlog_broker.handlers.context import Services
from warmlog_broker.kafka.converted import ConvertedBatches
from warmlog_broker.network.request import BatchSource, Deferred, Endpoint, RequestContext, Response
from warmlog_protocol.errors import ApiError
from warmlog_protocol.kafka.schema import API, Api
from warmlog_protocol.messages import Message

TRANSLATORS: Mapping[str, str] = {
    "ApiVersions": "cluster",
    "Metadata": "cluster",
    "SaslHandshake": "access",
    "SaslAuthenticate": "access",
    "Produce": "data.produce",
    "InitProducerId": "data.produce",
    "Fetch": "data.fetch",
    "ListOffsets": "data.offsets",
    "OffsetForLeaderEpoch": "data.offsets",
    "DeleteRecords": "data.offsets",
    "FindCoordinator": "groups.coordinators",
    "JoinGroup": "groups.classic",
    "SyncGroup": "groups.classic",
    "Heartbeat": "groups.classic",
    "LeaveGroup": "groups.classic",
    "ConsumerGroupHeartbeat": "groups.consumer",
    "OffsetCommit": "groups.offsets",
    "OffsetFetch": "groups.offsets",
    "OffsetDelete": "groups.offsets",
    "ListGroups": "groups.listing",
    "DescribeGroups": "groups.listing",
    "ConsumerGroupDescribe": "groups.listing",
    "DeleteGroups": "groups.listing",
    "AddPartitionsToTxn": "transactions",
    "AddOffsetsToTxn": "transactions",
    "EndTxn": "transactions",
    "TxnOffsetCommit": "transactions",
    "ListTransactions": "transactions",
    "DescribeTransactions": "transactions",
    "DescribeProducers": "transactions",
    "CreateTopics": "admin.topics",
    "DeleteTopics": "admin.topics",
    "CreatePartitions": "admin.topics",
    "DescribeConfigs": "admin.configs",
    "AlterConfigs": "admin.configs",
    "IncrementalAlterConfigs": "admin.configs",
    "DescribeAcls": "admin.access",
    "CreateAcls": "admin.access",
    "DeleteAcls": "admin.access",
    "DescribeClientQuotas": "admin.access",
    "AlterClientQuotas": "admin.access",
    "DescribeUserScramCredentials": "admin.access",
    "AlterUserScramCredentials": "admin.access",
    "DescribeCluster": "admin.cluster",
    "ListPartitionReassignments": "admin.cluster",
    "DescribeLogDirs": "admin.cluster",
    "AlterReplicaLogDirs": "admin.cluster",
}
"""The module of each API."""
TRAITS: Mapping[str, Mapping[str, bool]] = {
    "ApiVersions": {"comes_first": True},
    "SaslHandshake": {"comes_first": True},
    "SaslAuthenticate": {"comes_first": True},
    "Produce": {"takes_batches": True, "is_pipelined": True, "finishes_first": True},
    "Fetch": {"is_pipelined": True},
    "JoinGroup": {"is_pipelined": True},
    "SyncGroup": {"is_pipelined": True},
    "Heartbeat": {"is_heartbeat": True},
    "ConsumerGroupHeartbeat": {"is_heartbeat": True},
}
"""The fields of `Endpoint` that are set. What waits for other clients is pipelined: a connection is read meanwhile, and
so its end is seen."""


class Kafka(Struct, frozen=True):
    """What translators use."""

    services: Services
    endpoints: Mapping[type[Message], Endpoint]
    """Of warmlog's handlers, by the type of the request."""
    converted: ConvertedBatches

    def call(self, context: RequestContext, message: Message, *batches: BatchSource) -> Response:
        """Return what the handler of this kind of message returns: a response, at once or later. Raises ApiError."""
        return self.endpoints[type(message)].handle(context, message, *batches)

    async def ask(self, context: RequestContext, message: Message) -> Any:
        """Return the response to a message once it is there. Raises ApiError."""
        response = self.call(context, message)
        while not isinstance(response, Message):
            if isinstance(response, Deferred):
                response = await _result(response)
            else:
                assert not isinstance(response, Struct), "batches are for the client, not for a translator"
                assert response is not None
                response = await response
        return response

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of a topic that is named by its id; None if there is none."""
        topic = self.services.topics.find_by_id(topic_id)
        return None if topic is None else topic.name


class Served(Struct, frozen=True):
    """The APIs in the table, by their keys."""

    apis: Mapping[int, Api]
    endpoints: Mapping[int, Endpoint]

    def keeps(self, api: Api) -> bool:
        """Whether `failed` needs the request."""
        return _failure_of(api.name) is not None

    def failed(self, api: Api, request: Any, error: ApiError) -> Message:
        """Return the response to a request that failed as a whole."""
        own = _failure_of(api.name)
        if own is not None:
            return own(request, error)
        texts = {"error_message": str(error)} if "error_message" in api.response.__struct_fields__ else {}
        answer: Message = api.response(error_code=error.code, **texts)
        return answer


def bind_translators(services: Services, endpoints: Mapping[type[Message], Endpoint]) -> Served:
    """Return the APIs that one broker serves; `endpoints` are those of its handlers, as clients may use them."""
    config = services.config
    converted = ConvertedBatches(
        config.kafka_converted_cache_bytes, config.batch_max_decompressed_bytes, services.counters.conversions
    )
    kafka = Kafka(services, endpoints, converted)
    apis = [API[name] for name in TRANSLATORS]
    return Served({api.key: api for api in apis}, {api.key: _bound(kafka, api.name) for api in apis})


def translator_of(name: str) -> Callable[..., Response]:
    """Import a module of translators, and return that of an API."""
    translator: Callable[..., Response] = getattr(
        import_module(f"{__package__}.{TRANSLATORS[name]}"), _function_name(name)
    )
    return translator


@cache
def _failure_of(name: str) -> Callable[[Any, ApiError], Message] | None:
    """Import a module of translators, and return the function of an API that has the response to an error, if any."""
    module = import_module(f"{__package__}.{TRANSLATORS[name]}")
    found: Callable[[Any, ApiError], Message] | None = getattr(module, f"{_function_name(name)}_failed", None)
    return found


def _bound(kafka: Kafka, name: str) -> Endpoint:
    def handle_first(*arguments: Any) -> Response:
        endpoint.handle = partial(translator_of(name), kafka)
        return endpoint.handle(*arguments)

    endpoint = Endpoint(name, handle_first, **TRAITS.get(name, {}))
    return endpoint


def _function_name(api_name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", api_name).lower()


def _result(deferred: Deferred) -> "asyncio.Future[Response]":
    """Return a future of what the response is."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Response] = loop.create_future()
    owner = _Owner(done)
    if deferred.deadline_s < float("inf"):
        timer = loop.call_at(deferred.deadline_s, deferred.expire)
        done.add_done_callback(lambda _: timer.cancel())
    deferred.begin(owner)
    return done


class _Owner(Struct, frozen=True):
    """The request runner's place, for a response that a translator waits for."""

    done: "asyncio.Future[Response]"

    def end(self, deferred: Deferred, work: Callable[[], Response]) -> None:  # noqa: ARG002
        if self.done.done():
            return
        try:
            self.done.set_result(work())
        except Exception as error:
            self.done.set_exception(error)
