"""ConsumerGroupHeartbeat: members of KIP-848, which share their groups with warmlog's own."""

import uuid
from typing import Any

from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.kafka.schema import API

_Alive = API["ConsumerGroupHeartbeat"].response


def consumer_group_heartbeat(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Join a group, keep a membership alive, confirm what is owned, or leave."""
    member_id = request.member_id
    if not member_id and request.member_epoch == m.JOINING and request.api_version == 0:
        member_id = str(uuid.uuid4())
    owned = request.topic_partitions
    message = m.GroupHeartbeatRequest(
        request.group_id,
        member_id,
        request.member_epoch,
        request.instance_id or "",
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        request.server_assignor,
        request.rebalance_timeout_ms,
        owned=None if owned is None else [m.TopicPartitions(each.topic_id, "", each.partitions) for each in owned],
        client_id=context.client_id,
    )

    def back(told: Any) -> Ready:
        return _Alive(
            member_id=member_id,
            member_epoch=told.member_epoch,
            heartbeat_interval_ms=told.heartbeat_interval_ms,
            assignment=None if told.assignment is None else _Alive.Assignment(told.assignment),
        )

    return then(kafka.call(context, message), back)
