"""CreateTopics, DeleteTopics and DescribeConfigs.

The responses to the first two are sent once the metadata log is flushed. The third returns the effective settings of
topics or of the broker.
"""

from warmlog_broker.config.broker_config import BROKER_SETTINGS
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.handlers.metadata import NO_TOPIC_ID
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.replica.topics import Topic
from warmlog_broker.storage.config import TOPIC_SETTINGS
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest
from warmlog_protocol.messages import (
    ConfigEntry,
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletedTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribedConfigs,
)

BROKER_NAME = ""
MAX_DESCRIBED_TOPICS = 1000
"""The most in one request: each takes 3 KiB of the response and 30 µs."""


async def create_topics(
    services: Services, _context: RequestContext, request: CreateTopicsRequest
) -> CreateTopicsResponse:
    """Create each topic independently: an error of one does not affect the others."""
    refusal = services.write_refusal()
    if refusal is not None:
        raise refusal
    results = await services.topics.create(request.topics, validate_only=request.validate_only)
    created = []
    for new, result in zip(request.topics, results, strict=True):
        if isinstance(result, ApiError):
            created.append(CreatedTopic(result.code, str(result), new.name, NO_TOPIC_ID, 0))
        else:
            topic_id = NO_TOPIC_ID if request.validate_only else result.topic_id
            created.append(CreatedTopic(ErrorCode.NONE, "", new.name, topic_id, result.partitions))
    return CreateTopicsResponse(created)


async def delete_topics(
    services: Services, context: RequestContext, request: DeleteTopicsRequest
) -> DeleteTopicsResponse:
    """Delete each topic independently."""

    async def delete(name: str) -> DeletedTopic:
        await services.topics.delete(name)
        return DeletedTopic(ErrorCode.NONE, "", name)

    items = Items(services, context, "DeleteTopics")
    return DeleteTopicsResponse(
        await items.handle_all(request.names, delete, lambda name, error: DeletedTopic(error.code, str(error), name))
    )


async def describe_configs(
    services: Services, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Return the settings of the named topics, or of the broker if none is named."""
    if len(request.topics) > MAX_DESCRIBED_TOPICS:
        raise InvalidRequest(
            f"the settings of {len(request.topics)} topics in one request, {MAX_DESCRIBED_TOPICS} are allowed"
        )
    if not request.topics:
        return DescribeConfigsResponse([_describe_broker(services)])

    async def describe(name: str) -> DescribedConfigs:
        return _describe_topic(services.topics.get(name))

    items = Items(services, context, "DescribeConfigs")
    return DescribeConfigsResponse(
        await items.handle_all(
            request.topics, describe, lambda name, error: DescribedConfigs(error.code, str(error), name, [])
        )
    )


def _describe_topic(topic: Topic) -> DescribedConfigs:
    """A setting is a default unless the topic itself sets it, even if the broker's defaults were changed."""
    values = topic.config.to_settings()
    own = topic.entry.settings
    entries = [
        ConfigEntry(setting.name, values[setting.name], setting.name not in own, setting.sentence)
        for setting in TOPIC_SETTINGS
    ]
    return DescribedConfigs(ErrorCode.NONE, "", topic.name, entries)


def _describe_broker(services: Services) -> DescribedConfigs:
    config = services.config
    values = config.to_settings()
    entries = [
        ConfigEntry(row.name, values[row.name], values[row.name] == row.format(row.default), row.sentence)
        for row in BROKER_SETTINGS
    ]
    defaults = config.topic_defaults.to_settings()
    entries += [
        ConfigEntry(setting.name, defaults[setting.name], setting.name not in config.topic_settings, setting.sentence)
        for setting in TOPIC_SETTINGS
    ]
    return DescribedConfigs(ErrorCode.NONE, "", BROKER_NAME, entries)
