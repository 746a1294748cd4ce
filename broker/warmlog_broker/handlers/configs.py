"""DescribeConfigs: the settings in force, of topics or of the broker."""

from warmlog_broker.config.broker_config import BROKER_SETTINGS
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.peer import Asker
from warmlog_broker.replica.topics import Topic
from warmlog_broker.storage.config import TOPIC_SETTINGS
from warmlog_protocol.errors import ApiError, ErrorCode, InvalidRequest
from warmlog_protocol.messages import ConfigEntry, DescribeConfigsRequest, DescribeConfigsResponse, DescribedConfigs
from warmlog_protocol.wire.connection import Request

BROKER_NAME = ""
MAX_TOPICS = 1000
"""In one request: the answer has 3 KiB for each, and takes 30 µs to make."""


def describe_configs(services: Services, asker: Asker, request: Request) -> DescribeConfigsResponse:  # noqa: ARG001
    """The settings of the topics asked for; without any, those of the broker."""
    message = request.message
    assert isinstance(message, DescribeConfigsRequest)
    if len(message.topics) > MAX_TOPICS:
        raise InvalidRequest(f"the settings of {len(message.topics)} topics in one request, {MAX_TOPICS} are allowed")
    if not message.topics:
        return DescribeConfigsResponse([_describe_broker(services)])
    return DescribeConfigsResponse([_find(services, name) for name in message.topics])


def _find(services: Services, name: str) -> DescribedConfigs:
    try:
        return _describe_topic(services.topics.get(name))
    except ApiError as error:
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
