"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs, for topics and for the broker."""

import asyncio
import logging
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from warmlog_broker.config.broker_config import SETTINGS, Origin
from warmlog_broker.kafka.admin.setting_names import (
    BROKER_NAMES,
    FOREIGN_BROKER_SETTINGS,
    FOREIGN_DYNAMIC_SETTINGS,
    FOREIGN_TOPIC_SETTINGS,
    REPLICATION_FACTORS,
)
from warmlog_broker.kafka.responses import Result, answered, refused
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.metadata.store import DEFAULT_REPLICAS
from warmlog_broker.network.request import RequestContext
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidConfig, InvalidRequest, error_from_code
from warmlog_protocol.kafka.schema import API

TOPIC, BROKER = 2, 4
"""Types of resources, as `ConfigResource.Type` in Kafka's clients."""
OF_TOPIC, OF_ALTERED_BROKER, OF_ALTERED_DEFAULT, OF_STATIC_BROKER, OF_DEFAULT = 1, 2, 3, 4, 5
"""Where a value comes from, as `ConfigEntry.ConfigSource` there."""
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
"""What IncrementalAlterConfigs does to a setting."""
ALTERED: dict[str, int] = {Origin.ALTERED: OF_ALTERED_BROKER, Origin.ALTERED_FOR_ALL: OF_ALTERED_DEFAULT}
KINDS = {"boolean": 1, "text": 2, "integer": 5, "number": 6, "list": 7}
"""The types of settings, as `ConfigEntry.ConfigType` there. Integers are LONG."""
STRING = 2

_Described = API["DescribeConfigs"].response
_Entry = _Described.DescribeConfigsResourceResult
_log = logging.getLogger(__name__)


def without_foreign(
    context: RequestContext, subject: str, configs: Mapping[str, str], known: Container[str] = FOREIGN_TOPIC_SETTINGS
) -> dict[str, str]:
    """Return settings without those of Kafka's, `known`, that have no effect here, which are named in the log."""
    foreign = {name: value for name, value in configs.items() if name in known and name not in SETTINGS}
    defaults = FOREIGN_TOPIC_SETTINGS
    told = ", ".join(f"{name}={value[:40]}" for name, value in foreign.items() if value != defaults.get(name))
    if told:
        _log.info("%s set for %s what has no effect here: %s", context.peer, subject, told)
    return {name: value for name, value in configs.items() if name not in foreign}


async def topic_entries(
    kafka: Kafka, context: RequestContext, topics: Sequence[str]
) -> dict[str, list[Any] | ApiError]:
    """Return the settings of each topic as Kafka's entries, or why they cannot be told."""
    if not topics:
        return {}
    described = await kafka.ask(context, m.DescribeConfigsRequest(list(dict.fromkeys(topics))))
    found: dict[str, list[Any] | ApiError] = {}
    for each in described.resources:
        if each.error_code != ErrorCode.NONE:
            found[each.name] = error_from_code(each.error_code, each.error_message)
            continue
        own = [_entry(_in_numbers(kafka, each.name, value), is_broker=False) for value in each.entries]
        found[each.name] = _with_foreign(own, FOREIGN_TOPIC_SETTINGS)
    return found


def _in_numbers(kafka: Kafka, topic_name: str, value: m.ConfigValue) -> m.ConfigValue:
    """Return `min.insync.replicas` as tools compare it: the default, 0, is the majority of a topic's replicas."""
    topic = kafka.services.topics.find(topic_name)
    if topic is None or value.name != "min.insync.replicas" or value.value != "0":
        return value
    replicas = kafka.services.cluster.leadership(topic.topic_id, 0, topic.local.get(0)).replicas
    return replace(value, value=str(len(replicas) // 2 + 1))


def _node_id(kafka: Kafka, name: str) -> str:
    """Return the number of this broker. InvalidRequest if `name` is another one; empty, it is the default of all.

    Clients send what is about a broker to that one.
    """
    node_id = str(kafka.services.cluster.node_id)
    if name not in ("", node_id):
        raise InvalidRequest(f"broker {name[:40]!r}, and this is {node_id}: each broker is asked for its own settings")
    return node_id


async def _broker_entries(kafka: Kafka, context: RequestContext, name: str) -> list[Any]:
    """Return the settings of the broker by its number; under an empty name those of all that were altered."""
    node_id = _node_id(kafka, name)
    (described,) = (await kafka.ask(context, m.DescribeConfigsRequest([]))).resources
    values = {value.name: value for value in described.entries}
    if not name:
        altered = [(values[own], text) for own, text in kafka.services.broker_changes.of_all.items() if own in values]
        values = {each.name: replace(each, value=text, source=Origin.ALTERED_FOR_ALL) for each, text in altered}
    names = [each for each in BROKER_NAMES.items() if each[0] not in values and each[1] in values]
    aliases = [replace(values[own], name=of_kafka) for of_kafka, own in names]
    entries = [_entry(value, is_broker=True) for value in (*values.values(), *aliases)]
    if not name:
        return entries
    directories = ",".join(map(str, kafka.services.config.data_paths))
    factor = str(min(DEFAULT_REPLICAS, len(kafka.services.cluster.brokers(context.listener))))
    more = {"broker.id": node_id, "log.dirs": directories, **dict.fromkeys(REPLICATION_FACTORS, factor)}
    return _with_foreign(entries, {**FOREIGN_BROKER_SETTINGS, **more})


def _entry(value: m.ConfigValue, *, is_broker: bool) -> Any:
    if value.origin == "topic":
        source = OF_TOPIC
    elif value.source in ALTERED:
        source = ALTERED[value.source]
    else:
        source = OF_DEFAULT if value.is_default and value.origin != "broker" else OF_STATIC_BROKER
    own = SETTINGS.get(BROKER_NAMES.get(value.name, value.name))
    return _Entry(
        value.name,
        value.value,
        is_broker and not value.is_dynamic,
        source,
        synonyms=[_Described.DescribeConfigsSynonym(value.name, value.value, source)],
        config_type=STRING if own is None else KINDS[own.kind],
        documentation=value.description,
    )


def _with_foreign(entries: list[Any], settings: Mapping[str, str]) -> list[Any]:
    """Return entries with those of settings that have no effect here, unless there are such entries."""
    known = {each.name for each in entries}
    more = {name: text for name, text in settings.items() if name not in known}
    return entries + [_Entry(name, text, False, OF_DEFAULT, config_type=STRING) for name, text in more.items()]


async def describe_configs(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Describe the settings of topics and of the broker, all or those that are named; each resource once."""
    resources = {(each.resource_type, each.resource_name): each for each in request.resources}.values()
    topics = [each.resource_name for each in resources if each.resource_type == TOPIC]
    of_topics = await topic_entries(kafka, context, topics)
    results = []
    for resource in resources:
        name, kind = resource.resource_name, resource.resource_type
        try:
            if kind not in (TOPIC, BROKER):
                text = f"resources of type {kind} have no settings here: topics (2) and the broker (4) have"
                raise InvalidRequest(text)
            entries = of_topics[name] if kind == TOPIC else await _broker_entries(kafka, context, name)
            if isinstance(entries, ApiError):
                raise entries
        except ApiError as error:
            results.append(_Described.DescribeConfigsResult(error.code, str(error), kind, name))
            continue
        keys = resource.configuration_keys
        await asyncio.sleep(0)
        shown = [_shown(each, request) for each in entries if keys is None or each.name in keys]
        results.append(_Described.DescribeConfigsResult(0, None, kind, name, shown))
    return _Described(results=results)


def _shown(entry: Any, request: Any) -> Any:
    """Return an entry with what was asked for."""
    synonyms = entry.synonyms if request.include_synonyms else []
    documentation = entry.documentation if request.include_documentation else None
    return replace(entry, synonyms=synonyms, documentation=documentation)


Changes = tuple[dict[str, str], list[str]]
"""The settings of one resource to be set, and to be unset."""


async def alter_configs(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Give each resource the settings that are named, and the defaults for all others."""

    def changes(resource: Any) -> Changes:
        wanted = {each.name: _value(each) for each in resource.configs}
        given = {BROKER_NAMES.get(name, name) for name in wanted}
        return wanted, [name for name in _own_settings(kafka, resource) if name not in given]

    return await _alter(kafka, context, "AlterConfigs", request, changes)


async def incremental_alter_configs(kafka: Kafka, context: RequestContext, request: Any) -> m.Message:
    """Change the settings that are named, and leave all others as they are."""

    def changes(resource: Any) -> Changes:
        wanted: dict[str, str] = {}
        unset = []
        for each in resource.configs:
            if each.name in wanted or each.name in unset:
                raise InvalidRequest(f"{each.name} is in the request more than once")
            if each.config_operation == DELETE:
                unset.append(each.name)
            elif each.config_operation == SET:
                wanted[each.name] = _value(each)
            else:
                wanted[each.name] = _changed_list(kafka, resource, each)
        return wanted, unset

    return await _alter(kafka, context, "IncrementalAlterConfigs", request, changes)


def _value(config: Any) -> str:
    if config.value is None:
        raise InvalidRequest(f"{config.name}: null is no value")
    value: str = config.value
    return value


def _own_settings(kafka: Kafka, resource: Any) -> list[str]:
    """Return the names of what a topic sets itself, or what was altered of the broker."""
    if resource.resource_type == TOPIC:
        topic = kafka.services.topics.find(resource.resource_name)
        return [] if topic is None else list(topic.entry.settings)
    if not resource.resource_name:
        return list(kafka.services.broker_changes.of_all)
    given = kafka.services.config.given
    return [name for name, each in given.items() if each.origin == Origin.ALTERED]


def _changed_list(kafka: Kafka, resource: Any, config: Any) -> str:
    """Return the value of a list with items more or fewer, as effective now."""
    name = BROKER_NAMES.get(config.name, config.name)
    own = SETTINGS.get(name)
    if config.config_operation not in (APPEND, SUBTRACT):
        raise InvalidRequest(f"operation {config.config_operation}: 0 to 3 are known")
    if own is None or own.kind != "list":
        raise InvalidConfig(f"{config.name} is not a list: nothing can be appended to it or taken from it")
    topic = kafka.services.topics.find(resource.resource_name) if resource.resource_type == TOPIC else None
    effective = kafka.services.config.topic_defaults if topic is None else topic.config
    items = [each for each in effective.to_settings()[name].split(",") if each]
    wanted = [each.strip() for each in _value(config).split(",")]
    if config.config_operation == APPEND:
        return ",".join(dict.fromkeys(items + wanted))
    return ",".join(each for each in items if each not in wanted)


async def _alter(
    kafka: Kafka, context: RequestContext, api_name: str, request: Any, changes: Callable[[Any], Changes]
) -> m.Message:
    """Alter each resource independently."""
    results: list[Any] = [Result()] * len(request.resources)
    topics: dict[int, m.AlteredTopic] = {}
    for index, resource in enumerate(request.resources):
        try:
            wanted, unset = changes(resource)
            if resource.resource_type == TOPIC:
                name = resource.resource_name
                own = without_foreign(context, f"topic {name!r}", wanted)
                kept = [each for each in unset if each in SETTINGS or each not in FOREIGN_TOPIC_SETTINGS]
                topics[index] = m.AlteredTopic(name, own, kept)
            elif resource.resource_type == BROKER:
                _node_id(kafka, resource.resource_name)
                await asyncio.sleep(0)  # a change that is only validated takes 0.7 ms
                altered = m.AlterBrokerConfigRequest(wanted, unset, request.validate_only, not resource.resource_name)
                await _alter_broker(kafka, context, altered)
            else:
                raise InvalidRequest(f"resources of type {resource.resource_type} have no settings here")
        except ApiError as error:
            results[index] = refused(error)
    if topics:
        altered = await kafka.ask(context, m.AlterTopicsRequest(list(topics.values()), request.validate_only))
        for index, each in zip(topics, altered.topics, strict=True):
            results[index] = each
    return answered(api_name, request, results)


async def _alter_broker(kafka: Kafka, context: RequestContext, wanted: m.AlterBrokerConfigRequest) -> None:
    kept = without_foreign(context, "the broker", wanted.set, FOREIGN_DYNAMIC_SETTINGS)
    own = {BROKER_NAMES.get(name, name): text for name, text in kept.items()}
    foreign = FOREIGN_DYNAMIC_SETTINGS - SETTINGS.keys()
    names, validate_only = [BROKER_NAMES.get(name, name) for name in wanted.unset if name not in foreign], False
    if (wanted.set or wanted.unset) and not own and not names:  # nothing changes, but the right to alter is checked
        names, validate_only = ["num.partitions"], True
    await kafka.ask(context, replace(wanted, set=own, unset=names, validate_only=wanted.validate_only or validate_only))
