"""Transactions: of producers, of jobs with many of them, and what tools ask. See `coordinator/transaction`."""

from collections.abc import Iterable

from warmlog_broker.coordinator.transaction.decisions.producers import NOBODY
from warmlog_broker.coordinator.transaction.decisions.state import Incarnation, Job, TransactionalId
from warmlog_broker.handlers.context import Services
from warmlog_broker.network.request import RequestContext, Response
from warmlog_protocol import messages as m
from warmlog_protocol.errors import NotCoordinator


async def end_transaction(services: Services, _context: RequestContext, request: m.EndTransactionRequest) -> Response:
    """Commit or abort; the response is sent when the markers are durable in all partitions."""
    producer = Incarnation(request.producer_id, request.producer_epoch)
    following = await services.coordinators.transactions.end(
        request.transactional_id, producer, commits=request.commits, keeps_epoch=request.keeps_epoch
    )
    return m.EndTransactionResponse(*following)


async def txn_offset_commit(
    services: Services, context: RequestContext, request: m.TxnOffsetCommitRequest
) -> m.OffsetCommitResponse:
    """Commit offsets with the transaction. One that another broker coordinates is asked for there."""
    try:
        return await commit_within(services, request, context.principal)
    except NotCoordinator:
        if services.between_brokers is None:
            raise
    return await services.between_brokers.commit_elsewhere(request, context.principal)


async def commit_within(
    services: Services, request: m.TxnOffsetCommitRequest, principal: str
) -> m.OffsetCommitResponse:
    """Commit offsets for `principal` with a transaction that this broker coordinates; NotCoordinator if it does not."""
    producer = Incarnation(request.producer_id, request.producer_epoch)
    commit = m.OffsetCommitRequest(
        request.group,
        request.partitions,
        request.member_id,
        request.member_epoch,
        request.instance_id,
        takes_any_offset=request.takes_any_offset,
    )
    return await services.coordinators.transactions.commit_offsets(
        request.transactional_id, producer, commit, request.sequence, principal, is_enrolled=request.is_enrolled
    )


async def list_transactions(
    services: Services, _context: RequestContext, request: m.ListTransactionsRequest
) -> m.ListTransactionsResponse:
    """Return the transactional ids, in order."""
    wanted = request.transactional_id
    found = [
        each
        for each in services.coordinators.transactions.transactions()
        if wanted in (None, each.transactional_id) and (each.value.began_ms >= 0 or not request.only_open)
    ]
    return m.ListTransactionsResponse([_listed(each) for each in sorted(found, key=lambda each: each.transactional_id)])


def _listed(transaction: TransactionalId | Job) -> m.ListedTransaction:
    value = transaction.value
    partitions = [
        m.TransactionPartition(each.topic_id, enrolled.topic, each.number)
        for each, enrolled in sorted(transaction.partitions.items())
    ]
    producer, groups, job = NOBODY, [], None
    if isinstance(transaction, Job):
        own = transaction.value
        members = len(transaction.members) - len(transaction.free)
        job = m.JobDescription(own.current_version, own.committed_version, own.committed_records, members)
    else:
        producer, groups = transaction.producer, sorted(transaction.groups)
    return m.ListedTransaction(
        transaction.transactional_id,
        producer.producer_id,
        producer.epoch,
        value.status.name.lower(),
        value.timeout_ms,
        value.began_ms,
        partitions,
        groups,
        job,
    )


async def abort_transaction(
    services: Services, _context: RequestContext, request: m.AbortTransactionRequest
) -> m.AbortTransactionResponse:
    """Abort the open transaction of a producer that does not end it."""
    await services.coordinators.transactions.abort(request.transactional_id)
    return m.AbortTransactionResponse()


async def join_job(services: Services, context: RequestContext, request: m.JoinJobRequest) -> m.JoinJobResponse:
    """Make a producer a member of the job's transaction."""
    producer = await services.coordinators.transactions.join_job(
        request.transactional_id, request.version, request.timeout_ms, context.principal
    )
    return m.JoinJobResponse(True) if producer is None else m.JoinJobResponse(False, *producer)


def job_heartbeat(services: Services, _context: RequestContext, request: m.JobHeartbeatRequest) -> Response:
    """Keep the transaction open."""
    (producer,) = _producers([request.member])
    services.coordinators.transactions.keep_job(request.transactional_id, request.version, producer)
    return m.JobHeartbeatResponse()


async def commit_job(services: Services, context: RequestContext, request: m.CommitJobRequest) -> m.CommitJobResponse:
    """Commit the winners and abort the others."""
    winners = _producers(request.winners)
    is_repeat, records = await services.coordinators.transactions.commit_job(
        request.transactional_id, request.version, winners, request.records, context.principal
    )
    return m.CommitJobResponse(is_repeat, records)


async def abort_job_members(
    services: Services, _context: RequestContext, request: m.AbortJobMembersRequest
) -> m.AbortJobMembersResponse:
    members = _producers(request.members)
    await services.coordinators.transactions.abort_job_members(request.transactional_id, request.version, members)
    return m.AbortJobMembersResponse()


def _producers(members: Iterable[m.JobMember]) -> list[Incarnation]:
    return [Incarnation(member.producer_id, member.producer_epoch) for member in members]
