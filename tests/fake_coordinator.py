"""A coordinator on order, for tests of the consumer: tests say what its members are assigned and when they are lost.

It is a part of a FakeBroker. Heartbeats, commits and what members say they own are kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import warmlog
from fake_broker import FakeBroker, topic_id
from warmlog.consumer.group.membership import Owned, messages_of, partitions_of
from warmlog_protocol import messages as m

INTERVAL_MS = 20


def owned(*partitions: tuple[str, int]) -> frozenset[Owned]:
    return frozenset(Owned(topic_id(topic), topic, number) for topic, number in partitions)


@dataclass
class FakeMember:
    """What the coordinator knows of one member."""

    first: m.GroupHeartbeatRequest
    epoch: int = 1
    assigned: frozenset[Owned] = frozenset()
    revoking: frozenset[Owned] = frozenset()
    owned: frozenset[Owned] = frozenset()


@dataclass
class FakeCoordinator:
    """One group. `initial` is what each member is assigned when it joins."""

    broker: FakeBroker
    initial: frozenset[Owned] = frozenset()
    members: dict[str, FakeMember] = field(default_factory=dict)
    most: int = 1 << 62
    """The highest offset that may be committed."""
    fenced: set[str] = field(default_factory=set)
    heartbeats: list[m.GroupHeartbeatRequest] = field(default_factory=list)
    commits: list[m.OffsetCommitRequest] = field(default_factory=list)
    offsets: dict[Owned, tuple[int, int]] = field(default_factory=dict)
    metadata: dict[Owned, str] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    """The epochs with which members left."""
    refuses: Callable[[m.GroupHeartbeatRequest], warmlog.ApiError | None] = lambda _: None
    interval_ms: int = INTERVAL_MS
    is_settled: bool = True

    def __post_init__(self) -> None:
        self.broker.further_handlers |= {
            m.GroupHeartbeatRequest: self._heartbeat,
            m.OffsetCommitRequest: self._commit,
            m.OffsetFetchRequest: self._fetch,
        }

    @property
    def member(self) -> FakeMember:
        """The only one."""
        (member,) = self.members.values()
        return member

    @property
    def committed(self) -> dict[tuple[str, int], int]:
        return {(each.topic, each.partition): offset for each, (offset, _) in self.offsets.items()}

    def assign(self, partitions: frozenset[Owned]) -> None:
        """A new target for the only member."""
        member = self.member
        member.revoking = (member.revoking | member.assigned) - partitions
        member.assigned = partitions
        member.epoch += 1

    def expire(self) -> None:
        """The session of the only member is over."""
        self.members.clear()

    def fence(self) -> None:
        """Another process takes the place of the only member."""
        self.fenced.update(self.members)
        self.members.clear()

    def _heartbeat(self, request: m.GroupHeartbeatRequest) -> m.GroupHeartbeatResponse:
        self.heartbeats.append(request)
        if (error := self.refuses(request)) is not None:
            raise error
        if request.member_epoch == m.JOINING:
            self.members[request.member_id] = FakeMember(request, assigned=self.initial)
        member = self._known(request.member_id)
        if request.member_epoch < 0:
            self.left.append(request.member_epoch)
            del self.members[request.member_id]
            return m.GroupHeartbeatResponse(request.member_epoch, self.interval_ms, 1000)
        if request.owned is not None and request.member_epoch == member.epoch:
            member.owned = partitions_of(request.owned)
            member.revoking &= member.owned
        assignment = None if member.owned == member.assigned and request.member_epoch else messages_of(member.assigned)
        return m.GroupHeartbeatResponse(member.epoch, self.interval_ms, 1000, assignment, self.is_settled)

    def _known(self, member_id: str) -> FakeMember:
        if member_id in self.fenced:
            raise warmlog.FencedInstanceId("another process has this instance id")
        if member_id not in self.members:
            raise warmlog.UnknownMemberId("its session has expired")
        return self.members[member_id]

    def _commit(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        self.commits.append(request)
        owns: frozenset[Owned] | None = None
        if request.member_id:
            member = self._known(request.member_id)
            owns = member.assigned | member.revoking
        elif self.members:
            raise warmlog.NonEmptyGroup("the group has members")
        return m.OffsetCommitResponse([self._committed(part, owns) for part in request.partitions])

    def _committed(self, part: m.OffsetCommitPartition, owns: frozenset[Owned] | None) -> m.CommittedPartition:
        partition = Owned(part.topic_id, part.topic, part.partition)
        if owns is not None and partition not in owns:
            return m.CommittedPartition(*partition, warmlog.StaleMemberEpoch.code, "another member owns it")
        if part.offset > self.most:
            return m.CommittedPartition(*partition, warmlog.OffsetOutOfRange.code, "past the log end")
        self.offsets[partition] = (part.offset, part.leader_epoch)
        self.metadata[partition] = part.metadata
        return m.CommittedPartition(*partition, 0, "")

    def _fetch(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        if request.member_id:
            self._known(request.member_id)
        assert request.partitions is not None
        asked = [
            Owned(part.topic_id or topic_id(part.topic), part.topic, number)
            for part in request.partitions
            for number in part.partitions
        ]
        return m.OffsetFetchResponse(
            [
                m.FetchedOffset(*each, *self.offsets.get(each, (-1, -1)), self.metadata.get(each, ""), 0)
                for each in asked
            ]
        )
