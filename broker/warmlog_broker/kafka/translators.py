"""The table of translators: what turns a request of Kafka's into calls of warmlog's handlers, and back.

A translator is a function in the named module that has the name of its API: `describe_cluster(kafka, context, request)`
for DescribeCluster. The request is the struct of `messages.table` and says in which `api_version` it came. A translator
calls handlers by `Kafka.call`, with the rights and quotas of everybody, and changes what they return by `then`; if it
needs several of them, it awaits `Kafka.ask`. It may raise an ApiError: the response is that of `responses.failed` then,
or of `describe_cluster_failed(request, error)` in the same module.

What is in the table is what ApiVersions offers.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

from msgspec import Struct

from warmlog_broker.handlers.context import Services
from warmlog_broker.kafka.converted import ConvertedBatches
from warmlog_broker.kafka.responses import Result, answered, failed, has_items, refused
from warmlog_broker.network.request import BatchSource, Endpoint, RequestContext, Response, then
from warmlog_protocol.errors import ApiError
from warmlog_protocol.kafka.schema import API, Api
from warmlog_protocol.messages import Message

MODULES: Mapping[str, tuple[str, ...]] = {
    "cluster": ("ApiVersions", "Metadata"),
    "access": ("SaslHandshake", "SaslAuthenticate"),
    "data.produce": ("Produce", "InitProducerId"),
    "data.fetch": ("Fetch",),
    "data.offsets": ("ListOffsets", "OffsetForLeaderEpoch", "DeleteRecords"),
    "groups.coordinators": ("FindCoordinator",),
    "groups.classic": ("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup"),
    "groups.consumer": ("ConsumerGroupHeartbeat",),
    "groups.offsets": ("OffsetCommit", "OffsetFetch", "OffsetDelete"),
    "groups.listing": ("ListGroups", "DescribeGroups", "ConsumerGroupDescribe", "DeleteGroups"),
    "transactions": (
        "AddPartitionsToTxn",
        "AddOffsetsToTxn",
        "EndTxn",
        "TxnOffsetCommit",
        "ListTransactions",
        "DescribeTransactions",
        "DescribeProducers",
    ),
    "admin.topics": ("CreateTopics", "DeleteTopics", "CreatePartitions"),
    "admin.configs": ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"),
    "admin.access": (
        "DescribeAcls",
        "CreateAcls",
        "DeleteAcls",
        "DescribeClientQuotas",
        "AlterClientQuotas",
        "DescribeUserScramCredentials",
        "AlterUserScramCredentials",
    ),
    "admin.cluster": ("DescribeCluster", "DescribeLogDirs", "AlterReplicaLogDirs"),
    "admin.replicas": ("AlterPartitionReassignments", "ListPartitionReassignments", "ElectLeaders"),
}
"""The APIs of each module."""
TRANSLATORS: Mapping[str, str] = {name: module for module, names in MODULES.items() for name in names}
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

    def pass_on(self, context: RequestContext, api_name: str, request: Any, message: Message) -> Response:
        """Return the response to `request` with the results of a message: one for each item, in the same order."""
        return then(self.call(context, message), lambda response: answered(api_name, request, _results(response)))

    async def ask(self, context: RequestContext, message: Message) -> Any:
        """Return the response to a message that no handler defers, once it is there. Raises ApiError."""
        response = self.call(context, message)
        while isinstance(response, Awaitable):
            response = await response
        assert isinstance(response, Message)
        return response

    async def ask_for_each(
        self,
        context: RequestContext,
        items: Iterable[Any],
        translate: Callable[[Any], Any],
        message: Callable[[list[Any]], Message] | None,
    ) -> list[Any]:
        """Return a result for each item, in order: the error of `translate`, or what became of its message.

        Nothing is asked for if all items are refused, or if `message` is None: the others have no error then.
        """
        results: list[Any] = []
        wanted: dict[int, Any] = {}
        for index, item in enumerate(items):
            results.append(Result())
            try:
                wanted[index] = translate(item)
            except ApiError as error:
                results[index] = refused(error)
        if wanted and message is not None:
            response = await self.ask(context, message(list(wanted.values())))
            for index, result in zip(wanted, _results(response), strict=True):
                results[index] = result
        return results

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of a topic that is named by its id; None if there is none."""
        topic = self.services.topics.find_by_id(topic_id)
        return None if topic is None else topic.name


class Served(Struct, frozen=True):
    """The APIs in the table, by their keys."""

    apis: Mapping[int, Api]
    endpoints: Mapping[int, Endpoint]

    def keeps(self, api: Api, version: int) -> bool:
        """Whether `failed` needs the request."""
        return _failure_of(api.name) is not None or has_items(api, version)

    def failed(self, api: Api, version: int, request: Any, error: ApiError) -> Message:
        """Return the response to a request that failed as a whole."""
        own = _failure_of(api.name)
        return failed(api, version, request, error) if own is None else own(request, error)


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


def _results(response: Any) -> list[Any]:
    """Return the first field of a response of warmlog's: the results of its items."""
    results: list[Any] = getattr(response, response.__struct_fields__[0])
    return results


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
