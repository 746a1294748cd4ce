"""AlterPartitionReassignments, ListPartitionReassignments and ElectLeaders."""

from typing import Any

from warmlog_broker.kafka.responses import answered, by_topic
from warmlog_broker.kafka.translators import Kafka
from warmlog_broker.network.request import Ready, RequestContext, Response, then
from warmlog_protocol import messages as m
from warmlog_protocol.errors import InvalidRequest
from warmlog_protocol.kafka.schema import API

PREFERRED, UNCLEAN = 0, 1
"""Types of elections."""

_Listed = API["ListPartitionReassignments"].response
_Elected = API["ElectLeaders"].response


def alter_partition_reassignments(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Order to move partitions to other brokers, or take that back."""
    wanted = [
        m.ReplicasToAlter(topic.name, part.partition_index, part.replicas)
        for topic in request.topics
        for part in topic.partitions
    ]
    message = m.AlterPartitionReassignmentsRequest(
        wanted, not request.allow_replication_factor_change, request.timeout_ms
    )

    def back(altered: Any) -> Ready:
        return answered("AlterPartitionReassignments", request, altered.partitions, error_message=None)

    return then(kafka.call(context, message), back)


def list_partition_reassignments(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Tell which partitions are moved."""
    wanted = None
    if request.topics is not None:
        wanted = [
            m.InspectedPartition(topic.name, each) for topic in request.topics for each in topic.partition_indexes
        ]

    def back(listed: Any) -> Ready:
        part = _Listed.OngoingPartitionReassignment
        topics = by_topic(
            (each.topic, part(each.partition, each.replicas, each.adding, each.removing)) for each in listed.partitions
        )
        return _Listed(
            error_message=None, topics=[_Listed.OngoingTopicReassignment(*topic) for topic in topics.items()]
        )

    return then(kafka.call(context, m.ListPartitionReassignmentsRequest(wanted)), back)


def elect_leaders(kafka: Kafka, context: RequestContext, request: Any) -> Response:
    """Let the first replicas lead, or, if no replica in sync is left, any others."""
    if request.election_type not in (PREFERRED, UNCLEAN):
        raise InvalidRequest(f"an election of type {request.election_type}: expected 0 (preferred) or 1 (unclean)")
    wanted = None
    if request.topic_partitions is not None:
        wanted = [
            m.InspectedPartition(each.topic, number) for each in request.topic_partitions for number in each.partitions
        ]

    def back(elected: Any) -> Ready:
        part = _Elected.PartitionResult
        topics = by_topic(
            (each.topic, part(each.partition, each.error_code, each.error_message or None))
            for each in elected.partitions
        )
        return _Elected(replica_election_results=[_Elected.ReplicaElectionResult(*topic) for topic in topics.items()])

    message = m.ElectLeadersRequest(wanted, request.election_type == UNCLEAN, request.timeout_ms)
    return then(kafka.call(context, message), back)
