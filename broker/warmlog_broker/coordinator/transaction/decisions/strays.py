"""Transactions that are open in partitions and groups although no transactional id has them, after a restore.

A backup of a running broker copies one partition after the other, and `__transactions` last: what a partition has as
open may have ended by then, and its marker is not in the backup. Nothing would ever end it, and its readers would wait
for ever, so it is aborted.
"""

from collections.abc import Iterable, Iterator

from warmlog_broker.coordinator.transaction.decisions.state import Enrolled, Job, Outcome, Producer, Transaction

Place = Enrolled | str
"""A partition, or the name of a group."""


def strays(transactions: Iterable[Transaction | Job], opened: Iterable[tuple[Place, Producer]]) -> Iterator[Outcome]:
    """Yield an abort for each of `opened` that is part of none of `transactions`: all there are, at one moment."""
    known = set(_parts(transactions))
    for place, producer in opened:
        if (place, producer) not in known:
            marker = Producer(producer.producer_id, producer.epoch + 1)
            partitions, groups = ((), (place,)) if isinstance(place, str) else ((place,), ())
            yield Outcome(marker, False, partitions, groups)


def _parts(transactions: Iterable[Transaction | Job]) -> Iterator[tuple[Place, Producer]]:
    """Yield what may be open: while a transaction is ending, also with the epoch of its markers, see `complete`."""
    for transaction in transactions:
        if isinstance(transaction, Job):
            for member in transaction.members.values():
                yield from ((each, member.producer) for each in member.partitions)
        else:
            producer_id, epoch = transaction.producer
            for open_epoch in (epoch - 1, epoch) if transaction.is_ending else (epoch,):
                producer = Producer(producer_id, open_epoch)
                yield from ((each, producer) for each in transaction.partitions)
                yield from ((each, producer) for each in transaction.groups)
