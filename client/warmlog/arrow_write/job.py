"""One transaction that many tasks write, each as a producer of its own, and that their driver commits or aborts.

A task has a `Membership` while it runs. `join`, when there is something to write, returns the producer id and epoch to
write with, and `confirm` checks at the end that the driver can commit what was written. The driver passes the members
of the tasks that count to `commit_job`: what all others have written is aborted by the same decision.

Versions of a job are committed in rising order, each once: a task that joins the version that was committed last learns
that there is nothing to write, and a repeated commit of it changes nothing.

The transaction is aborted if no member has been heard of for its timeout. Each task sends heartbeats, with pauses of a
third of that, and `confirm` sends the last one. A task that still waits for its first record when the first heartbeat
is due joins, too: others may have finished long before.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from warmlog.errors import ApiError, BrokerUnavailable, DeliveryTimeout, WarmlogError, may_pass
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster
from warmlog_transport.connection import cancel

HEARTBEATS_A_TIMEOUT = 3
RETRY_S = 1.0
"""The pause after a heartbeat that failed."""
ABORT_MS = 5_000
"""How long a task that fails tries to abort what it has written. Otherwise its driver or the timeout does."""


class Job(NamedTuple):
    """One version of a job."""

    transactional_id: str
    version: int
    timeout_ms: int = 900_000
    """How long the transaction stays open without a heartbeat."""

    def __str__(self) -> str:
        return f"version {self.version} of job {self.transactional_id!r}"


class Membership:
    """The part of one task in a job's transaction. An error in its `async with` block aborts it, if possible."""

    def __init__(self, cluster: Cluster, job: Job, *, patience_ms: int) -> None:
        """Requests are retried for `patience_ms`."""
        self._cluster = cluster
        self._job = job
        self._patience_ms = patience_ms
        self._joining = asyncio.Lock()
        self._joined: m.JoinJobResponse | None = None
        self._heartbeats: asyncio.Task[None] | None = None

    async def join(self) -> m.JobMember | None:
        """Return the producer to write with; None if the version is committed, and there is nothing to write.

        Raises StaleJobVersion if a higher version is committed, InvalidTxnState while another one is undecided, and
        what else the broker refuses; BrokerUnavailable or a retriable ApiError after `patience_ms`.
        """
        return await self._join(self._patience_ms)

    async def confirm(self) -> None:
        """Give the transaction its full timeout again, for the tasks that follow; ProducerFenced if it has ended."""
        await self._heartbeat(self._patience_ms)

    async def __aenter__(self) -> Self:
        self._heartbeats = asyncio.create_task(self._keep(), name="warmlog job heartbeats")
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await cancel(self._heartbeats)
        member = None if self._joined is None else _member(self._joined)
        if kind is not None and member is not None:
            with suppress(WarmlogError):
                await abort_job_members(
                    self._cluster, self._job, [member], patience_ms=min(ABORT_MS, self._patience_ms)
                )

    async def _join(self, patience_ms: int) -> m.JobMember | None:
        async with self._joining:
            if self._joined is None:
                request = m.JoinJobRequest(*self._job)
                self._joined = await self._cluster.call(request, m.JoinJobResponse, timeout_ms=patience_ms)
            return _member(self._joined)

    async def _heartbeat(self, patience_ms: int) -> None:
        member = await self._join(patience_ms)
        if member is not None:
            request = m.JobHeartbeatRequest(self._job.transactional_id, self._job.version, member)
            await self._cluster.call(request, m.JobHeartbeatResponse, timeout_ms=patience_ms)

    async def _keep(self) -> None:
        """Send heartbeats until the end, or until one is refused: then `join`, `confirm` or the producer says why."""
        interval_s = pause_s = self._job.timeout_ms / HEARTBEATS_A_TIMEOUT / 1000
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._heartbeat(self._cluster.options.request_timeout_ms)
                pause_s = interval_s
            except (BrokerUnavailable, ApiError) as error:
                if not may_pass(error):
                    return
                pause_s = min(interval_s, RETRY_S)
            except WarmlogError:
                return


async def commit_job(
    cluster: Cluster, job: Job, winners: Sequence[m.JobMember], *, records: int, patience_ms: int
) -> m.CommitJobResponse:
    """Commit what `winners` have written, so many `records`, and abort all other members; retry for `patience_ms`.

    Raises DeliveryTimeout if it is not known then whether it is committed. TransactionAbortable: it was aborted, and
    the tasks can be run again. See CommitJobResponse for the other errors.
    """
    request = m.CommitJobRequest(job.transactional_id, job.version, list(winners), records)
    try:
        return await cluster.call(request, m.CommitJobResponse, timeout_ms=patience_ms)
    except (BrokerUnavailable, ApiError) as error:
        if not may_pass(error):
            raise
        raise DeliveryTimeout(
            f"{job} may have been committed: there was no response about it for {patience_ms / 1000:g} s: {error}"
        ) from error


async def abort_job_members(cluster: Cluster, job: Job, members: Sequence[m.JobMember], *, patience_ms: int) -> None:
    """Abort what `members` have written. InvalidTxnState if the version is committed, and so decided otherwise."""
    request = m.AbortJobMembersRequest(job.transactional_id, job.version, list(members))
    await cluster.call(request, m.AbortJobMembersResponse, timeout_ms=patience_ms)


def _member(joined: m.JoinJobResponse) -> m.JobMember | None:
    return None if joined.is_committed else m.JobMember(joined.producer_id, joined.producer_epoch)
