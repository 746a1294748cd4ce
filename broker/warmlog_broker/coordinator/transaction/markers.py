"""The end of a decided transaction, written to everything that was part of it until all of that is durable."""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from warmlog_broker.coordinator.group.coordinator import GroupCoordinator
from warmlog_broker.coordinator.transaction.decisions.state import Enrolled, Outcome, Producer
from warmlog_broker.replica.partition import Partition
from warmlog_broker.topics.topics import Topics
from warmlog_protocol.batch import ControlType
from warmlog_protocol.errors import ApiError, InvalidProducerEpoch, InvalidTxnState

WRITES_AT_ONCE = 1000
"""A job of thousands of members has more markers than should wait for the disk at the same time."""
RETRY_S = 0.2
"""The pause before an end that could not be written is tried again."""
COMPLAINT_S = 10.0

_log = logging.getLogger(__name__)


class EndWriter:
    """Writes markers into partitions, and has groups commit or drop the offsets that wait in them."""

    def __init__(self, topics: Topics, groups: GroupCoordinator, now_ms: Callable[[], int]) -> None:
        self._topics = topics
        self._groups = groups
        self._now_ms = now_ms

    async def write(self, outcomes: Iterable[Outcome], *, coordinator_epoch: int) -> set[Enrolled]:
        """Return when `outcomes` are durable everywhere.

        A deleted topic counts as done. Repeating this has no effect: a marker of the same epoch is not written twice.
        Returned are the partitions that have an open transaction of the epoch of their marker: see `complete`.
        """
        left_open: set[Enrolled] = set()
        writes = self._writes(outcomes, coordinator_epoch, left_open)
        while some := list(islice(writes, WRITES_AT_ONCE)):
            async with asyncio.TaskGroup() as tasks:
                for write in some:
                    tasks.create_task(write)
        return left_open

    def _writes(
        self, outcomes: Iterable[Outcome], coordinator_epoch: int, left_open: set[Enrolled]
    ) -> Iterator[Coroutine[Any, Any, None]]:
        for marker, commits, partitions, groups in outcomes:
            control_type = ControlType.COMMIT if commits else ControlType.ABORT
            for enrolled in partitions:
                yield self._mark(enrolled, marker, control_type, coordinator_epoch, left_open)
            for group in groups:
                yield self._end_group(group, marker, commits=commits)

    async def _mark(
        self,
        enrolled: Enrolled,
        producer: Producer,
        control_type: ControlType,
        coordinator_epoch: int,
        left_open: set[Enrolled],
    ) -> None:
        complaint = _Complaint(f"producer {producer.producer_id}: a marker")
        while (partition := self._partition(enrolled)) is not None:
            durable: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
            on_durable = partial(_end, durable)
            try:
                partition.append_end_transaction(
                    *producer, control_type, coordinator_epoch, on_durable, now_ms=self._now_ms()
                )
                error = await durable
            except InvalidProducerEpoch:
                return  # a later marker is there: this one was written before it
            except InvalidTxnState:
                left_open.add(enrolled)
                return
            except ApiError as raised:
                error = raised
            if error is None:
                return
            await complaint.pause(error)

    def _partition(self, enrolled: Enrolled) -> Partition | None:
        topic = self._topics.find_by_id(enrolled.topic_id)
        return None if topic is None else topic.partitions[enrolled.number]

    async def _end_group(self, group: str, producer: Producer, *, commits: bool) -> None:
        complaint = _Complaint(f"group {group!r}: the end of the transaction of producer {producer.producer_id}")
        while True:
            try:
                await self._groups.end_pending(group, *producer, commits=commits)
            except ApiError as error:
                await complaint.pause(error)
            else:
                return


def _end(durable: "asyncio.Future[ApiError | None]", error: ApiError | None) -> None:
    if not durable.done():  # cancelled, if this broker has ceased to be the coordinator
        durable.set_result(error)


class _Complaint:
    """Something that is tried until it succeeds; the log says now and then why it has not."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._said_s = time.monotonic()

    async def pause(self, error: ApiError) -> None:
        now_s = time.monotonic()
        if now_s - self._said_s >= COMPLAINT_S:
            self._said_s = now_s
            _log.warning("%s cannot be written, and holds readers of committed data back: %s", self._subject, error)
        await asyncio.sleep(RETRY_S)
