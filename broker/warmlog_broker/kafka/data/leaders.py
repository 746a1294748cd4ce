"""Who leads in place of this broker: responses that refuse say so (KIP-951), and clients need not ask for metadata."""

from typing import Any

from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import RequestContext
from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode

MOVED = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}


class Leaders:
    """Those that one response names. `response` is its class."""

    def __init__(self, kafka: Kafka, context: RequestContext, response: Any) -> None:
        self._kafka = kafka
        self._context = context
        self._response = response
        self._endpoints: dict[int, Any] = {}

    @property
    def endpoints(self) -> list[Any]:
        """Their addresses."""
        return list(self._endpoints.values())

    def of(self, refused: m.ProducedPartition | m.FetchedPartition) -> Any:
        """Return who leads a partition and in which epoch, if it is refused since that is another broker; else None."""
        if refused.error_code not in MOVED:
            return None
        view, topic = self._kafka.services.cluster, self._kafka.services.topics.find(refused.topic)
        if topic is None:
            return None
        leader, epoch, *_ = view.leadership(topic.topic_id, refused.partition, topic.local.get(refused.partition))
        for broker in view.brokers(self._context.listener):
            if broker.node_id == leader != view.node_id:
                self._endpoints[leader] = self._response.NodeEndpoint(*broker[:3], broker.rack or None)
                return self._response.LeaderIdAndEpoch(leader, epoch)
        return None
