"""Commits that wait for an earlier one."""

import asyncio
from typing import Any, cast

from warmlog.consumer.group.membership import Owned
from warmlog.consumer.group.offsets import GroupMetadata, Offsets
from warmlog_protocol.messages import CommittedPartition, OffsetCommitRequest, OffsetCommitResponse
from warmlog_transport.cluster import Cluster

FIRST, SECOND = Owned(b"1" * 16, "t", 0), Owned(b"1" * 16, "t", 1)


class SlowCluster:
    """Responds to commits when `may_respond` is set."""

    def __init__(self) -> None:
        self.requests: list[OffsetCommitRequest] = []
        self.may_respond = asyncio.Event()

    async def call(self, request: OffsetCommitRequest, _response: type[Any]) -> OffsetCommitResponse:
        self.requests.append(request)
        await self.may_respond.wait()
        return OffsetCommitResponse(
            [CommittedPartition(each.topic_id, each.topic, each.partition, 0, "") for each in request.partitions]
        )


async def test_a_commit_that_waited_keeps_the_epoch_in_which_it_was_made() -> None:
    cluster, epochs = SlowCluster(), [3]
    offsets = Offsets(cast("Cluster", cluster), lambda: GroupMetadata("g", "m", epochs[-1]))
    commits = [asyncio.ensure_future(offsets.commit({FIRST: (10, 0)}))]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    commits += [asyncio.ensure_future(offsets.commit({each: (20, 0)})) for each in (FIRST, SECOND)]
    await asyncio.sleep(0)
    epochs.append(9)
    commits.append(asyncio.ensure_future(offsets.commit({SECOND: (30, 0)})))
    await asyncio.sleep(0)
    cluster.may_respond.set()
    assert await asyncio.gather(*commits) == [{}] * 4
    sent = [(each.member_epoch, each.sequence, [p.offset for p in each.partitions]) for each in cluster.requests]
    assert sent == [(3, 1, [10]), (3, 2, [20, 20]), (9, 3, [30])]
    await offsets.close()
