"""The end of a decided transaction, written to everything that was part of it until all of that is durable."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.transaction.decisions.state import Outcome
from warmlog_broker.coordinator.transaction.ports import Markers, PendingOffsets
from warmlog_broker.metadata.store import ClusterStore
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.topics.topics import Topics
from warmlog_protocol import messages as m
from warmlog_protocol.batch import ControlType
from warmlog_protocol.errors import ApiError, InvalidProducerEpoch, InvalidTxnState, NotLeaderOrFollower

WRITES_AT_ONCE = 1000
"""A job of thousands of members has more markers than should wait for the disk at the same time."""
RETRY_S = 0.2
"""The pause before an end that could not be written is tried again."""
COMPLAINT_S = 10.0

_log = logging.getLogger(__name__)


async def write_ends(
    outcomes: Iterable[Outcome], markers: Markers, groups: PendingOffsets, *, coordinator_epoch: int
) -> set[PartitionId]:
    """Return when `outcomes` are durable everywhere: as markers in partitions, and in groups whose offsets wait.

    A deleted topic counts as done. Repeating this has no effect until the transaction is complete.
    Returned are the partitions with an open transaction that their marker cannot end: see `complete`.
    """
    left_open: set[PartitionId] = set()

    async def mark(enrolled: PartitionId, request: m.WriteMarkerRequest) -> None:
        if await markers.end(request):
            left_open.add(enrolled)

    def each_write() -> Iterator[Coroutine[Any, Any, None]]:
        for outcome in outcomes:
            marker, commits, keeps_epoch = outcome.marker, outcome.commits, outcome.keeps_epoch
            subject = f"producer {marker.producer_id}"
            for enrolled in outcome.partitions:
                request = m.WriteMarkerRequest(*enrolled, *marker, commits, keeps_epoch, coordinator_epoch)
                yield _until_written(f"{subject}: a marker", partial(mark, enrolled, request))
            for group in outcome.groups:
                ending = m.EndPendingOffsetsRequest(group, *marker, commits, keeps_epoch, coordinator_epoch)
                end_pending = partial(groups.end_pending, ending)
                yield _until_written(f"{subject}: the end of its transaction in group {group!r}", end_pending)

    writes = each_write()
    while some := list(islice(writes, WRITES_AT_ONCE)):
        async with asyncio.TaskGroup() as tasks:
            for write in some:
                tasks.create_task(write)
    return left_open


class LocalMarkers:
    """The `Markers` of partitions that this broker leads."""

    def __init__(self, topics: Topics, cluster: ClusterStore) -> None:
        self._topics = topics
        self._cluster = cluster

    async def end(self, request: m.WriteMarkerRequest) -> bool:
        topic = self._topics.find_by_id(request.topic_id)
        if topic is None:
            if self._cluster.is_deleted(request.topic_id):
                return False
            raise NotLeaderOrFollower(f"the topic {request.topic_id.hex()} is not known here yet")
        durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            topic.partition(request.partition).append_end_transaction(
                request.producer_id,
                request.producer_epoch,
                ControlType.COMMIT if request.commits else ControlType.ABORT,
                request.coordinator_epoch,
                partial(_end, durable),
                keeps_epoch=request.keeps_epoch,
                now_ms=now_ms(),
            )
            await durable
        except InvalidProducerEpoch:
            pass  # a later marker is there: this one was written before it
        except InvalidTxnState:
            return True
        return False


def _end(durable: "asyncio.Future[None]", error: ApiError | None) -> None:
    if durable.done():
        return  # cancelled, if this broker has ceased to be the coordinator
    if error is None:
        durable.set_result(None)
    else:
        durable.set_exception(error)


async def _until_written(subject: str, write: Callable[[], Awaitable[None]]) -> None:
    """Call `write` until it succeeds; the log says now and then why it has not."""
    said_s = time.monotonic()
    while True:
        try:
            return await write()
        except ApiError as error:
            if time.monotonic() - said_s >= COMPLAINT_S:
                said_s = time.monotonic()
                _log.warning("%s cannot be written, and holds readers of committed data back: %s", subject, error)
        await asyncio.sleep(RETRY_S)
