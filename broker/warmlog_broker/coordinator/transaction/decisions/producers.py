"""What a coordinator decides about one transactional id: pure functions from the state to records and a result.

The epoch of the producer rises with each decision about a transaction, and markers carry the new one (KIP-890): a late
batch or request of an ended transaction can change nothing of the next one. Producers of version 1 of Kafka's
transactions keep their epoch when they commit or abort, and say what is part of a transaction before they write. An id
belongs to whom it was last given to; every other producer that uses it is told that it is fenced.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from msgspec.structs import replace

from warmlog_broker.coordinator.framework.decision import Decision, PartitionId, Record
from warmlog_broker.coordinator.transaction.decisions import jobs
from warmlog_broker.coordinator.transaction.decisions.records import (
    End,
    GroupKey,
    GroupValue,
    IdKey,
    IdValue,
    PartitionKey,
    PartitionValue,
    Status,
    put,
    remove,
)
from warmlog_broker.coordinator.transaction.decisions.state import (
    ID_BYTES,
    PART_BYTES,
    Given,
    Incarnation,
    Job,
    Outcome,
    Place,
    TransactionalId,
    Transactions,
    check_parts,
    check_timeout,
    check_topics,
    check_transactional_id,
)
from warmlog_protocol import errors
from warmlog_protocol.batch.header import LAST_PRODUCER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID

NOBODY = Incarnation(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
NO_PARTITIONS: Mapping[PartitionId, str] = MappingProxyType({})
_MAY_CONTINUE = (End.COMMITTED, End.ABORTED, End.TIMED_OUT, End.FORCED)
"""After these the producer that had the epoch before may ask for the next one: no other has taken its place."""
_AS_WANTED = {True: (End.COMMITTED,), False: (End.ABORTED, End.TIMED_OUT, End.FORCED)}
"""How a transaction may have ended whose commit, or abort, was asked for before."""
_STATUS = {End.COMMITTED: Status.COMMITTING}


def initialise(
    transactions: Transactions, given: Given, transactional_id: str, timeout_ms: int, expected: Incarnation, owner: str
) -> Decision[Incarnation | None]:
    """Give a transactional id to a producer, fence the one before it, and abort what that has left open.

    `expected` is who asks, if it has the id already; NOBODY for a new producer. A new id belongs to the principal
    `owner`. None as a result: an open transaction is being aborted; decide again when that is complete.
    ConcurrentTransactions while one is ending, ProducerFenced.
    """
    check_transactional_id(transactional_id)
    check_timeout(timeout_ms, given.config.transaction_max_timeout_ms)
    found = _of_producer(transactions.get(transactional_id))
    if found is None:
        given.check_room(len(transactions))
        given.may_hold(owner, ID_BYTES)
        producer = Incarnation(given.fresh_id, 0)
        value = IdValue(*producer, Status.EMPTY, End.INITIALISED, *expected, timeout_ms, -1, given.now_ms, owner=owner)
        return Decision([put(IdKey(transactional_id), value)], producer)
    if expected != NOBODY:
        if expected == found.previous and found.value.end is End.INITIALISED:
            return Decision((), found.producer)
        is_known = expected == found.producer or (expected == found.previous and found.value.end in _MAY_CONTINUE)
        if not is_known:
            raise _fenced(found, expected)
    if found.value.status is Status.ONGOING:
        end = End.REPLACED if expected == NOBODY else End.ABORTED
        return Decision([_decided(found, end, given)], None)
    _check_at_rest(found)
    producer, owner = _next_after(found, given), found.value.owner
    value = IdValue(*producer, Status.EMPTY, End.INITIALISED, *expected, timeout_ms, -1, given.now_ms, owner=owner)
    return Decision([put(IdKey(transactional_id), value)], producer)


def enrol(
    transactions: Transactions,
    given: Given,
    transactional_id: str,
    producer: Incarnation,
    *,
    partitions: Mapping[PartitionId, str] = NO_PARTITIONS,
    group: str = "",
) -> Decision[None]:
    """Make partitions, with the names of their topics, or the offsets of a group part of the producer's transaction.

    The first of them begins it. InconsistentTopicId if another topic of the same name is part of it, InvalidTxnState if
    it would have more than MAX_PARTS.
    """
    job = transactions.get(transactional_id)
    if isinstance(job, Job):
        if len(partitions) != 1:
            raise errors.InvalidTxnState(f"{transactional_id!r} is a job, whose members only write")
        ((partition, topic),) = partitions.items()
        return jobs.enrol_member(job, producer, partition, topic, given)
    found = _owned(transactions, transactional_id, producer)
    value = found.value
    _check_at_rest(found)
    records: list[Record] = []
    if value.status is Status.EMPTY:
        began = replace(value, status=Status.ONGOING, began_ms=given.now_ms, changed_ms=given.now_ms)
        records.append(put(IdKey(transactional_id), began))
    new = {each: PartitionValue(topic) for each, topic in partitions.items() if each not in found.partitions}
    is_new_group = bool(group) and group not in found.groups
    if new or is_new_group:
        check_parts(transactional_id, found.part_count + len(new) + is_new_group)
        given.may_hold(value.owner, PART_BYTES * (len(new) + is_new_group))
        check_topics([*found.partitions.items(), *new.items()])
    records += [put(PartitionKey(transactional_id, *each), enrolled) for each, enrolled in new.items()]
    if is_new_group:
        records.append(put(GroupKey(transactional_id, group), GroupValue()))
    return Decision(records, None)


def end(
    transactions: Transactions,
    given: Given,
    transactional_id: str,
    producer: Incarnation,
    *,
    commits: bool,
    keeps_epoch: bool = False,
) -> Decision[Incarnation]:
    """Decide the producer's transaction; the result is the producer of the next one.

    A repeated request has no effect, nor has the abort of what was aborted by its timeout or an operator. Without a
    transaction a commit has no effect; an abort raises the epoch, as batches may be on their way that would open one.
    With `keeps_epoch` there must be one, or it has ended as wanted, InvalidTxnState otherwise: the producer stays the
    same. ConcurrentTransactions while the last one is ending.
    """
    found = _found(transactions, transactional_id)
    value = found.value
    wanted = End.COMMITTED if commits else End.ABORTED
    if producer == found.previous and value.end in _AS_WANTED[commits]:
        return Decision((), _next(value))
    found = _owned(transactions, transactional_id, producer)
    _check_at_rest(found)
    if value.status is Status.EMPTY and (keeps_epoch or value.keeps_epoch):
        if value.keeps_epoch and value.end is wanted:
            return Decision((), producer)
        last = f"the last one was {value.end.name.lower()}" if value.keeps_epoch else "none was begun"
        raise errors.InvalidTxnState(f"{transactional_id!r} has no open transaction, {last}")
    if value.status is Status.EMPTY and commits:
        return Decision((), producer)
    following = producer if keeps_epoch else _next_after(found, given)
    return Decision([_decided(found, wanted, given, keeps_epoch=keeps_epoch)], following)


def abort(transactions: Transactions, given: Given, transactional_id: str) -> Decision[None]:
    """Abort the open transaction, as an operator asks for. TransactionalIdNotFound, InvalidTxnState if none is open."""
    found = _known(transactions, transactional_id)
    if found.value.status is not Status.ONGOING:
        raise errors.InvalidTxnState(f"{transactional_id!r} has no open transaction")
    return Decision([_aborted(found, End.FORCED, given)], None)


def time_out(transactions: Transactions, given: Given, transactional_id: str, turn: tuple[int, ...]) -> Decision[bool]:
    """Abort the transaction of this `turn` if it is still open; whether it was."""
    found = transactions.get(transactional_id)
    if found is None or found.turn != turn or found.value.status is not Status.ONGOING:
        return Decision((), False)
    return Decision([_aborted(found, End.TIMED_OUT, given)], True)


def complete(
    transactions: Transactions,
    given: Given,
    transactional_id: str,
    outcomes: Sequence[Outcome],
    *,
    left_open: Collection[PartitionId] = (),
) -> Decision[None]:
    """Close what these outcomes were decided for: they are carried out everywhere.

    A broker before 0.2 let the next transaction begin before this record. If it was stopped just then, partitions have
    one that is not in the log, and it is aborted: `left_open`.
    """
    found = transactions.get(transactional_id)
    if isinstance(found, Job):
        return Decision(jobs.complete_members(found, outcomes, given.now_ms), None)
    if found is None or not found.is_ending or [each.marker for each in outcomes] != [found.producer]:
        return Decision((), None)
    records = [remove(PartitionKey(transactional_id, *each)) for each in found.partitions if each not in left_open]
    records += [remove(GroupKey(transactional_id, group)) for group in found.groups]
    value = found.value
    if left_open:
        return Decision([*records, _decided(found, End.FORCED, given)], None)
    changed = replace(value, status=Status.EMPTY, began_ms=-1, changed_ms=given.now_ms, next_producer_id=NO_PRODUCER_ID)
    if value.next_producer_id != NO_PRODUCER_ID:
        changed = replace(changed, producer_id=value.next_producer_id, epoch=0)
    return Decision([*records, put(IdKey(transactional_id), changed)], None)


def expire(transactions: Transactions, given: Given, transactional_id: str) -> Decision[None]:
    """Forget a transactional id that has not been used for long; the slots of a job sooner."""
    found = transactions.get(transactional_id)
    records: Sequence[Record] = ()
    if found is not None and is_expired(found, given):
        records = jobs.forget(found) if isinstance(found, Job) else [remove(IdKey(transactional_id))]
    elif isinstance(found, Job) and found.members and _rests(found, given, given.slot_expiration_ms):
        records = jobs.forget_slots(found)
    return Decision(records, None)


def is_expired(found: TransactionalId | Job, given: Given) -> bool:
    config = given.config
    is_job = isinstance(found, Job)
    return _rests(
        found, given, config.transaction_job_expiration_ms if is_job else config.transactional_id_expiration_ms
    )


def _rests(found: TransactionalId | Job, given: Given, for_ms: int) -> bool:
    return found.value.status is Status.EMPTY and given.now_ms - found.value.changed_ms >= for_ms


def check_open(
    transactions: Transactions, transactional_id: str, producer: Incarnation, part: Place
) -> tuple[int, ...]:
    """Return the turn of the producer's open transaction; what `enrol` raises, or InvalidTxnState without `part`."""
    found = _owned(transactions, transactional_id, producer)
    _check_at_rest(found)
    if found.value.status is not Status.ONGOING or (part not in found.groups and part not in found.partitions):
        raise errors.InvalidTxnState(f"{_named(part)} is not part of the transaction of {transactional_id!r}")
    return found.turn


def _named(part: Place) -> str:
    return f"group {part!r}" if isinstance(part, str) else f"partition {part.number} of topic id {part.topic_id.hex()}"


def _known(transactions: Transactions, transactional_id: str) -> TransactionalId | Job:
    check_transactional_id(transactional_id)
    found = transactions.get(transactional_id)
    if found is None:
        raise errors.TransactionalIdNotFound(
            f"there is no transactional id {transactional_id!r}: it was never used, or has expired"
        )
    return found


def _of_producer(found: TransactionalId | Job | None) -> TransactionalId | None:
    if isinstance(found, Job):
        raise errors.InvalidTxnState(f"transactional id {found.transactional_id!r} belongs to a job, not to a producer")
    return found


def _found(transactions: Transactions, transactional_id: str) -> TransactionalId:
    known = _of_producer(_known(transactions, transactional_id))
    assert known is not None
    return known


def _owned(transactions: Transactions, transactional_id: str, producer: Incarnation) -> TransactionalId:
    found = _found(transactions, transactional_id)
    if producer == found.producer:
        return found
    if producer.producer_id not in (found.value.producer_id, found.value.previous_producer_id):
        raise errors.InvalidProducerIdMapping(
            f"transactional id {transactional_id!r} belongs to producer id {found.value.producer_id}, not "
            f"{producer.producer_id}"
        )
    if producer == found.previous and found.value.end is End.TIMED_OUT:
        raise errors.TransactionAbortable(
            f"the transaction of {transactional_id!r} was aborted: it was open for longer than its timeout, "
            f"{found.value.timeout_ms} ms"
        )
    if producer == found.previous and found.value.end is End.FORCED:
        raise errors.TransactionAbortable(f"the transaction of {transactional_id!r} was aborted by an operator")
    if producer == found.previous and found.value.end in (End.COMMITTED, End.ABORTED):
        raise errors.InvalidTxnState(f"the transaction of {transactional_id!r} has ended with epoch {producer.epoch}")
    raise _fenced(found, producer)


def _check_at_rest(found: TransactionalId) -> None:
    if found.is_ending:
        raise errors.ConcurrentTransactions(
            f"the last transaction of {found.transactional_id!r} is still ending: retry"
        )


def _fenced(found: TransactionalId, producer: Incarnation) -> errors.ProducerFenced:
    return errors.ProducerFenced(
        f"transactional id {found.transactional_id!r}: producer {producer.producer_id}, epoch {producer.epoch} is "
        f"fenced by epoch {found.value.epoch}: another producer uses the transactional id"
    )


def _aborted(found: TransactionalId | Job, end: End, given: Given) -> Record:
    """Return the record that aborts the transaction, or all members."""
    return jobs.abort_all(found, end, given.now_ms) if isinstance(found, Job) else _decided(found, end, given)


def _decided(found: TransactionalId, end: End, given: Given, *, keeps_epoch: bool = False) -> Record:
    """Return the record that decides the transaction: it raises the epoch, unless the producer `keeps_epoch`."""
    value = found.value
    following = found.producer if keeps_epoch else _next_after(found, given)
    previous = NOBODY if keeps_epoch or end is End.REPLACED else found.producer
    return put(
        IdKey(found.transactional_id),
        replace(
            value,
            epoch=value.epoch if keeps_epoch else value.epoch + 1,
            status=_STATUS.get(end, Status.ABORTING),
            end=end,
            previous_producer_id=previous.producer_id,
            previous_epoch=previous.epoch,
            changed_ms=given.now_ms,
            next_producer_id=following.producer_id if following.producer_id != value.producer_id else NO_PRODUCER_ID,
            keeps_epoch=keeps_epoch,
        ),
    )


def _next_after(found: TransactionalId, given: Given) -> Incarnation:
    """Return the producer with the next epoch."""
    value = found.value
    if value.epoch + 1 <= LAST_PRODUCER_EPOCH:
        return Incarnation(value.producer_id, value.epoch + 1)
    return Incarnation(given.fresh_id, 0)


def _next(value: IdValue) -> Incarnation:
    """Return the producer of the next transaction, after a decision."""
    if value.next_producer_id != NO_PRODUCER_ID:
        return Incarnation(value.next_producer_id, 0)
    return Incarnation(value.producer_id, value.epoch)
