"""Members of a job and its driver, against a broker in memory: who writes, what is kept open, what is refused."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from broker_in_thread import broker_in_thread
from fake_broker import FakeBroker, Fault
from waiting import wait_until
from warmlog.arrow_write.job import Job, Membership, abort_job_members, commit_job
from warmlog.arrow_write.producer import ArrowBatch, BlockingProducer
from warmlog.arrow_write.rows import ArrowRows, PreparedRows
from warmlog.errors import (
    ApiError,
    BrokerUnavailable,
    ClientError,
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    DeliveryTimeout,
    InvalidTxnState,
    ProducerFenced,
    StaleJobVersion,
    TransactionAbortable,
    UnknownProducerId,
)
from warmlog.sockets.cluster import BlockingCluster
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
    Message,
)
from warmlog_transport.options import ConnectionOptions

OPTIONS = ConnectionOptions(
    connect_timeout_ms=1000, request_timeout_ms=500, retry_backoff_ms=5, retry_backoff_max_ms=20
)
JOB = Job("job", 7, 60_000)
PATIENCE_MS = 2_000
MEMBER = JobMember(90, 3)


@dataclass
class FakeJobs:
    """What jobs have asked, and how it is answered."""

    broker: FakeBroker
    requests: list[Message] = field(default_factory=list)
    joined: JoinJobResponse = JoinJobResponse(False, 90, 3)  # noqa: RUF009 - frozen
    committed: CommitJobResponse = CommitJobResponse(False, 5)  # noqa: RUF009 - frozen
    refusals: list[ApiError] = field(default_factory=list)
    """Of the next requests."""

    def __post_init__(self) -> None:
        self.broker.further_handlers = {
            JoinJobRequest: self._responding(lambda: self.joined),
            JobHeartbeatRequest: self._responding(JobHeartbeatResponse),
            CommitJobRequest: self._responding(lambda: self.committed),
            AbortJobMembersRequest: self._responding(AbortJobMembersResponse),
        }

    def of(self, kind: type[Message]) -> list[Message]:
        return [request for request in self.requests if isinstance(request, kind)]

    def _responding(self, response: Callable[[], Message]) -> Callable[[Message], Message]:
        def respond(request: Message) -> Message:
            self.requests.append(request)
            if self.refusals:
                raise self.refusals.pop(0)
            return response()

        return respond


@pytest.fixture
def jobs() -> Iterator[FakeJobs]:
    with broker_in_thread(t=2) as fake:
        yield FakeJobs(fake)


@pytest.fixture
def cluster(jobs: FakeJobs) -> Iterator[BlockingCluster]:
    with BlockingCluster(jobs.broker.address, OPTIONS) as cluster:
        yield cluster


def batch_of(*values: bytes, partition: int = 0) -> ArrowBatch:
    return ArrowBatch("t", partition, [PreparedRows(ArrowRows(pa.array(values))).span()], 100, 5)


def producer_of(cluster: BlockingCluster, member: JobMember | None) -> BlockingProducer:
    assert member is not None
    return BlockingProducer(
        cluster, options=OPTIONS, transactional_id=JOB.transactional_id, producer=(member.producer_id, 3)
    )


def test_a_member_writes_in_the_jobs_transaction_with_the_producer_that_it_was_given(
    jobs: FakeJobs, cluster: BlockingCluster
) -> None:
    jobs.broker.faults.append(Fault.LOSE_ANSWER)
    with Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership:
        member = membership.join()
        assert (member, membership.join()) == (MEMBER, MEMBER)
        with producer_of(cluster, member) as producer:
            for number in range(4):
                producer.send(batch_of(b"%d" % number, partition=number % 2))
            producer.flush()
        membership.confirm()
    assert jobs.requests == [JoinJobRequest("job", 7, 60_000), JobHeartbeatRequest("job", 7, MEMBER)]
    assert {request.transactional_id for request in jobs.broker.produced} == {"job"}
    batches = [batch for partition in jobs.broker.topics["t"] for batch in partition.read_all()]
    assert [batch.values() for batch in batches] == [[b"0"], [b"2"], [b"1"], [b"3"]]
    headers = [batch.header for batch in batches]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {(90, 3)}
    assert all(header.is_transactional for header in headers)
    assert [header.base_sequence for header in headers] == [0, 1, 0, 1]


def test_a_member_whose_producer_is_unknown_ends_and_takes_no_other_epoch(
    jobs: FakeJobs, cluster: BlockingCluster
) -> None:
    jobs.broker.faults.append(Fault.UNKNOWN_PRODUCER)
    with (
        Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership,
        producer_of(cluster, membership.join()) as producer,
    ):
        producer.send(batch_of(b"v"))
        with pytest.raises(UnknownProducerId, match="1 records for t-0"):
            producer.flush()
    assert jobs.broker.topics["t"][0].read_all() == []


def test_a_member_that_was_interrupted_sends_the_rest_again_but_begins_no_further_sequence(
    jobs: FakeJobs, cluster: BlockingCluster
) -> None:
    with (
        Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership,
        producer_of(cluster, membership.join()) as producer,
    ):
        jobs.broker.faults.append(Fault.HOLD)
        producer.send(batch_of(b"a"))
        producer.is_cut_short = True  # as after Ctrl-C, anywhere in the call
        producer.flush()
        assert producer.records == 1
        producer.is_cut_short = True
        with pytest.raises(ClientError, match="a member of a job cannot continue under another epoch: join the job"):
            producer.send(batch_of(b"b"))
    assert jobs.broker.topics["t"][0].values() == [b"a"]


def test_joining_is_retried_while_that_may_pass_and_else_says_why_not(jobs: FakeJobs, cluster: BlockingCluster) -> None:
    jobs.refusals += [CoordinatorLoadInProgress("loading"), ConcurrentTransactions("ending")]
    with Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership:
        assert membership.join() == MEMBER
    for error in (StaleJobVersion("version 9 is committed"), InvalidTxnState("version 6 is undecided")):
        jobs.refusals.append(error)
        with (
            Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership,
            pytest.raises(type(error), match=str(error)),
        ):
            membership.join()


def test_a_version_that_is_committed_has_no_members(jobs: FakeJobs, cluster: BlockingCluster) -> None:
    jobs.joined = JoinJobResponse(True)
    with Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership:
        assert membership.join() is None
        membership.confirm()
    assert jobs.requests == [JoinJobRequest(*JOB)]


def test_heartbeats_keep_the_transaction_open_also_of_a_task_that_waits_for_its_first_record(
    jobs: FakeJobs, cluster: BlockingCluster
) -> None:
    job = JOB._replace(timeout_ms=150)
    with Membership(cluster, job, patience_ms=PATIENCE_MS):
        assert jobs.requests == []
        wait_until(lambda: len(jobs.of(JobHeartbeatRequest)) >= 3)
        jobs.broker.disconnect()
        count = len(jobs.requests)
        wait_until(lambda: len(jobs.requests) > count + 2)
    assert jobs.of(JoinJobRequest) == [JoinJobRequest(*job)]
    count = len(jobs.requests)
    time.sleep(0.2)
    assert len(jobs.requests) == count, "heartbeats end with the task"


def test_a_member_that_was_lost_learns_it_at_the_end(jobs: FakeJobs, cluster: BlockingCluster) -> None:
    with Membership(cluster, JOB._replace(timeout_ms=150), patience_ms=PATIENCE_MS) as membership:
        membership.join()
        jobs.refusals.append(ProducerFenced("no member"))
        wait_until(lambda: not jobs.refusals)
        count = len(jobs.requests)
        time.sleep(0.2)
        assert len(jobs.requests) == count, "a refused heartbeat is the last"
        jobs.refusals.append(ProducerFenced("no member"))
        with pytest.raises(ProducerFenced):
            membership.confirm()


def test_a_task_that_fails_aborts_what_it_has_written(jobs: FakeJobs, cluster: BlockingCluster) -> None:
    def fail(membership: Membership, *, joins: bool) -> None:
        if joins:
            membership.join()
        raise ValueError("row")

    for joins in (False, True):
        with (
            pytest.raises(ValueError, match="row"),
            Membership(cluster, JOB, patience_ms=PATIENCE_MS) as membership,
        ):
            fail(membership, joins=joins)
    assert jobs.requests == [JoinJobRequest(*JOB), AbortJobMembersRequest("job", 7, [MEMBER])]


def test_a_commit_is_retried_until_a_response(jobs: FakeJobs, cluster: BlockingCluster) -> None:
    jobs.refusals += [CoordinatorLoadInProgress("loading")]
    other = JobMember(91, 0)
    assert commit_job(cluster, JOB, [MEMBER, other], records=5, patience_ms=PATIENCE_MS) == CommitJobResponse(False, 5)
    assert jobs.requests == [CommitJobRequest("job", 7, [MEMBER, other], 5)] * 2


def test_a_commit_without_a_response_says_that_it_may_have_been_done(jobs: FakeJobs, cluster: BlockingCluster) -> None:
    jobs.broker.is_silent = True
    with pytest.raises(DeliveryTimeout, match=r"version 7 of job 'job' may have been committed: .* for 0.3 s: ") as e:
        commit_job(cluster, JOB, [MEMBER], records=1, patience_ms=300)
    assert isinstance(e.value.__cause__, BrokerUnavailable)


def test_a_commit_that_is_refused_is_not_retried(jobs: FakeJobs, cluster: BlockingCluster) -> None:
    jobs.refusals.append(TransactionAbortable("its timeout was over"))
    with pytest.raises(TransactionAbortable, match="its timeout was over"):
        commit_job(cluster, JOB, [MEMBER], records=1, patience_ms=PATIENCE_MS)
    jobs.refusals.append(InvalidTxnState("version 7 is committed"))
    with pytest.raises(InvalidTxnState):
        abort_job_members(cluster, JOB, [MEMBER], patience_ms=PATIENCE_MS)
    assert jobs.requests == [CommitJobRequest("job", 7, [MEMBER], 1), AbortJobMembersRequest("job", 7, [MEMBER])]
