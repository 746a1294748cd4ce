"""A member of a group that does what it is told and nothing by itself, over a connection of its own."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from warmlog_protocol.messages import (
    JOINING,
    LEAVING,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    TopicPartitions,
)
from wire_client import WireClient

PATIENCE_S = 20.0


class Member:
    """Heartbeats when asked, and owns at once what it is assigned."""

    def __init__(self, client: WireClient, group: str, *topics: str, instance_id: str = "") -> None:
        self.member_id = str(uuid4())
        self.epoch = JOINING
        self.owned: list[TopicPartitions] = []
        self._client = client
        self._group = group
        self._instance_id = instance_id
        self._topics = list(topics)

    def heartbeat(self) -> None:
        """One heartbeat that says all, and takes what it is assigned."""
        response = self._client.call(
            GroupHeartbeatRequest(
                self._group,
                self.member_id,
                self.epoch,
                instance_id=self._instance_id,
                topics=self._topics,
                pattern="",
                assignor="",
                owned=self.owned,
                client_id="test",
            )
        )
        assert isinstance(response, GroupHeartbeatResponse)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = response.assignment

    def settle(self, partitions: int) -> None:
        """Heartbeat until it owns so many partitions."""
        deadline = time.monotonic() + PATIENCE_S
        while sum(len(each.partitions) for each in self.owned) != partitions:
            assert time.monotonic() < deadline, self.owned
            self.heartbeat()
            time.sleep(0.05)
        self.heartbeat()

    def commit(self, *offsets: int) -> None:
        """Commit these offsets for partitions 0, 1, … of the topic that it owns."""
        (owned,) = self.owned
        wanted = [
            OffsetCommitPartition(owned.topic_id, owned.topic, number, offset) for number, offset in enumerate(offsets)
        ]
        response = self._client.call(OffsetCommitRequest(self._group, wanted, self.member_id, self.epoch))
        assert isinstance(response, OffsetCommitResponse)
        assert [each.error_code for each in response.partitions] == [0] * len(wanted)

    def leave(self) -> None:
        self._client.call(GroupHeartbeatRequest(self._group, self.member_id, LEAVING))


@contextmanager
def member_of(address: str, group: str, topic: str, partitions: int, *, instance_id: str = "") -> Iterator[Member]:
    """The only member of a group, which owns all partitions of a topic; it leaves at the end."""
    with WireClient(address) as client:
        member = Member(client, group, topic, instance_id=instance_id)
        member.settle(partitions)
        yield member
        member.leave()
