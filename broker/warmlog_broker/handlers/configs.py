"""DescribeConfigs: the settings in force, of topics or of the broker."""

from warmlog_broker.config.broker_config import BROKER_SETTINGS
from warmlog_broker.handlers.context import Services
from warmlog_broker.handlers.items import Items
from warmlog_broker.network.request_context import RequestContext
from warmlog_broker.replica.topics import Topic
from warmlog_broker.storage.config import TOPIC_SETTINGS
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest
from warmlog_protocol.messages import ConfigEntry, DescribeConfigsRequest, DescribeConfigsResponse, DescribedConfigs

BROKER_NAME = ""
MAX_TOPICS = 1000
"""In one request: the answer has 3 KiB for each, and takes 30 µs to make."""


async def describe_configs(
    services: Services, context: RequestContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """The settings of the topics asked for; without any, those of the broker."""
    if len(request.topics) > MAX_TOPICS:
        raise InvalidRequest(f"the settings of {len(request.topics)} topics in one request, {MAX_TOPICS} are allowed")
    if not request.topics:
        return DescribeConfigsResponse([_describe_broker(services)])

    async def describe(name: str) -> DescribedConfigs:
        return _describe_topic(services.topics.get(name))

    items = Items(services, context, "DescribeConfigs")
    return DescribeConfigsResponse(await items.handle_all(request.topics, describe, _not_described))


def _not_described(name: str, error: ApiError) -> DescribedConfigs:
    return DescribedConfigs(error.code, str(error), name, [])


def _describe_topic(topic: Topic) -> DescribedConfigs:
    """A setting is a default where the topic does not set it itself, even if the broker's defaults were changed."""
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
