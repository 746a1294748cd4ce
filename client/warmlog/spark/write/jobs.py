"""The transaction of a write: which one it is, and how the driver ends it.

A stream's is named by its query, and its version is the number of the micro-batch: Spark can only run the last one
again, under the same number and with the same rows. A batch's is named by the user, or by an id of this one write. To
the names of queries and users the option `topic` is added: a stream that starts with a copy of another one's checkpoint
has the same query, and users of Delta write several tables in one micro-batch under one name.

In PySpark 4.0 to 4.3 the tasks of a stream find both in their TaskContext. The process that commits has no TaskContext
and another writer object; it is given the number and the tasks' messages, so each message names the transaction, also
that of a task without rows. A batch that is written by foreachBatch has these properties, too, but may be one of
several of its micro-batch: they are not used there.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from warmlog.arrow_write.job import Job, abort_job_members, commit_job
from warmlog.errors import ApiError, ClientError, DeliveryTimeout, InvalidTxnState
from warmlog.spark.options.write_options import WriteOptions
from warmlog_protocol.messages import JobMember
from warmlog_transport.cluster import Cluster
from warmlog_transport.loop_thread import LoopThread

ABORT_TIMEOUT_MS = 10_000
"""How long an abort is retried. If it fails, the next run or the timeout aborts."""
MAX_NAME_BYTES = 249
"""Of a transactional id; a topic's name may be as long."""

_log = logging.getLogger("warmlog.spark")


@dataclass
class AttemptWritten(WriterCommitMessage):  # type: ignore[misc]
    """What one task attempt has written: its records, its producer id and epoch (-1 if it sent nothing), its job.

    With a job but without a producer the attempt had no rows, or the version was committed before.
    """

    records: int
    producer_id: int
    producer_epoch: int
    job: Job | None = None


Messages = Iterable[WriterCommitMessage | None]
"""One for each task, None for one that has failed."""


def batch_job(options: WriteOptions) -> Job | None:
    """Return the transaction of one DataFrame's writer; None to write at least once."""
    if not options.is_exactly_once:
        return None
    if options.transaction is None:
        return Job(f"spark-{uuid4()}", 0, options.transaction_timeout_ms)
    name, version = options.transaction
    return Job(_with_topic(name, options), version, options.transaction_timeout_ms)


def stream_job(options: WriteOptions) -> Job | None:
    """Return the transaction of the micro-batch of the running task; None to write at least once."""
    if not options.is_exactly_once:
        return None
    context = TaskContext.get()
    query = context and context.getLocalProperty("sql.streaming.queryId")
    batch = context and context.getLocalProperty("streaming.sql.batchId")
    if not query or not batch:
        raise ClientError(
            "Spark does not tell this task its query and micro-batch, which exactly once needs: set the option "
            "delivery to at-least-once"
        )
    return Job(_with_topic(f"spark-{query}", options), int(batch), options.transaction_timeout_ms)


def _with_topic(name: str, options: WriteOptions) -> str:
    """Return the transactional id of all writes of this name to the topic; no topic's name has a slash.

    If that is too long, a hash stands for the topic.
    """
    if options.topic is None:
        return name
    full = f"{name}/{options.topic}"
    if len(full.encode()) <= MAX_NAME_BYTES:
        return full
    return f"{name}//{sha256(options.topic.encode()).hexdigest()[:32]}"


def commit_written(options: WriteOptions, messages: Messages, when_unknown: str) -> None:
    """Commit what the attempts of `messages` have written.

    Raises what `commit_job` does; with `when_unknown`, what to do, if it is not known whether it is committed.
    """
    if not (written := _of_jobs(messages)):
        return
    job = _only_job(written)
    records = sum(message.records for message in written)
    patience_ms = options.delivery_timeout_ms
    with _connected(options) as (thread, cluster):
        try:
            committed = thread.call(
                lambda: commit_job(cluster, job, _members(written), records=records, patience_ms=patience_ms)
            )
        except DeliveryTimeout as error:
            raise DeliveryTimeout(f"{error}. {when_unknown}") from error
    if committed.is_repeat and committed.records != records:
        _log.warning(
            "%s was committed before, with %d records: the %d of this run are not written. Its input has changed "
            "since, or another write has the same txnAppId and txnVersion",
            job,
            committed.records,
            records,
        )


def abort_written(options: WriteOptions, messages: Messages, unnamed: Job | None = None) -> None:
    """Abort what the attempts of `messages` have written; other attempts are aborted by the next run or the timeout.

    `unnamed`: the job of a batch that cannot be run again. To commit it without winners aborts every attempt, also
    those that Spark has no message of. It never fails. If the transaction is committed, as after a commit whose
    response was lost, a warning says so.
    """
    written = _of_jobs(messages)
    members = _members(written)
    if not members and unnamed is None:
        return
    job = unnamed or _only_job(written)
    patience_ms = min(ABORT_TIMEOUT_MS, options.delivery_timeout_ms)
    is_committed = False
    try:
        with _connected(options) as (thread, cluster):
            if unnamed is not None:
                committed = thread.call(lambda: commit_job(cluster, job, [], records=0, patience_ms=patience_ms))
                is_committed = committed.records > 0
            else:
                thread.call(lambda: abort_job_members(cluster, job, members, patience_ms=patience_ms))
    except InvalidTxnState:
        is_committed = True
    except (ApiError, ClientError) as error:
        _log.warning("%s: the abort is left to the next run or to transactionTimeoutMs: %s", job, error)
    if is_committed:
        _log.warning("%s is committed: its records stay in the log, and are not written again under this version", job)


@contextmanager
def _connected(options: WriteOptions) -> Iterator[tuple[LoopThread, Cluster]]:
    """The cluster of a write's brokers, and the thread that it runs in."""
    make = partial(Cluster, options.bootstrap, options.connection)
    with LoopThread("warmlog commit") as thread, thread.entered(make) as cluster:
        yield thread, cluster


def _of_jobs(messages: Messages) -> list[AttemptWritten]:
    return [message for message in messages if isinstance(message, AttemptWritten) and message.job is not None]


def _members(written: Iterable[AttemptWritten]) -> list[JobMember]:
    return [JobMember(each.producer_id, each.producer_epoch) for each in written if each.producer_id >= 0]


def _only_job(written: Iterable[AttemptWritten]) -> Job:
    jobs = {message.job for message in written}
    job = jobs.pop()
    if job is None or jobs:
        raise ClientError(f"tasks of one write wrote in different transactions: {job}, {', '.join(map(str, jobs))}")
    return job
