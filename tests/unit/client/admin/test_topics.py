"""What Admin makes of a broker's answers about topics, against a broker in memory."""

import pytest

import warmlog
from fake_broker import FakeBroker
from warmlog_broker.handlers.topics import MAX_DESCRIBED_TOPICS
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, InvalidRequest


class Settings:
    """Describes settings as a broker does: of so many topics at once, and none of those that are `gone`."""

    def __init__(self, broker: FakeBroker) -> None:
        self.gone: set[str] = set()
        broker.further_handlers = {m.DescribeConfigsRequest: self._describe}

    def _describe(self, request: m.DescribeConfigsRequest) -> m.DescribeConfigsResponse:
        if len(request.topics) > MAX_DESCRIBED_TOPICS:
            raise InvalidRequest(f"the settings of {len(request.topics)} topics in one request")
        codes = dict.fromkeys(self.gone, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return m.DescribeConfigsResponse(
            [m.DescribedConfigs(codes.get(name, ErrorCode.NONE), "", name, []) for name in request.topics]
        )


async def test_more_topics_are_listed_than_a_broker_describes_at_once() -> None:
    names = [f"t{number:04}" for number in range(MAX_DESCRIBED_TOPICS + 1)]
    async with FakeBroker(**dict.fromkeys(names, 1)) as broker, warmlog.Admin(broker.address) as admin:
        Settings(broker)
        assert [topic.name for topic in await admin.list_topics()] == names


async def test_a_topic_that_is_deleted_while_topics_are_listed_is_left_out() -> None:
    async with FakeBroker(kept=1, deleted=2) as broker, warmlog.Admin(broker.address) as admin:
        Settings(broker).gone.add("deleted")
        assert [topic.name for topic in await admin.list_topics()] == ["kept"]
        with pytest.raises(warmlog.UnknownTopicOrPartition, match="topic 'deleted' does not exist"):
            await admin.describe_topic("deleted")
