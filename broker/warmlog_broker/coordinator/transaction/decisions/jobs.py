"""What a coordinator decides about a job: many producers, its members, that write one transaction.

The versions of a job are committed one after another. Members join the open version and write, each as a producer of
its own; one decision then commits those that it names and aborts all others. Repeating the last committed version
reports that, and writes nothing. An older version is refused: its input has changed since.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record
from warmlog_broker.coordinator.transaction.decisions.records import (
    NO_VERSION,
    End,
    JobKey,
    JobValue,
    MemberKey,
    MemberStatus,
    MemberValue,
    PartitionKey,
    PartitionValue,
    Status,
    put,
    remove,
)
from warmlog_broker.coordinator.transaction.decisions.state import (
    ID_BYTES,
    MAX_MEMBERS,
    MEMBER_BYTES,
    PART_BYTES,
    Given,
    Incarnation,
    Job,
    Outcome,
    Slot,
    Transactions,
    check_parts,
    check_timeout,
    check_topics,
    check_transactional_id,
)
from warmlog_protocol import errors
from warmlog_protocol.batch.header import LAST_PRODUCER_EPOCH

Committed = tuple[bool, int]
"""Whether the version was committed before, and its number of records."""


def join(
    transactions: Transactions, given: Given, transactional_id: str, version: int, timeout_ms: int, owner: str
) -> Decision[Incarnation | None]:
    """Give a slot to a new member of the transaction for `version`, which the first one begins.

    None as a result: the version is committed. StaleJobVersion, InvalidTxnState,
    ConcurrentTransactions while members are ending.
    """
    job = _job(transactions, transactional_id, version)
    check_timeout(timeout_ms, given.config.transaction_job_max_timeout_ms)
    if job is None:
        given.check_room(len(transactions))
    elif version == job.value.committed_version:
        return Decision((), None)
    value = _open(job, version, owner)
    given.may_hold(value.owner, MEMBER_BYTES + (ID_BYTES if job is None else 0))
    records: list[Record] = []
    if value.status is Status.EMPTY:
        began = replace(
            value,
            current_version=version,
            status=Status.ONGOING,
            timeout_ms=timeout_ms,
            began_ms=given.now_ms,
            changed_ms=given.now_ms,
        )
        records.append(put(JobKey(transactional_id), began))
    slot, producer = _free_slot(job, given)
    records.append(put(MemberKey(transactional_id, slot), MemberValue(*producer, MemberStatus.WRITING)))
    return Decision(records, producer)


def check_member(transactions: Transactions, transactional_id: str, version: int, producer: Incarnation) -> None:
    """Raise ProducerFenced unless the producer is a member of the open transaction for `version`."""
    job = _job(transactions, transactional_id, version)
    if job is None or job.value.current_version != version or _writing(job, producer) is None:
        raise _lost(transactional_id, version, producer)


def enrol_member(job: Job, producer: Incarnation, partition: PartitionId, topic: str, given: Given) -> Decision[None]:
    """Make a partition part of what the producer writes. ProducerFenced if it is no member of the open transaction."""
    slot = job.slots.get(producer.producer_id)
    if slot is None:
        raise errors.InvalidProducerIdMapping(
            f"producer {producer.producer_id} is no member of the job {job.transactional_id!r}"
        )
    if _writing(job, producer) is None:
        raise _lost(job.transactional_id, job.value.current_version, producer)
    partitions = job.members[slot].partitions
    if partition in partitions:
        return Decision((), None)
    check_parts(job.transactional_id, len(partitions) + 1)
    given.may_hold(job.value.owner, PART_BYTES)
    return Decision([put(PartitionKey(job.transactional_id, *partition, slot), PartitionValue(topic))], None)


def commit(
    transactions: Transactions,
    given: Given,
    transactional_id: str,
    version: int,
    winners: Iterable[Incarnation],
    records: int,
    owner: str,
) -> Decision[Committed]:
    """Commit what `winners` have written for `version`, and abort all others. A repeated request has no effect.

    TransactionAbortable if a winner is no member of the open transaction, as it was aborted; InconsistentTopicId if
    winners have written to a topic before and after it was recreated; StaleJobVersion, InvalidTxnState,
    ConcurrentTransactions.
    """
    if records < 0:
        raise errors.InvalidRequest(f"{records} records, it must be at least 0")
    job = _job(transactions, transactional_id, version)
    if job is None:
        given.check_room(len(transactions))
        given.may_hold(owner, ID_BYTES)
    elif version == job.value.committed_version:
        return Decision((), (True, job.value.committed_records))
    value = _open(job, version, owner)
    slots = tuple(dict.fromkeys(_winner(job, transactional_id, version, winner) for winner in winners))
    if job is not None:
        check_topics(each for slot in slots for each in job.members[slot].partitions.items())
    is_open = value.status is Status.ONGOING
    decided = replace(
        value,
        current_version=version,
        status=Status.COMMITTING if is_open else Status.EMPTY,
        end=End.COMMITTED,
        committed_version=version,
        committed_records=records,
        winners=slots,
        changed_ms=given.now_ms,
    )
    return Decision([put(JobKey(transactional_id), decided)], (False, records))


def abort_members(
    transactions: Transactions, _given: Given, transactional_id: str, version: int, producers: Iterable[Incarnation]
) -> Decision[None]:
    """Abort what these members have written for `version`, which others may go on with. Unknown ones are ignored.

    InvalidTxnState if the version is committed.
    """
    job = _job(transactions, transactional_id, version)
    if job is None:
        return Decision((), None)
    if version == job.value.committed_version:
        raise errors.InvalidTxnState(f"job {transactional_id!r}: version {version} is committed")
    if job.value.status is not Status.ONGOING or job.value.current_version != version:
        return Decision((), None)
    named = {producer: member for producer in producers if (member := _writing(job, producer)) is not None}
    return Decision(
        [
            put(
                MemberKey(transactional_id, job.slots[producer.producer_id]),
                replace(member.value, status=MemberStatus.ABORTING),
            )
            for producer, member in named.items()
        ],
        None,
    )


def abort_all(job: Job, end: End, now_ms: int) -> Record:
    return put(JobKey(job.transactional_id), replace(job.value, status=Status.ABORTING, end=end, changed_ms=now_ms))


def complete_members(job: Job, outcomes: Iterable[Outcome], now_ms: int) -> list[Record]:
    """Return the records that free the slots of these members, and close the transaction if none is left."""
    name = job.transactional_id
    records: list[Record] = []
    left = {slot for slot, member in job.members.items() if member.value.status is not MemberStatus.FREE}
    for outcome in outcomes:
        slot = job.slots.get(outcome.marker.producer_id)
        if slot is None or slot not in left or job.members[slot].marker != outcome.marker:
            continue
        left.remove(slot)
        records += [remove(PartitionKey(name, *each, slot)) for each in job.members[slot].partitions]
        if outcome.marker.epoch > LAST_PRODUCER_EPOCH:
            records.append(remove(MemberKey(name, slot)))
        else:
            records.append(put(MemberKey(name, slot), MemberValue(*outcome.marker, MemberStatus.FREE)))
    if not left and job.value.status is not Status.EMPTY:
        closed = replace(job.value, status=Status.EMPTY, winners=(), began_ms=-1, changed_ms=now_ms)
        records.append(put(JobKey(name), closed))
    return records


def forget_slots(job: Job) -> list[Record]:
    """Return the records that remove the slots of a job that rests."""
    return [remove(MemberKey(job.transactional_id, slot)) for slot in job.members]


def forget(job: Job) -> list[Record]:
    return [*forget_slots(job), remove(JobKey(job.transactional_id))]


def _job(transactions: Transactions, transactional_id: str, version: int) -> Job | None:
    """Return the job if there is one. Raises what is wrong with the names."""
    check_transactional_id(transactional_id)
    if version < 0:
        raise errors.InvalidRequest(f"version {version} of a job, it must be at least 0")
    found = transactions.get(transactional_id)
    if found is None:
        return None
    if not isinstance(found, Job):
        raise errors.InvalidTxnState(f"transactional id {transactional_id!r} belongs to a producer, not to a job")
    if version < found.value.committed_version:
        raise errors.StaleJobVersion(
            f"job {transactional_id!r} has committed version {found.value.committed_version}, and is asked for version "
            f"{version}: its state was restored from an old copy"
        )
    return found


def _open(job: Job | None, version: int, owner: str) -> JobValue:
    """Return the value of a job that may write and decide `version` now. A new one belongs to `owner`."""
    if job is None:
        return JobValue(NO_VERSION, Status.EMPTY, owner=owner)
    value, current = job.value, job.value.current_version
    if job.is_ending:
        raise errors.ConcurrentTransactions(f"version {current} of job {job.transactional_id!r} is still ending: retry")
    if value.status is Status.ONGOING and current != version:
        raise errors.InvalidTxnState(
            f"job {job.transactional_id!r}: version {current} is undecided, so version {version} cannot begin: "
            "another program uses the same name, or the last one ended without a decision and its timeout, "
            f"{value.timeout_ms} ms, has not passed"
        )
    return value


def _free_slot(job: Job | None, given: Given) -> tuple[int, Incarnation]:
    members = {} if job is None else job.members
    free = None if job is None else next(iter(job.free), None)
    if free is not None:
        return free, members[free].producer
    if len(members) >= MAX_MEMBERS:
        raise errors.InvalidTxnState(f"a job may have {MAX_MEMBERS} members at a time, and has as many")
    producer = Incarnation(given.fresh_id, 0)
    slot = len(members)
    while slot in members:
        slot += 1
    return slot, producer


def _writing(job: Job, producer: Incarnation) -> Slot | None:
    """Return the member that may write as `producer` now."""
    member = job.members.get(job.slots.get(producer.producer_id, -1))
    if member is None or member.producer != producer or job.value.status is not Status.ONGOING:
        return None
    return member if member.value.status is MemberStatus.WRITING else None


def _winner(job: Job | None, transactional_id: str, version: int, producer: Incarnation) -> int:
    """Return the slot of a producer that is to be committed."""
    if job is None or _writing(job, producer) is None:
        raise errors.TransactionAbortable(
            f"job {transactional_id!r}, version {version}: producer {producer.producer_id}, epoch {producer.epoch} is "
            "no member any more: its transaction was aborted by its timeout or by an operator"
        )
    return job.slots[producer.producer_id]


def _lost(transactional_id: str, version: int, producer: Incarnation) -> errors.ProducerFenced:
    return errors.ProducerFenced(
        f"job {transactional_id!r}: producer {producer.producer_id}, epoch {producer.epoch} is no member of the open "
        f"transaction for version {version}: it was decided or aborted without it"
    )
