"""A group coordinator for tests: decides, and applies what was decided, as the service does."""

from typing import Any

from unit.broker.coordinator.group.topics import Topics, follow_topics, know_pattern, run_steps
from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record
from warmlog_broker.coordinator.group.decisions import membership, offsets, target
from warmlog_broker.coordinator.group.decisions.state import Groups, Limits, Member
from warmlog_broker.coordinator.group.decisions.subscriptions import Subscriptions
from warmlog_protocol.messages.coordinators.groups import (
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    TopicPartitions,
)

GROUP = "etl"


class Machine:
    """The groups, their log, and the time; `now_ms` is the test's to change."""

    def __init__(self, topics: Topics, limits: Limits | None = None) -> None:
        self.topics = topics
        self.limits = limits or Limits()
        self.subscriptions = Subscriptions(topics)
        self.groups = Groups()
        self.log: list[Record] = []
        self.now_ms = 1000

    def decided(self, decision: Decision[Any]) -> Any:
        """Apply a decision, and return its result."""
        for record in decision.records:
            self.groups.replay(record)
        self.log += decision.records
        return decision.result

    def heartbeat(
        self, member_id: str, epoch: int, owned: object = None, *, principal: str = "", **fields: Any
    ) -> GroupHeartbeatResponse:
        """Send a heartbeat; `owned` is a response's assignment, or partitions."""
        request = GroupHeartbeatRequest(GROUP, member_id, epoch, owned=as_message(owned), **fields)
        pattern = know_pattern(self.subscriptions, request.pattern)
        decision = membership.heartbeat(
            self.groups, request, host="host", principal=principal, now_ms=self.now_ms, limits=self.limits
        )
        self.decided(decision)
        self.groups.heard(GROUP, member_id, now_ms=self.now_ms, epoch=epoch, owned=request.owned)
        if pattern is not None:
            assert self.subscriptions.of(self.member(member_id)).pattern is pattern
        return decision.result

    def join(self, member_id: str, *topics: str, **fields: Any) -> GroupHeartbeatResponse:
        """Join with a subscription."""
        return self.heartbeat(member_id, 0, [], topics=list(topics), **fields)

    def compute(self) -> target.Target | None:
        """Compute a new target, for topics and subscriptions as they are now."""
        follow_topics(self.subscriptions, self.topics)
        group = self.groups.get(GROUP)
        if group is None or not target.needs_target(group, self.subscriptions):
            return None
        return run_steps(target.compute(group, self.subscriptions))

    def assign(self) -> bool:
        """Compute a new target and assign it; return whether one was needed."""
        computed = self.compute()
        if computed is None:
            return False
        result: bool = self.decided(target.assign(self.groups, computed, self.subscriptions))
        return result

    def settle(self, *member_ids: str) -> None:
        """Assign, and let the members heartbeat until nothing changes."""
        self.assign()
        before = -1
        while before != len(self.log):
            before = len(self.log)
            for member_id in member_ids:
                self.heartbeat(member_id, self.member(member_id).epoch, self.member(member_id).assigned)

    def commit(self, member_id: str, epoch: int, *items: tuple[PartitionId, int], **fields: Any) -> list[int]:
        """Commit offsets of partitions and return the error codes."""
        partitions = [OffsetCommitPartition(p.topic_id, "", p.number, offset) for p, offset in items]
        request = OffsetCommitRequest(GROUP, partitions, member_id, epoch, **fields)
        decision = offsets.commit(self.groups, request, self.topics, now_ms=self.now_ms, limits=self.limits)
        response = self.decided(decision)
        self.groups.heard(GROUP, member_id, now_ms=self.now_ms, commit_sequence=request.sequence)
        return [result.error_code for result in response.partitions]

    def member(self, member_id: str) -> Member:
        member = self.groups.member(GROUP, member_id)
        assert member is not None
        return member

    def committed(self) -> dict[PartitionId, int]:
        group = self.groups.get(GROUP)
        return {partition: value.offset for partition, value in group.offsets.items()} if group else {}


def as_message(owned: Any) -> list[TopicPartitions] | None:
    """Return partitions as a heartbeat has them."""
    if owned is None or (owned and isinstance(next(iter(owned)), TopicPartitions)):
        return owned
    return [TopicPartitions(topic_id, "", [number]) for topic_id, number in owned]


def numbers(response: GroupHeartbeatResponse) -> list[int] | None:
    """Return the numbers of the partitions in a response, None if it has no assignment."""
    if response.assignment is None:
        return None
    return [number for topic in response.assignment for number in topic.partitions]
