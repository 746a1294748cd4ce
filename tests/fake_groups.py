"""A coordinator of groups in memory, for tests of what asks it: it keeps offsets, and has the members it is given."""

from collections.abc import Callable
from typing import Any

from warmlog_protocol import messages as m
from warmlog_protocol.errors import ErrorCode, error_from_code

COMMITTED_AT_MS = 1_700_000_000_000


def member(name: str, *assigned: m.TopicPartitions, instance_id: str = "") -> m.GroupMember:
    return m.GroupMember(
        name, instance_id, "app", "10.0.0.7", 3, ["orders"], "", list(assigned), [], [], 300_000, 45_000, 1
    )


class FakeGroups:
    """Answers requests about groups; a group exists from its first member or commit on."""

    def __init__(self, topic_id: Callable[[str], bytes]) -> None:
        self.members: dict[str, list[m.GroupMember]] = {}
        self.offsets: dict[str, dict[tuple[bytes, int], m.FetchedOffset]] = {}
        self.commits: list[m.OffsetCommitRequest] = []
        self.refused: dict[tuple[str, int], ErrorCode] = {}
        """Partitions for which commits are refused, and with what."""
        self.joins_before_commit: m.GroupMember | None = None
        """Who joins at the last moment."""
        self.forgets_deletion = False
        """Deletes twice, as it does for a client whose connection broke before it had the response."""
        self.loading = 0
        """How often it answers that it is not ready to describe."""
        self.is_unstable = False
        """Whether an open transaction commits offsets."""
        self._topic_id = topic_id

    @property
    def handlers(self) -> dict[type[m.Message], Callable[..., m.Message]]:
        return {
            m.ListGroupsRequest: self._list,
            m.DescribeGroupsRequest: self._describe,
            m.OffsetFetchRequest: self._fetch,
            m.OffsetCommitRequest: self._commit,
            m.DeleteGroupsRequest: self._delete,
            m.DeleteOffsetsRequest: self._delete_offsets,
        }

    def call(self, message: m.Message, _expected: type[Any]) -> Any:
        """What a client's `call` returns or raises."""
        return self.handlers[type(message)](message)

    def commit(self, group: str, topic: str, partition: int, offset: int, topic_id: bytes | None = None) -> None:
        """As if it had been committed earlier."""
        own = self._topic_id(topic) if topic_id is None else topic_id
        fetched = m.FetchedOffset(own, topic, partition, offset, -1, "", COMMITTED_AT_MS)
        self.offsets.setdefault(group, {})[own, partition] = fetched

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        return {(each.topic, each.partition): each.offset for each in self.offsets.get(group, {}).values()}

    def _names(self) -> set[str]:
        return {*self.offsets, *(name for name, members in self.members.items() if members)}

    def _list(self, _: m.ListGroupsRequest) -> m.ListGroupsResponse:
        return m.ListGroupsResponse([m.GroupListing(name, *self._state(name)) for name in sorted(self._names())])

    def _state(self, name: str) -> tuple[str, int]:
        count = len(self.members.get(name, []))
        return "stable" if count else "empty", count

    def _describe(self, request: m.DescribeGroupsRequest) -> m.DescribeGroupsResponse:
        return m.DescribeGroupsResponse([self._described(name) for name in request.groups])

    def _described(self, name: str) -> m.DescribedGroup:
        if self.loading:
            self.loading -= 1
            return m.DescribedGroup(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "it is loading", name)
        if name not in self._names():
            return m.DescribedGroup(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name!r}", name)
        return m.DescribedGroup(0, "", name, self._state(name)[0], 7, 7, "uniform", self.members.get(name, []))

    def _fetch(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        if self.is_unstable and request.needs_stable:
            raise error_from_code(ErrorCode.UNSTABLE_OFFSET_COMMIT, "a transaction is open")
        return m.OffsetFetchResponse(list(self.offsets.get(request.group, {}).values()))

    def _commit(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        if self.joins_before_commit is not None:
            self.members[request.group] = [self.joins_before_commit]
        if self.members.get(request.group) and not request.member_id:
            raise error_from_code(ErrorCode.NON_EMPTY_GROUP, "the group has members")
        self.commits.append(request)
        results = []
        for each in request.partitions:
            code = self.refused.get((each.topic, each.partition), ErrorCode.NONE)
            if not code:
                self.commit(request.group, each.topic, each.partition, each.offset, each.topic_id or None)
            results.append(m.CommittedPartition(each.topic_id, each.topic, each.partition, code, "as ordered"))
        return m.OffsetCommitResponse(results)

    def _delete(self, request: m.DeleteGroupsRequest) -> m.DeleteGroupsResponse:
        results = []
        for name in request.groups:
            was_there = self.offsets.pop(name, None) is not None and not self.forgets_deletion
            code = ErrorCode.NONE if was_there else ErrorCode.GROUP_ID_NOT_FOUND
            results.append(m.NamedResult(code, "", name))
        return m.DeleteGroupsResponse(results)

    def _delete_offsets(self, request: m.DeleteOffsetsRequest) -> m.DeleteOffsetsResponse:
        results = []
        for part in request.partitions:
            topic_id = part.topic_id or self._topic_id(part.topic)
            for number in part.partitions:
                code = self.refused.get((part.topic, number), ErrorCode.NONE)
                if not code:
                    self.offsets.get(request.group, {}).pop((topic_id, number), None)
                results.append(m.DeletedOffset(topic_id, part.topic, number, code, "as ordered"))
        return m.DeleteOffsetsResponse(results)
