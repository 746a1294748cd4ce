"""Members of a job and its driver, against a broker in memory: who writes, what is kept open, what is refused."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

import warmlog
from fake_broker import FakeBroker, Fault
from waiting import until
from warmlog.arrow_write.job import Job, Membership, abort_job_members, commit_job
from warmlog.arrow_write.producer import ArrowProducer
from warmlog.arrow_write.rows import ArrowRows, PreparedRows
from warmlog_protocol import messages as m
from warmlog_transport.cluster import Cluster
from warmlog_transport.options import ConnectionOptions

OPTIONS = ConnectionOptions(
    connect_timeout_ms=1000, request_timeout_ms=500, retry_backoff_ms=5, retry_backoff_max_ms=20
)
JOB = Job("job", 7, 60_000)
PATIENCE_MS = 20_000
MEMBER = m.JobMember(90, 3)


@dataclass
class FakeJobs:
    """What jobs have asked, and how it is answered."""

    broker: FakeBroker
    requests: list[m.Message] = field(default_factory=list)
    joined: m.JoinJobResponse = m.JoinJobResponse(False, 90, 3)  # noqa: RUF009 - frozen
    committed: m.CommitJobResponse = m.CommitJobResponse(False, 5)  # noqa: RUF009 - frozen
    refusals: list[warmlog.ApiError] = field(default_factory=list)
    """Of the next requests."""

    def __post_init__(self) -> None:
        self.broker.further_handlers = {
            m.JoinJobRequest: self._responding(lambda: self.joined),
            m.JobHeartbeatRequest: self._responding(m.JobHeartbeatResponse),
            m.CommitJobRequest: self._responding(lambda: self.committed),
            m.AbortJobMembersRequest: self._responding(m.AbortJobMembersResponse),
        }

    def of(self, kind: type[m.Message]) -> list[m.Message]:
        return [request for request in self.requests if isinstance(request, kind)]

    def _responding(self, response: Callable[[], m.Message]) -> Callable[[m.Message], m.Message]:
        def respond(request: m.Message) -> m.Message:
            self.requests.append(request)
            if self.refusals:
                raise self.refusals.pop(0)
            return response()

        return respond


@pytest.fixture
async def jobs() -> AsyncIterator[FakeJobs]:
    async with FakeBroker(t=2) as fake:
        yield FakeJobs(fake)


@pytest.fixture
async def cluster(jobs: FakeJobs) -> AsyncIterator[Cluster]:
    async with Cluster(jobs.broker.address, OPTIONS) as cluster:
        yield cluster


async def producer_of(jobs: FakeJobs, member: m.JobMember | None) -> ArrowProducer:
    assert member is not None
    producer = ArrowProducer(jobs.broker.address, OPTIONS, transactional_id=JOB.transactional_id)
    producer.become((member.producer_id, 3))
    await producer.topic("t")
    return producer


async def send(producer: ArrowProducer, *values: bytes, partition: int = 0) -> None:
    await producer.send("t", partition, [PreparedRows(ArrowRows(pa.array(values))).span()], 100, 5)


async def test_a_member_writes_in_the_jobs_transaction_with_its_producer(jobs: FakeJobs, cluster: Cluster) -> None:
    jobs.broker.faults.append(Fault.LOSE_ANSWER)
    async with Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership:
        member = await membership.join()
        assert (member, await membership.join()) == (MEMBER, MEMBER)
        async with await producer_of(jobs, member) as producer:
            for number in range(4):
                await send(producer, b"%d" % number, partition=number % 2)
            await producer.flush()
        await membership.confirm()
    assert jobs.requests == [m.JoinJobRequest("job", 7, 60_000), m.JobHeartbeatRequest("job", 7, MEMBER)]
    assert {request.transactional_id for request in jobs.broker.produced} == {"job"}
    batches = [batch for partition in jobs.broker.topics["t"] for batch in partition.read_all()]
    assert [batch.values() for batch in batches] == [[b"0"], [b"2"], [b"1"], [b"3"]]
    headers = [batch.header for batch in batches]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(90, 3)}
    assert all(header.is_transactional for header in headers)
    assert [header.base_sequence for header in headers] == [0, 1, 0, 1]


async def test_a_member_whose_producer_is_unknown_takes_no_other_epoch(jobs: FakeJobs, cluster: Cluster) -> None:
    jobs.broker.faults.append(Fault.UNKNOWN_PRODUCER)
    async with (
        Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership,
        await producer_of(jobs, await membership.join()) as producer,
    ):
        await send(producer, b"v")
        with pytest.raises(warmlog.UnknownProducerId, match="1 records for t-0"):
            await producer.flush()
    assert jobs.broker.topics["t"][0].read_all() == []


async def test_joining_is_retried_while_that_may_pass_and_else_says_why_not(jobs: FakeJobs, cluster: Cluster) -> None:
    jobs.refusals += [warmlog.CoordinatorLoadInProgress("loading"), warmlog.ConcurrentTransactions("ending")]
    async with Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership:
        assert await membership.join() == MEMBER
    for error in (warmlog.StaleJobVersion("version 9 is committed"), warmlog.InvalidTxnState("version 6 is undecided")):
        jobs.refusals.append(error)
        async with Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership:
            with pytest.raises(type(error), match=str(error)):
                await membership.join()


async def test_a_version_that_is_committed_has_no_members(jobs: FakeJobs, cluster: Cluster) -> None:
    jobs.joined = m.JoinJobResponse(True)
    async with Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership:
        assert await membership.join() is None
        await membership.confirm()
    assert jobs.requests == [m.JoinJobRequest(*JOB)]


async def test_heartbeats_keep_the_transaction_of_a_task_without_records_open(jobs: FakeJobs, cluster: Cluster) -> None:
    job = JOB._replace(timeout_ms=150)
    async with Membership(cluster, job, patience_ms=PATIENCE_MS):
        assert jobs.requests == []
        await until(lambda: len(jobs.of(m.JobHeartbeatRequest)) >= 3)
        jobs.broker.disconnect()
        count = len(jobs.requests)
        await until(lambda: len(jobs.requests) > count + 2)
    assert jobs.of(m.JoinJobRequest) == [m.JoinJobRequest(*job)]
    count = len(jobs.requests)
    await asyncio.sleep(0.2)
    assert len(jobs.requests) == count, "heartbeats end with the task"


async def test_a_member_that_was_lost_learns_it_at_the_end(jobs: FakeJobs, cluster: Cluster) -> None:
    async with Membership(cluster, JOB._replace(timeout_ms=150), patience_ms=PATIENCE_MS) as membership:
        await membership.join()
        jobs.refusals.append(warmlog.ProducerFenced("no member"))
        await until(lambda: not jobs.refusals)
        count = len(jobs.requests)
        await asyncio.sleep(0.2)
        assert len(jobs.requests) == count, "a refused heartbeat is the last"
        jobs.refusals.append(warmlog.ProducerFenced("no member"))
        with pytest.raises(warmlog.ProducerFenced):
            await membership.confirm()


async def test_a_task_that_fails_aborts_what_it_has_written(jobs: FakeJobs, cluster: Cluster) -> None:
    async def fail(membership: Membership, *, joins: bool) -> None:
        if joins:
            await membership.join()
        raise ValueError("row")

    for joins in (False, True):
        with pytest.raises(ValueError, match="row"):
            async with Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership:
                await fail(membership, joins=joins)
    assert jobs.requests == [m.JoinJobRequest(*JOB), m.AbortJobMembersRequest("job", 7, [MEMBER])]


async def test_a_commit_is_retried_until_a_response(jobs: FakeJobs, cluster: Cluster) -> None:
    jobs.refusals += [warmlog.CoordinatorLoadInProgress("loading")]
    other = m.JobMember(91, 0)
    assert await commit_job(cluster, JOB, [MEMBER, other], records=5, patience_ms=PATIENCE_MS) == m.CommitJobResponse(
        False, 5
    )
    assert jobs.requests == [m.CommitJobRequest("job", 7, [MEMBER, other], 5)] * 2


async def test_a_commit_without_a_response_says_that_it_may_have_been_done(jobs: FakeJobs, cluster: Cluster) -> None:
    jobs.broker.is_silent = True
    with pytest.raises(
        warmlog.DeliveryTimeout, match=r"version 7 of job 'job' may have been committed: .* for 0.3 s: "
    ) as e:
        await commit_job(cluster, JOB, [MEMBER], records=1, patience_ms=300)
    assert isinstance(e.value.__cause__, warmlog.BrokerUnavailable)


async def test_a_commit_that_is_refused_is_not_retried(jobs: FakeJobs, cluster: Cluster) -> None:
    jobs.refusals.append(warmlog.TransactionAbortable("its timeout was over"))
    with pytest.raises(warmlog.TransactionAbortable, match="its timeout was over"):
        await commit_job(cluster, JOB, [MEMBER], records=1, patience_ms=PATIENCE_MS)
    jobs.refusals.append(warmlog.InvalidTxnState("version 7 is committed"))
    with pytest.raises(warmlog.InvalidTxnState):
        await abort_job_members(cluster, JOB, [MEMBER], patience_ms=PATIENCE_MS)
    assert jobs.requests == [m.CommitJobRequest("job", 7, [MEMBER], 1), m.AbortJobMembersRequest("job", 7, [MEMBER])]
