"""A member of a group by Kafka's classic protocol, by raw requests, which does only what a test tells it to do."""

from typing import Any, Self

from kafka_client import KafkaClient
from warmlog_protocol.kafka.schema import API

MEMBER_ID_REQUIRED = 79
VERSIONS = {"JoinGroup": 9, "SyncGroup": 5, "Heartbeat": 4, "LeaveGroup": 5, "OffsetCommit": 9}


class KafkaMember:
    """One connection and one membership. `versions` are those of the requests, if not the newest."""

    def __init__(
        self,
        address: str,
        group: str,
        *,
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 10_000,
        metadata: bytes = b"topics",
        protocol_type: str = "consumer",
        **versions: int,
    ) -> None:
        self.client = KafkaClient(address)
        self.group = group
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.metadata = metadata
        self.joined: Any = None
        self._versions = VERSIONS | versions
        self._fields = {
            "session_timeout_ms": session_timeout_ms,
            "rebalance_timeout_ms": rebalance_timeout_ms,
            "protocol_type": protocol_type,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.socket.close()

    def call(self, name: str, **fields: Any) -> Any:
        return self.receive(name, self.send(name, **fields))

    def send(self, name: str, **fields: Any) -> int:
        """Send a request with what identifies the member, without waiting for the response."""
        known: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
        }
        if name != "JoinGroup":
            known["generation_id"] = self.generation
        names = API[name].request.__struct_fields__
        return self.client.send(name, self._versions[name], **{k: v for k, v in known.items() if k in names} | fields)

    def receive(self, name: str, correlation_id: int) -> Any:
        return self.client.receive(name, self._versions[name], correlation_id)

    def begin_join(self) -> int:
        protocol = API["JoinGroup"].request.JoinGroupRequestProtocol("range", self.metadata)
        return self.send("JoinGroup", protocols=[protocol], **self._fields)

    def end_join(self, correlation_id: int) -> Any:
        """Take the response to a JoinGroup; if it only has the member's id, join with that."""
        self.joined = self.receive("JoinGroup", correlation_id)
        if self.joined.error_code == MEMBER_ID_REQUIRED:
            self.member_id = self.joined.member_id
            return self.end_join(self.begin_join())
        if not self.joined.error_code:
            self.member_id, self.generation = self.joined.member_id, self.joined.generation_id
        return self.joined

    def join(self) -> Any:
        return self.end_join(self.begin_join())

    def begin_sync(self) -> int:
        """Send a SyncGroup. A leader gives each member its own id as its assignment, or its instance id."""
        assignment = API["SyncGroup"].request.SyncGroupRequestAssignment
        members = [] if self.joined.skip_assignment else self.joined.members
        assignments = [
            assignment(each.member_id, (each.group_instance_id or each.member_id).encode()) for each in members
        ]
        return self.send("SyncGroup", assignments=assignments)

    def sync(self) -> Any:
        return self.receive("SyncGroup", self.begin_sync())

    def start(self) -> Self:
        """Join and sync."""
        assert self.join().error_code == 0
        assert self.sync().error_code == 0
        return self

    def heartbeat(self) -> int:
        code: int = self.call("Heartbeat").error_code
        return code

    def leave(self) -> Any:
        leaving = API["LeaveGroup"].request.MemberIdentity(self.member_id, self.instance_id)
        return self.call("LeaveGroup", members=[leaving])

    def commit(self, topic: str, offset: int, **fields: Any) -> int:
        """Commit an offset of partition 0; return the error code."""
        request = API["OffsetCommit"].request
        part = request.OffsetCommitRequestPartition(0, offset, -1, "")
        topics = [request.OffsetCommitRequestTopic(name=topic, partitions=[part])]
        response = self.call(
            "OffsetCommit", topics=topics, **{"generation_id_or_member_epoch": self.generation} | fields
        )
        code: int = response.topics[0].partitions[0].error_code
        return code
