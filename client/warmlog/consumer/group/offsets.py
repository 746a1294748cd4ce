"""Commits of a group's offsets, one request at a time, and fetches of what is committed."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from warmlog.consumer.group.membership import Owned, messages_of
from warmlog.consumer.partition_reader import Place
from warmlog.errors import ApiError, ClientClosed, error_from_code
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster

Errors = dict[Owned, ApiError]
_Commit = tuple[int, int, str]
"""An offset, the leader epoch before it, and metadata."""


class GroupMetadata(NamedTuple):
    """Who commits: a member in its epoch, or with an empty id and epoch -1 a client from outside the group."""

    group: str
    member_id: str = ""
    member_epoch: int = m.NO_MEMBER_EPOCH
    instance_id: str = ""


class Offsets:
    """The committed offsets of one group. `who` returns the committer as of now."""

    def __init__(self, cluster: Cluster, who: Callable[[], GroupMetadata]) -> None:
        self._cluster = cluster
        self._who = who
        self._pending: dict[Owned, _Commit] = {}
        self._committer: GroupMetadata | None = None
        """Who commits `_pending`."""
        self._next: asyncio.Task[Errors] | None = None
        self._in_flight = asyncio.Lock()
        self._sequence = 0
        self._tasks: set[asyncio.Task[Errors]] = set()
        self.limit_s: float | None = None
        """How long a commit waits for its response, for ever if None."""

    async def ended(self) -> None:
        """Wait for the end of all commits that are under way."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """End what is under way: these commits raise ClientClosed."""
        for task in self._tasks:
            task.cancel()
        await self.ended()

    async def commit(self, places: Mapping[Owned, Place], metadata: str = "") -> Errors:
        """Commit with `metadata`, and return the errors of single partitions; the others are durable.

        Raises the error of the whole request. Requests are sent one after another, so that a repeated one cannot undo a
        later one; what is committed meanwhile goes into the next. A commit that is cancelled may still take place. One
        that waited keeps its epoch: if the partition was lost and assigned again since, it is refused.
        """
        who = self._who()
        if self._next is None or who != self._committer:
            self._pending, self._committer = {}, who
            self._next = asyncio.create_task(self._send(self._pending, who), name="warmlog commit")
            self._tasks.add(self._next)
            self._next.add_done_callback(self._ended)
        self._pending.update({owned: (*place, metadata) for owned, place in places.items()})
        task = self._next
        await asyncio.wait([task], timeout=self.limit_s)
        if not task.done() or task.cancelled():
            raise ClientClosed("the consumer was closed before the commit had a response: it may have taken place")
        errors = task.result()
        return {partition: errors[partition] for partition in places if partition in errors}

    async def fetch(
        self,
        partitions: Iterable[Owned],
        who: GroupMetadata | None = None,
        *,
        needs_stable: bool = True,
        final: tuple[type[ApiError], ...] = (),
    ) -> dict[Owned, m.FetchedOffset]:
        """Return what is committed for these partitions; offset -1 if nothing is. `final`: see `Cluster.call`.

        With `needs_stable`, which members always need, UnstableOffsetCommit if it may change when a transaction ends.
        """
        wanted = sorted(set(partitions))
        if not wanted:
            return {}
        who = who or self._who()
        request = m.OffsetFetchRequest(who.group, messages_of(wanted), who.member_id, who.member_epoch, needs_stable)
        response = await self._cluster.call(request, m.OffsetFetchResponse, final=final)
        return dict(zip(wanted, response.partitions, strict=True))

    def _ended(self, task: asyncio.Task[Errors]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # a caller that was cancelled does not look at it

    async def _send(self, commits: Mapping[Owned, _Commit], who: GroupMetadata) -> Errors:
        await asyncio.sleep(0)  # a loop with eager tasks begins this before `commits` has anything
        async with self._in_flight:
            if commits is self._pending:
                self._next = None
            self._sequence += 1
            request = _request(commits, who, self._sequence)
            response = await self._cluster.call(request, m.OffsetCommitResponse)
        return _errors(commits, response)

    async def commit_within(
        self, transaction: "OffsetTransaction", places: Mapping[Owned, Place], metadata: str = ""
    ) -> Errors:
        """As `commit`, when `transaction` commits."""
        commits = {owned: (*place, metadata) for owned, place in places.items()}
        return _errors(commits, await transaction.add_offsets(_request(commits, self._who(), 0)))


class OffsetTransaction(Protocol):
    """What commits offsets together with records."""

    async def add_offsets(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse: ...


def _request(commits: Mapping[Owned, _Commit], who: GroupMetadata, sequence: int) -> m.OffsetCommitRequest:
    partitions = [m.OffsetCommitPartition(*owned, *commit) for owned, commit in commits.items()]
    return m.OffsetCommitRequest(who.group, partitions, who.member_id, who.member_epoch, who.instance_id, sequence)


def _errors(commits: Mapping[Owned, _Commit], response: m.OffsetCommitResponse) -> Errors:
    return {
        owned: error_from_code(part.error_code, f"{owned.topic}-{owned.partition}: {part.error_message}")
        for owned, part in zip(commits, response.partitions, strict=True)
        if part.error_code
    }
