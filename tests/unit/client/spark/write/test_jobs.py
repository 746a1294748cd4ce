"""Which transaction a write has, and what the driver makes of the tasks' messages."""

from collections.abc import Iterator

import pytest
from pyspark import TaskContext

from broker_in_thread import broker_in_thread
from fake_broker import FakeBroker
from warmlog.arrow_write.job import Job
from warmlog.errors import ApiError, ClientError, DeliveryTimeout, InvalidTxnState
from warmlog.spark.options.write_options import WriteOptions
from warmlog.spark.write.jobs import AttemptWritten, abort_written, batch_job, commit_written, stream_job
from warmlog_protocol import messages as m

ANYWHERE = WriteOptions(("127.0.0.1:1",), "t", delivery_timeout_ms=100)
JOB = Job("spark-q", 4)


class FakeContext:
    def __init__(self, **properties: str) -> None:
        self._properties = {key.replace("_", "."): value for key, value in properties.items()}

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - PySpark's
        return self._properties.get(key)


def test_a_batch_is_named_by_the_user_or_by_an_id_of_its_own() -> None:
    named = WriteOptions(("b:1",), transaction=("nightly", 3), transaction_timeout_ms=5_000)
    assert batch_job(named) == Job("nightly", 3, 5_000)
    to_topic = WriteOptions(("b:1",), "t", transaction=("nightly", 3))
    assert batch_job(to_topic) == Job("nightly/t", 3), "as with Delta, one name serves several destinations"
    first, second = batch_job(ANYWHERE), batch_job(ANYWHERE)
    assert first is not None
    assert second is not None
    assert first.transactional_id.startswith("spark-")
    assert first.transactional_id != second.transactional_id
    assert (first.version, first.timeout_ms) == (0, 900_000)
    assert batch_job(WriteOptions(("b:1",), is_exactly_once=False)) is None


def test_a_stream_is_named_by_query_and_topic_with_its_micro_batch_as_version(monkeypatch: pytest.MonkeyPatch) -> None:
    context = FakeContext(sql_streaming_queryId="1-2", streaming_sql_batchId="17")
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    assert stream_job(ANYWHERE) == Job("spark-1-2/t", 17, 900_000)
    assert stream_job(WriteOptions(("b:1",))) == Job("spark-1-2", 17, 900_000), "rows name their topics"
    assert stream_job(WriteOptions(("b:1",), is_exactly_once=False)) is None
    for known in (None, FakeContext(sql_streaming_queryId="1-2")):
        monkeypatch.setattr(TaskContext, "get", lambda: known)  # noqa: B023 - called in this turn
        with pytest.raises(ClientError, match="set the option delivery to at-least-once"):
            stream_job(ANYWHERE)


def test_topics_with_long_names_have_transactions_of_their_own() -> None:
    app = "é" * 20
    jobs = [
        batch_job(WriteOptions(("b:1",), topic, transaction=(app, 3)))
        for topic in ("t" * 208, "t" * 209, "t" * 248 + "a", "t" * 248 + "b")
    ]
    names = [job.transactional_id for job in jobs if job is not None]
    assert names[0] == app + "/" + "t" * 208
    assert len(set(names)) == 4
    assert all(name.startswith(app + "/") and len(name.encode()) <= 249 for name in names)


class Driver:
    """What a broker in memory was asked by a driver."""

    def __init__(self, broker: FakeBroker) -> None:
        self.options = WriteOptions((broker.address,), "t", delivery_timeout_ms=500)
        self.requests: list[m.Message] = []
        self.committed = m.CommitJobResponse(False, 8)
        self.refusal: ApiError | None = None
        broker.further_handlers = {m.CommitJobRequest: self._commit, m.AbortJobMembersRequest: self._abort}

    def _commit(self, request: m.CommitJobRequest) -> m.Message:
        self.requests.append(request)
        return self.committed

    def _abort(self, request: m.AbortJobMembersRequest) -> m.Message:
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        return m.AbortJobMembersResponse()


@pytest.fixture
def driver() -> Iterator[Driver]:
    with broker_in_thread(t=1) as fake:
        yield Driver(fake)


WRITTEN = [AttemptWritten(5, 70, 0, JOB), None, AttemptWritten(0, -1, -1, JOB), AttemptWritten(3, 71, 2, JOB)]
MEMBERS = [m.JobMember(70, 0), m.JobMember(71, 2)]


def test_attempts_that_spark_names_are_committed_and_aborted(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    commit_written(driver.options, WRITTEN, "")
    abort_written(driver.options, WRITTEN)
    assert driver.requests == [
        m.CommitJobRequest("spark-q", 4, MEMBERS, 8),
        m.AbortJobMembersRequest("spark-q", 4, MEMBERS),
    ]
    assert caplog.text == ""


def test_a_write_without_rows_is_committed_and_one_of_which_nothing_is_known_asks_nothing(driver: Driver) -> None:
    empty = [AttemptWritten(0, -1, -1, JOB)]
    commit_written(driver.options, empty, "")
    assert driver.requests == [m.CommitJobRequest("spark-q", 4, [], 0)]
    abort_written(driver.options, empty)
    abort_written(driver.options, [None, None])
    commit_written(driver.options, [AttemptWritten(3, 70, 0)], "")
    assert len(driver.requests) == 1


def test_a_repeat_with_another_number_of_records_is_warned_of(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    driver.committed = m.CommitJobResponse(True, 8)
    commit_written(driver.options, WRITTEN, "")
    assert caplog.text == ""
    driver.committed = m.CommitJobResponse(True, 9)
    commit_written(driver.options, WRITTEN, "")
    assert "version 4 of job 'spark-q' was committed before, with 9 records: the 8 of this run are not" in caplog.text


def test_an_abort_after_the_commit_says_that_it_is_committed(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    driver.refusal = InvalidTxnState("version 4 is committed")
    abort_written(driver.options, WRITTEN)
    assert "version 4 of job 'spark-q' is committed: its records stay in the log" in caplog.text


def test_a_batch_without_a_name_ends_with_all_its_attempts(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    driver.committed = m.CommitJobResponse(False, 0)
    abort_written(driver.options, [None], JOB)
    assert driver.requests == [m.CommitJobRequest("spark-q", 4, [], 0)]
    assert caplog.text == ""
    driver.committed = m.CommitJobResponse(True, 8)
    abort_written(driver.options, WRITTEN, JOB)
    assert "version 4 of job 'spark-q' is committed: its records stay in the log" in caplog.text


def test_an_end_that_no_broker_hears_fails_a_commit_and_warns_of_an_abort(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DeliveryTimeout, match=r"may have been committed: .*\. Do this\."):
        commit_written(ANYWHERE, WRITTEN, "Do this.")
    abort_written(ANYWHERE, WRITTEN)
    assert "version 4 of job 'spark-q': the abort is left to the next run or to transactionTimeoutMs" in caplog.text


def test_messages_of_different_transactions_are_a_bug() -> None:
    with pytest.raises(ClientError, match="tasks of one write wrote in different transactions"):
        commit_written(ANYWHERE, [*WRITTEN, AttemptWritten(1, 72, 0, Job("spark-q", 5))], "")
