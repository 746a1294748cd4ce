"""Jobs: one transaction that many producers write. See `coordinator/transactions`."""

from collections.abc import Iterable

from warmlog_broker.coordinator.transaction.state import Producer
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request_context import RequestContext
from warmlog_protocol.messages import (
    AbortJobMembersRequest,
    AbortJobMembersResponse,
    CommitJobRequest,
    CommitJobResponse,
    JobHeartbeatRequest,
    JobHeartbeatResponse,
    JobMember,
    JoinJobRequest,
    JoinJobResponse,
)


async def join_job(services: Services, _context: RequestContext, request: JoinJobRequest) -> JoinJobResponse:
    """Make a producer a member of the job's transaction."""
    producer = await services.transactions.join_job(request.transactional_id, request.version, request.timeout_ms)
    return JoinJobResponse(True) if producer is None else JoinJobResponse(False, *producer)


def job_heartbeat(services: Services, _context: RequestContext, request: JobHeartbeatRequest) -> JobHeartbeatResponse:
    """Keep the transaction open."""
    (producer,) = _producers([request.member])
    services.transactions.keep_job(request.transactional_id, request.version, producer)
    return JobHeartbeatResponse()


async def commit_job(services: Services, _context: RequestContext, request: CommitJobRequest) -> CommitJobResponse:
    """Commit the winners and abort the others."""
    winners = _producers(request.winners)
    is_repeat, records = await services.transactions.commit_job(
        request.transactional_id, request.version, winners, request.records
    )
    return CommitJobResponse(is_repeat, records)


async def abort_job_members(
    services: Services, _context: RequestContext, request: AbortJobMembersRequest
) -> AbortJobMembersResponse:
    """Abort some members."""
    members = _producers(request.members)
    await services.transactions.abort_job_members(request.transactional_id, request.version, members)
    return AbortJobMembersResponse()


def _producers(members: Iterable[JobMember]) -> list[Producer]:
    return [Producer(member.producer_id, member.producer_epoch) for member in members]
