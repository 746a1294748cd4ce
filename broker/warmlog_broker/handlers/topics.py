"""CreateTopics, DeleteTopics, AlterTopics, CreatePartitions and DescribeConfigs.

The last returns the effective settings of topics or of the broker. The responses to the others are sent once the
metadata log is flushed.
"""

from collections.abc import Iterable, Mapping

from warmlog_broker.config.broker_config import BROKER_SETTINGS, shown
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import failed_name, handle_all
from warmlog_broker.handlers.metadata import NO_TOPIC_ID
from warmlog_broker.network.request import RequestContext, Response
from warmlog_broker.storage.config import TOPIC_SETTINGS
from warmlog_broker.topics.topics import Topic
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest

BROKER_NAME = ""
OF_TOPIC, OF_BROKER, BUILT_IN = "topic", "broker", "default"
"""The origins of a setting: see ConfigValue."""
MAX_DESCRIBED_TOPICS = 1000
"""The most in one request: each takes 3 KiB of the response and 30 µs."""


async def create_topics(services: Services, _context: RequestContext, request: m.CreateTopicsRequest) -> Response:
    """Create each topic independently: an error of one does not affect the others."""
    results = await services.topics.create(request.topics, validate_only=request.validate_only)
    created = []
    for new, result in zip(request.topics, results, strict=True):
        if isinstance(result, ApiError):
            created.append(m.CreatedTopic(result.code, str(result), new.name))
        else:
            topic_id = NO_TOPIC_ID if request.validate_only else result.topic_id
            created.append(
                m.CreatedTopic(ErrorCode.NONE, "", new.name, topic_id, result.partitions, result.replication_factor)
            )
    return m.CreateTopicsResponse(created)


async def delete_topics(services: Services, _context: RequestContext, request: m.DeleteTopicsRequest) -> Response:
    async def delete(name: str) -> m.NamedResult:
        await services.topics.delete(name)
        return m.NamedResult(ErrorCode.NONE, "", name)

    return m.DeleteTopicsResponse(await handle_all(services, request.names, delete, failed_name(m.NamedResult)))


async def alter_topics(services: Services, _context: RequestContext, request: m.AlterTopicsRequest) -> Response:
    """Change the settings of each topic independently."""
    results = await services.topic_changes.alter(request.topics, validate_only=request.validate_only)
    return m.AlterTopicsResponse(_named(request.topics, results))


async def create_partitions(
    services: Services, _context: RequestContext, request: m.CreatePartitionsRequest
) -> m.CreatePartitionsResponse:
    """Add partitions to each topic independently."""
    results = await services.topic_changes.add_partitions(request.topics, validate_only=request.validate_only)
    return m.CreatePartitionsResponse(_named(request.topics, results))


def _named(
    topics: Iterable[m.AlteredTopic | m.NewPartitions], errors: Iterable[ApiError | None]
) -> list[m.NamedResult]:
    results = [(ErrorCode.NONE, "") if error is None else (error.code, str(error)) for error in errors]
    return [m.NamedResult(*result, topic.name) for topic, result in zip(topics, results, strict=True)]


async def describe_configs(
    services: Services, _context: RequestContext, request: m.DescribeConfigsRequest
) -> m.DescribeConfigsResponse:
    """Return the settings of the named topics, or of the broker if none is named."""
    if len(request.topics) > MAX_DESCRIBED_TOPICS:
        raise InvalidRequest(
            f"the settings of {len(request.topics)} topics in one request, {MAX_DESCRIBED_TOPICS} are allowed"
        )
    if not request.topics:
        return m.DescribeConfigsResponse([_describe_broker(services)])

    async def describe(name: str) -> m.DescribedConfigs:
        return _describe_topic(services.topics.get(name), services.config.topic_settings)

    return m.DescribeConfigsResponse(
        await handle_all(services, request.topics, describe, failed_name(m.DescribedConfigs))
    )


def _describe_topic(topic: Topic, defaults: Mapping[str, str]) -> m.DescribedConfigs:
    """A setting is a default unless the topic itself sets it; `defaults` are those that the operator has changed."""
    values = topic.config.to_settings()
    own = topic.entry.settings
    entries = [
        m.ConfigValue(
            setting.name,
            values[setting.name],
            setting.name not in own,
            setting.sentence,
            OF_TOPIC if setting.name in own else _default_origin(setting.name in defaults),
            is_dynamic=setting.is_dynamic,
        )
        for setting in TOPIC_SETTINGS
    ]
    return m.DescribedConfigs(ErrorCode.NONE, "", topic.name, entries)


def _describe_broker(services: Services) -> m.DescribedConfigs:
    config = services.config
    values, defaults = config.to_settings(), config.topic_defaults.to_settings()
    sources = config.sources()
    rows = [(row, values[row.name], values[row.name] != row.format(row.default)) for row in BROKER_SETTINGS]
    rows += [(row, defaults[row.name], row.name in config.topic_settings) for row in TOPIC_SETTINGS]
    entries = [
        m.ConfigValue(
            row.name,
            shown(row.name, value),
            not is_set,
            row.sentence,
            _default_origin(is_set),
            source=sources[row.name].origin if row.name in sources else "",
            place=sources[row.name].place if row.name in sources else "",
            is_dynamic=row.is_dynamic,
        )
        for row, value, is_set in rows
    ]
    return m.DescribedConfigs(ErrorCode.NONE, "", BROKER_NAME, entries)


def _default_origin(is_set_by_operator: bool) -> str:
    return OF_BROKER if is_set_by_operator else BUILT_IN


async def alter_broker_config(
    services: Services, context: RequestContext, request: m.AlterBrokerConfigRequest
) -> m.AlterBrokerConfigResponse:
    return m.AlterBrokerConfigResponse(await services.broker_changes.alter(request, by=context.principal))
