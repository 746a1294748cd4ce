"""The thread that sends a member's heartbeats, with an event loop and a connection of its own.

User code may block the consumer's event loop for as long as it likes; what ends a membership is a process that does not
run at all, or a user that reads nothing for `max_poll_interval_ms`.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime

from warmlog.consumer.group.membership import Membership, Owned, Partitions, Phase
from warmlog.errors import ClientError, WarmlogError
from warmlog_protocol.messages import GroupHeartbeatRequest, GroupHeartbeatResponse
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import cancel
from warmlog_transport.loop_thread import LoopThread
from warmlog_transport.options import ConnectionOptions
from warmlog_transport.retries import backoff_ms

_log = logging.getLogger("warmlog")

JITTER = 0.2
"""By how much of the interval heartbeats come early, at random: members that started together do not stay together."""
LEAVE_TIMEOUT_S = 2.0
"""How long a member that leaves waits for the response; after that its session has to expire."""
INTERRUPTED_LEAVE_S = 0.2
"""The same where Ctrl-C or a cancellation ends the consumer's block."""


class Heartbeats:
    """One member's heartbeats. `assignment` is replaced when something changes, and `on_news` called, in its thread."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        options: ConnectionOptions,
        first: GroupHeartbeatRequest,
        *,
        max_idle_s: float,
        progress: Callable[[], object],
        is_abandoned: Callable[[], bool],
        on_news: Callable[[], object],
    ) -> None:
        """`progress` returns what changes when the user reads, None while the user waits for records.

        `is_abandoned`: whether the consumer's event loop has ended without `stop`.
        """
        self._bootstrap = bootstrap
        self._options = options
        self._membership = Membership(first)
        self._max_idle_s = max_idle_s
        self._progress = progress
        self._is_abandoned = is_abandoned
        self._on_news = on_news
        self._last_progress: object = None
        self._active_at = 0.0
        self._woken = asyncio.Event()
        self._is_out = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last: asyncio.Task[None] | None = None
        """The last heartbeat, while its response has not come."""
        self._last_waits = False
        """Whether it, or the last one that ended, may wait for news."""
        self._brought_news = False
        """Whether the last response changed the epoch or the assignment."""
        self._under_way: set[asyncio.Task[None]] = set()
        self._sent_at = 0.0
        self.assignment = self._membership.assignment
        self.heard_at = datetime.now(UTC)
        """When the coordinator last confirmed the membership."""
        self.failure: WarmlogError | None = None
        """Why the last heartbeat has failed, if it has."""
        self._thread = LoopThread("warmlog heartbeats")
        self._loop = self._thread.loop
        self._thread.soon(self._begin)

    # --- what the consumer calls, in its own thread -----------------------------------------------------------------

    def join(self) -> None:
        """Become a member (again)."""
        self._do(self._membership.join)

    async def claim(self, incarnation: int, partitions: Partitions) -> bool:
        """Confirm these as well, before they are read: from then on they are this member's until `own` omits them.

        False if they are not assigned any more; then there is another assignment.
        """
        claimed: Future[bool] = Future()

        def claim() -> None:
            is_assigned = self._membership.claim(incarnation, partitions)
            if claimed.set_running_or_notify_cancel():
                claimed.set_result(is_assigned)

        self._do(claim)
        return await asyncio.wrap_future(claimed)

    def own(self, incarnation: int, owned: Iterable[Owned]) -> None:
        """Confirm what is read."""
        self._do(lambda: self._membership.own(incarnation, owned))

    def lost(self, incarnation: int, reason: WarmlogError) -> None:
        """Note that a request of this incarnation was refused as one of no member."""
        self._do(lambda: self._membership.lost(incarnation, reason))

    async def stop(self, *, for_a_while: bool, limit_s: float) -> None:
        """Leave the group and end the thread. A static member's partitions may wait for its return."""
        if self._thread.is_foreign:
            return
        ended: Future[None] = asyncio.run_coroutine_threadsafe(self._end(for_a_while, limit_s), self._loop)
        try:
            await asyncio.wrap_future(ended)
        finally:
            self._thread.stop()

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._task = asyncio.create_task(self._run(), name="warmlog heartbeats")

    def _do(self, change: Callable[[], None]) -> None:
        def run() -> None:
            change()
            self._publish()
            self._woken.set()

        self._thread.soon(run)

    def _publish(self) -> None:
        assignment = self._membership.assignment
        if assignment == self.assignment:
            return
        if assignment.phase is Phase.OUT:
            self._is_out.set()
            if assignment.reason is not None and self.assignment.phase in (Phase.MEMBER, Phase.LEAVING):
                _log.warning("no longer a member of the group: %s", assignment.reason)
        self.assignment = assignment
        with suppress(RuntimeError):  # the consumer's event loop is closed
            self._on_news()

    async def _run(self) -> None:
        cluster = Cluster(self._bootstrap, self._options)
        try:
            while not (self._is_abandoned() and self._membership.assignment.phase is Phase.OUT):
                self._woken.clear()
                self._look_for_progress()
                self._send_if_due(cluster)
                wake_at = None  # while it is out, only `join` wakes it
                if self._membership.assignment.phase is not Phase.OUT:
                    idle_at = self._active_at + self._max_idle_s
                    wake_at = idle_at if self._last is not None else min(self._due_at(), idle_at)
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(wake_at):
                        await self._woken.wait()
        except Exception as error:
            _log.exception("the heartbeats have failed")
            self._membership.lost(self.assignment.incarnation, ClientError(f"the heartbeats have failed: {error!r}"))
            self._publish()
        finally:
            for task in self._under_way:
                task.cancel()
            await cluster.close()
        if self._is_abandoned():
            self._thread.stop()

    def _send_if_due(self, cluster: Cluster) -> None:
        """Send a heartbeat, unless one is under way that need not be overtaken, or it is not yet time."""
        if self._last is not None and not (self._last_waits and self._membership.is_urgent):
            return
        if self._last is None and self._loop.time() < self._due_at():
            return
        max_wait_ms = int(self._membership.interval_ms * (1 - JITTER * random.random()))  # noqa: S311
        request = self._membership.request(max_wait_ms)
        if request is None:
            return
        self._sent_at = self._loop.time()
        self._last_waits = request.max_wait_ms > 0
        self._last = asyncio.create_task(self._send(cluster, request), name="warmlog heartbeat")
        self._under_way.add(self._last)
        self._last.add_done_callback(self._ended)

    async def _send(self, cluster: Cluster, request: GroupHeartbeatRequest) -> None:
        # A heartbeat that is lost has to be repeated within the session.
        timeout_ms = self._membership.session_timeout_ms // 3 or self._options.request_timeout_ms
        timeout_ms = request.max_wait_ms + min(timeout_ms, self._options.request_timeout_ms)
        try:
            response = await cluster.call(request, GroupHeartbeatResponse, timeout_ms=timeout_ms, is_repeatable=False)
        except WarmlogError as error:
            self.failure = error
            self._membership.failed(request, error)
        except Exception as bug:
            _log.exception("a heartbeat could not be sent")
            self.failure = ClientError(f"a heartbeat could not be sent: {bug!r}")
            self._membership.failed(request, self.failure)
        else:
            self.failure = None
            self.heard_at = datetime.now(UTC)
            self._membership.responded(request, response)
            if asyncio.current_task() is self._last:
                self._brought_news = self._membership.assignment != self.assignment
        self._publish()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if task is self._last:
            self._last = None
            self._woken.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def _due_at(self) -> float:
        """When to send the next heartbeat, if none is under way."""
        membership = self._membership
        if membership.failures:
            return self._sent_at + backoff_ms(membership.failures, self._options, 0.5) / 1000
        if membership.is_urgent or not self._last_waits or self._brought_news:
            return 0.0
        return self._sent_at + membership.interval_ms * (1 - JITTER) / 1000

    def _look_for_progress(self) -> None:
        """Leave the group if the user has read nothing for too long: others can handle what it holds."""
        if self._is_abandoned():
            self._membership.leave()
            return
        now = self._loop.time()
        progress = self._progress()
        if progress is None or progress != self._last_progress or self.assignment.phase is not Phase.MEMBER:
            self._last_progress, self._active_at = progress, now
        elif now - self._active_at >= self._max_idle_s:
            self._membership.leave(
                reason=ClientError(f"nothing was read for {self._max_idle_s:g} s, which is max_poll_interval_ms")
            )
            self._publish()

    async def _end(self, for_a_while: bool, limit_s: float) -> None:
        if self.assignment.phase is not Phase.OUT:
            self._is_out.clear()
            self._membership.leave(for_a_while=for_a_while)
            self._woken.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await self._is_out.wait()
        await cancel(self._task)
