"""Attempts of tasks and their drivers when something goes wrong, against a real broker: each row is committed once.

The tests call the writers as Spark does, without a session: an attempt is a call of `write`, and what Spark loses is a
message that the driver is not given.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from broker_process import BrokerProcess
from spark.reading import committed, read_back
from spark.topics import Topics
from waiting import wait_until
from warmlog import errors
from warmlog.arrow_write.job import Job
from warmlog.ranges.discover import Discovery
from warmlog.spark.options.write_options import WriteOptions
from warmlog.spark.write.jobs import AttemptWritten
from warmlog.spark.write.writer import WarmlogWriter
from warmlog_protocol.messages import IsolationLevel

Rows = Iterator[pa.RecordBatch]


def rows(*values: bytes, partition: int | None = None) -> pa.RecordBatch:
    numbers = pa.array([partition] * len(values), pa.int32())
    return pa.RecordBatch.from_pydict({"value": list(values), "partition": numbers})


class Write:
    """One write of a topic: its attempts, and its driver, that may be run again."""

    def __init__(self, broker: BrokerProcess, topic: str, job: Job, **options: object) -> None:
        self.job = job
        named = WriteOptions((broker.address,), topic, batch_bytes=1_000, transaction=(job.transactional_id, 0))
        self.writer = WarmlogWriter(replace(named, **options), {"value": 0, "partition": 1}, job)  # type: ignore[arg-type]

    def attempt(self, *values: bytes) -> AttemptWritten:
        return self.run(iter([rows(*values)] if values else []))

    def run(self, batches: Rows) -> AttemptWritten:
        return self.writer.write(batches)

    def commit(self, *messages: AttemptWritten | None) -> None:
        self.writer.commit(list(messages))

    def abort(self, *messages: AttemptWritten | None) -> None:
        self.writer.abort(list(messages))

    def next(self) -> "Write":
        """The write of the next version."""
        return self.of_version(self.job.version + 1)

    def of_version(self, version: int) -> "Write":
        found = Write.__new__(Write)
        found.job = self.job._replace(version=version)
        found.writer = WarmlogWriter(self.writer._options, self.writer._columns, found.job)
        return found


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create(f"attempts-{uuid4().hex}", partitions=2)


@pytest.fixture
def job() -> Job:
    return Job(f"job-{uuid4().hex}", 5)


@pytest.fixture
def write(broker: BrokerProcess, topic: str, job: Job) -> Write:
    return Write(broker, topic, job)


def ends(broker: BrokerProcess, topic: str, isolation: IsolationLevel) -> list[int]:
    with Discovery([broker.address], isolation=isolation) as discovery:
        return [state.latest for state in discovery.states(discovery.topics([topic]))]


def assert_nothing_is_open(broker: BrokerProcess, topic: str) -> None:
    """Markers may be written after the response of a commit."""
    wait_until(lambda: ends(broker, topic, IsolationLevel.READ_COMMITTED) == ends(broker, topic, 0))  # type: ignore[arg-type]


def failing_after(*batches: pa.RecordBatch, once: Callable[[], bool] = lambda: True) -> Rows:
    yield from batches
    wait_until(once)
    raise ValueError("the row is wrong")


def test_an_attempt_that_fails_before_or_after_its_first_row_is_never_visible(
    broker: BrokerProcess, topic: str, write: Write
) -> None:
    def is_there() -> bool:
        return b"a" in [record.value for record in read_back(broker, topic)]

    with pytest.raises(ValueError, match="the row is wrong"):
        write.run(failing_after())
    with pytest.raises(ValueError, match="the row is wrong"):
        write.run(failing_after(rows(b"a"), rows(b"b" * 2_000), rows(b"c"), once=is_there))
    assert_nothing_is_open(broker, topic)
    write.commit(write.attempt(b"a", b"b", b"c"), None)
    assert committed(broker, topic) == Counter([b"a", b"b", b"c"])


def test_an_attempt_whose_message_is_lost_loses_to_the_one_that_is_run_again(
    broker: BrokerProcess, topic: str, write: Write
) -> None:
    write.attempt(b"a", b"b")
    other, again = write.attempt(b"c"), write.attempt(b"a", b"b")
    assert committed(broker, topic) == Counter()
    write.commit(again, other)
    assert committed(broker, topic) == Counter([b"a", b"b", b"c"])
    assert_nothing_is_open(broker, topic)


@pytest.mark.parametrize("partition", [0, 1])
def test_a_speculative_twin_that_goes_on_after_the_decision_writes_nothing_that_is_visible(
    broker: BrokerProcess, topic: str, write: Write, partition: int
) -> None:
    def twin() -> Rows:
        yield rows(*[b"a" * 2_000] * 3, partition=0)
        wait_until(lambda: len(read_back(broker, topic)) > 0)
        write.commit(write.run(iter([rows(b"a", b"b", partition=0)])))
        yield rows(b"late" * 500, b"late" * 500, partition=partition)

    with pytest.raises(errors.ApiError) as caught:
        write.run(twin())
    assert "epoch" in str(caught.value)
    assert committed(broker, topic) == Counter([b"a", b"b"])
    assert_nothing_is_open(broker, topic)


def test_a_task_without_rows_is_no_member_and_a_write_without_rows_still_counts(
    broker: BrokerProcess, topic: str, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    nothing = write.attempt()
    assert nothing == AttemptWritten(0, -1, -1, write.job)
    write.commit(nothing, None)
    again = write.attempt(b"a", b"b")
    assert again == AttemptWritten(2, -1, -1, write.job), "the version is committed"
    write.commit(again)
    assert "was committed before, with 0 records: the 2 of this run are not written" in caplog.text
    assert committed(broker, topic) == Counter()


def test_after_a_driver_that_died_before_its_commit_the_same_version_is_written_again_and_no_other_begins(
    broker: BrokerProcess, topic: str, write: Write
) -> None:
    write.attempt(b"a"), write.attempt(b"b")
    with pytest.raises(errors.InvalidTxnState, match="version 5 is undecided, so version 6 cannot begin"):
        write.next().attempt(b"c")
    write.commit(write.attempt(b"a"), write.attempt(b"b"))
    write.next().commit(write.next().attempt(b"c"))
    assert committed(broker, topic) == Counter([b"a", b"b", b"c"])
    assert_nothing_is_open(broker, topic)


def test_after_a_driver_that_died_after_its_commit_tasks_only_count_their_rows(
    broker: BrokerProcess, topic: str, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    write.commit(write.attempt(b"a", b"b"), write.attempt(b"c"))
    again = [write.attempt(b"a", b"b"), write.attempt(b"c")]
    assert again == [AttemptWritten(2, -1, -1, write.job), AttemptWritten(1, -1, -1, write.job)]
    write.commit(*again)
    assert caplog.text == ""
    assert committed(broker, topic) == Counter([b"a", b"b", b"c"])
    assert len(read_back(broker, topic)) == 3


def test_a_commit_whose_response_is_lost_is_repeated_without_effect_and_not_undone_by_an_abort(
    broker: BrokerProcess, topic: str, write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [write.attempt(b"a"), write.attempt(b"b")]
    write.commit(*messages)
    write.commit(*messages)
    assert caplog.text == ""
    write.abort(*messages)
    assert "is committed: its records stay in the log" in caplog.text
    assert committed(broker, topic) == Counter([b"a", b"b"])


def test_an_aborted_write_can_be_run_again_under_its_version(broker: BrokerProcess, topic: str, write: Write) -> None:
    messages = [write.attempt(b"a"), None, write.attempt(b"b")]
    write.abort(*messages)
    assert_nothing_is_open(broker, topic)
    with pytest.raises(errors.TransactionAbortable, match="is no member any more"):
        write.commit(*messages)
    write.commit(write.attempt(b"a"), write.attempt(b"b"), write.attempt(b"c"))
    assert committed(broker, topic) == Counter([b"a", b"b", b"c"])


def test_the_abort_of_a_write_that_cannot_be_run_again_aborts_attempts_without_a_message_too(
    broker: BrokerProcess, topic: str, job: Job
) -> None:
    write = Write(broker, topic, job, transaction=None)
    write.attempt(b"lost")
    write.abort(None)
    assert_nothing_is_open(broker, topic)
    assert committed(broker, topic) == Counter()


def test_of_two_drivers_of_the_same_version_the_first_decides_and_the_second_succeeds(
    broker: BrokerProcess, topic: str, write: Write
) -> None:
    zombie, new = [write.attempt(b"a"), write.attempt(b"b")], [write.attempt(b"a"), write.attempt(b"b")]
    write.commit(*new)
    write.commit(*zombie)
    assert committed(broker, topic) == Counter([b"a", b"b"])
    assert_nothing_is_open(broker, topic)


def test_a_zombie_that_joins_late_writes_nothing(broker: BrokerProcess, topic: str, write: Write) -> None:
    write.commit(write.attempt(b"a"))
    write.next().commit(write.next().attempt(b"b"))
    assert write.next().attempt(b"b") == AttemptWritten(1, -1, -1, write.next().job)
    with pytest.raises(errors.StaleJobVersion, match="has committed version 6, and is asked for version 5"):
        write.attempt(b"a")
    with pytest.raises(errors.StaleJobVersion):
        write.commit(write.of_version(5).run(iter([])))
    assert len(read_back(broker, topic)) == 2


def test_a_write_that_no_task_keeps_open_is_aborted_and_can_be_run_again(
    broker: BrokerProcess, topic: str, job: Job
) -> None:
    write = Write(broker, topic, job._replace(timeout_ms=3_000))
    message = write.attempt(b"a")
    assert_nothing_is_open(broker, topic)
    with pytest.raises(errors.TransactionAbortable):
        write.commit(message)
    write.commit(write.attempt(b"a"))
    assert committed(broker, topic) == Counter([b"a"])


def test_a_slow_task_keeps_the_write_open_also_before_its_first_row(
    broker: BrokerProcess, topic: str, job: Job
) -> None:
    write = Write(broker, topic, job._replace(timeout_ms=2_500))

    def slow() -> Rows:
        time.sleep(3)
        yield rows(b"b")
        time.sleep(2)
        yield rows(b"c")

    messages: list[AttemptWritten] = []
    running = threading.Thread(target=lambda: messages.append(write.run(slow())))
    running.start()
    messages.append(write.attempt(b"a"))
    running.join()
    write.commit(*messages)
    assert committed(broker, topic) == Counter([b"a", b"b", b"c"])


def test_short_tasks_one_after_another_keep_the_write_open(broker: BrokerProcess, topic: str, job: Job) -> None:
    write = Write(broker, topic, job._replace(timeout_ms=2_500))

    def short(value: bytes) -> Rows:
        yield rows(value)
        time.sleep(0.4)

    values = [b"%d" % number for number in range(9)]
    write.commit(*[write.run(short(value)) for value in values])
    assert committed(broker, topic) == Counter(values)


def test_a_member_that_was_aborted_while_it_wrote_fails_its_task(broker: BrokerProcess, topic: str, job: Job) -> None:
    write = Write(broker, topic, job)

    def aborted() -> Rows:
        yield rows(b"a")
        write.commit()
        write.commit(write.attempt(b"b"))

    with pytest.raises(errors.ProducerFenced):
        Write(broker, topic, job, batch_bytes=1_000_000).run(aborted())
    assert committed(broker, topic) == Counter([b"b"])


def test_a_topic_that_is_recreated_while_an_attempt_writes_gets_nothing_of_it(
    broker: BrokerProcess, topics: Topics, topic: str, write: Write
) -> None:
    def recreating() -> Rows:
        yield rows(*[b"old" * 500] * 3, partition=0)
        wait_until(lambda: len(read_back(broker, topic)) > 0)
        topics.delete(topic)
        topics.create(topic, partitions=2)
        yield rows(*[b"new" * 500] * 3, partition=0)

    with pytest.raises(errors.InconsistentTopicId, match="was deleted and recreated while a task wrote it"):
        write.run(recreating())
    write.commit(write.attempt(b"a"))
    assert committed(broker, topic) == Counter([b"a"])


@pytest.fixture
def own(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path) as broker:
        with Topics(broker.host, broker.port) as topics:
            topics.create("t", partitions=2)
        yield broker


def test_a_broker_that_is_killed_while_an_attempt_writes_costs_and_repeats_nothing(
    own: BrokerProcess, job: Job
) -> None:
    write = Write(own, "t", job)
    values = [b"%0100d" % number for number in range(200)]

    def batches() -> Rows:
        for first in range(0, 200, 20):
            yield rows(*values[first : first + 20])
            if first in (0, 100):
                own.kill()
                own.start()

    write.commit(write.run(batches()))
    assert committed(own, "t") == Counter(values)


def test_a_broker_that_is_killed_at_any_moment_of_a_commit_decides_it_once(own: BrokerProcess, job: Job) -> None:
    """The commit is lost, or recorded but not acknowledged, or its markers are not all written."""
    write = Write(own, "t", job)
    for round_number in range(6):
        messages = [write.attempt(b"%d-%d" % (round_number, number)) for number in range(3)]
        write.attempt(b"lost")
        committing = threading.Thread(target=write.commit, args=messages)
        committing.start()
        time.sleep(0.002 * round_number)
        own.kill()
        own.start()
        committing.join()
        write = write.next()
    assert_nothing_is_open(own, "t")
    assert committed(own, "t") == Counter([b"%d-%d" % (each, number) for each in range(6) for number in range(3)])


def test_a_commit_that_no_broker_hears_says_that_the_outcome_is_unknown_and_the_next_run_settles_it(
    own: BrokerProcess, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    message = Write(own, "t", job).attempt(b"a")
    write = Write(own, "t", job, delivery_timeout_ms=300)
    own.kill()
    with pytest.raises(errors.DeliveryTimeout, match=r"may have been committed: .*Run it again with the same txnAppId"):
        write.commit(message)
    with caplog.at_level(logging.WARNING):
        write.abort(message)
    assert "the abort is left to the next run or to transactionTimeoutMs" in caplog.text
    own.start()
    write = Write(own, "t", job)
    write.commit(write.attempt(b"a"))
    assert committed(own, "t") == Counter([b"a"])
    assert_nothing_is_open(own, "t")
