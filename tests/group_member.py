"""A member of a consumer group for tests: each heartbeat is a call, so that a test decides about every step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self, cast
from uuid import uuid4

from warmlog_protocol import messages as m
from wire_client import WireClient

WAIT_MS = 5000


class GroupMember:
    """One member with a connection of its own."""

    def __init__(
        self,
        address: str,
        group: str,
        *topics: str,
        pattern: str | None = None,
        instance_id: str = "",
        session_timeout_ms: int = 30_000,
        rebalance_timeout_ms: int = 30_000,
    ) -> None:
        self.client = WireClient(address)
        self._address = address
        self.group = group
        self.member_id = uuid4().hex
        self.instance_id = instance_id
        self.epoch = 0
        self.assigned: list[m.TopicPartitions] = []
        """As in the last response that had an assignment."""
        self.owned: list[m.TopicPartitions] = []
        self._joining = m.GroupHeartbeatRequest(
            group,
            self.member_id,
            0,
            instance_id,
            list(topics),
            pattern,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            client_id="test",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def reconnect(self) -> None:
        """Go on over another connection."""
        self.client.close()
        self.client = WireClient(self._address)

    def join(self) -> Self:
        self.epoch, self.owned = 0, []
        self.received(self.client.call(self._joining))
        return self

    def beat(self, *, max_wait_ms: int = 0) -> m.GroupHeartbeatResponse:
        """One heartbeat that says what is owned."""
        return self.received(self.client.call(self.heartbeat(max_wait_ms)))

    def heartbeat(self, max_wait_ms: int = WAIT_MS) -> m.GroupHeartbeatRequest:
        return m.GroupHeartbeatRequest(
            self.group,
            self.member_id,
            self.epoch,
            self.instance_id,
            owned=self.owned,
            max_wait_ms=max_wait_ms,
        )

    def received(self, message: object) -> m.GroupHeartbeatResponse:
        response = cast("m.GroupHeartbeatResponse", message)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = response.assignment
        return response

    def take(self) -> Self:
        """Own what is assigned, and nothing else; say so."""
        self.owned = self.assigned
        self.beat()
        return self

    def settle(self, partitions: int) -> Self:
        """Take what is assigned until that is this number of partitions."""
        for _ in range(20):
            self.beat(max_wait_ms=1000)
            self.take()
            if len(self.partitions) == partitions:
                return self
        raise AssertionError(f"{partitions} partitions expected, {self.assigned} assigned")

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """Topics and partitions that are owned."""
        return sorted((each.topic, number) for each in self.owned for number in each.partitions)

    def leave(self, epoch: int = -1) -> None:
        self.client.call(m.GroupHeartbeatRequest(self.group, self.member_id, epoch, self.instance_id))

    def commit(self, topic_id: bytes, *offsets: tuple[int, int], metadata: str = "") -> list[m.CommittedPartition]:
        """Commit offsets, given with their partitions."""
        return commit(self.client, self.group, topic_id, *offsets, member=self, metadata=metadata)


@contextmanager
def member_of(address: str, group: str, topic: str, partitions: int, *, instance_id: str = "") -> Iterator[GroupMember]:
    """The only member of a group, which owns all partitions of a topic; it leaves at the end."""
    with GroupMember(address, group, topic, instance_id=instance_id) as member:
        yield member.join().settle(partitions)
        member.leave()


def commit(
    client: WireClient,
    group: str,
    topic_id: bytes,
    *offsets: tuple[int, int],
    member: GroupMember | None = None,
    metadata: str = "",
) -> list[m.CommittedPartition]:
    """Commit offsets, given with their partitions, as `member` or from outside; return the results."""
    wanted = [m.OffsetCommitPartition(topic_id, "", partition, offset, 0, metadata) for partition, offset in offsets]
    request = m.OffsetCommitRequest(group, wanted)
    if member is not None:
        request = m.OffsetCommitRequest(group, wanted, member.member_id, member.epoch, member.instance_id)
    return cast("m.OffsetCommitResponse", client.call(request)).partitions


def fetched(client: WireClient, group: str) -> list[m.FetchedOffset]:
    """Everything that the group has committed."""
    return cast("m.OffsetFetchResponse", client.call(m.OffsetFetchRequest(group))).partitions


def offsets(client: WireClient, group: str) -> dict[tuple[str, int], int]:
    return {(each.topic, each.partition): each.offset for each in fetched(client, group)}


def described(client: WireClient, group: str) -> m.DescribedGroup:
    return cast("m.DescribeGroupsResponse", client.call(m.DescribeGroupsRequest([group]))).groups[0]
