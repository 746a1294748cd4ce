"""Transactions until their outcome is known.

A read does not tell whether a transaction was applied, since it may be applied after the read. Only an outcome of the
same compares does: so the same transaction is sent again. If it fails then, the author in its values tells whether an
earlier one of these was applied.
"""

import asyncio
import math
import random
import time
from collections.abc import Sequence

from warmlog_broker.cluster.keys import author_of
from warmlog_broker.cluster.view import View
from warmlog_broker.etcd.coordination import (
    Compare,
    Coordination,
    CoordinationError,
    Delete,
    Failed,
    Operation,
    Put,
    Succeeded,
)
from warmlog_broker.replication.record import Author
from warmlog_protocol.errors import RequestTimedOut, StorageError

OUTCOME_TIMEOUT_S = 20.0
"""A request waits so long for the outcome of its transaction."""
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0


def new_author(node: int) -> Author:
    """Return an author that no other transaction has: those of replicas have an incarnation."""
    return Author(node, 0, random.getrandbits(52))


async def settled(
    etcd: Coordination,
    by: Author,
    compares: Sequence[Compare],
    operations: Sequence[Operation],
    *,
    timeout_s: float = math.inf,
) -> Succeeded | Failed:
    """Return the outcome of a transaction whose values have the author `by`, which no other transaction has.

    What it puts is compared, so it is applied once. After Failed the items are those of the keys.
    Raises RequestTimedOut if the outcome is not known in time, and the errors of `Coordination.txn`.
    """
    deadline_s, pause_s, was_unknown = time.monotonic() + timeout_s, PAUSE_S, False
    keys = sorted({each.key for each in compares} | {each.key for each in operations})
    while True:
        outcome = await etcd.txn(compares, operations, keys)
        if isinstance(outcome, Succeeded):
            return outcome
        if isinstance(outcome, Failed):
            return _own(operations, outcome, by) if was_unknown else outcome
        was_unknown = True
        if time.monotonic() > deadline_s:
            raise RequestTimedOut(f"whether this was changed is not known, as etcd does not say: {outcome.reason}")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def asked(
    etcd: Coordination, view: View, by: Author, compares: Sequence[Compare], operations: Sequence[Operation]
) -> Succeeded | Failed:
    """As `settled`, for a request: RequestTimedOut after OUTCOME_TIMEOUT_S, StorageError if etcd refuses."""
    if view.frozen:
        raise StorageError(f"nothing in the cluster can be changed: etcd has gone back: {view.frozen}")
    try:
        return await settled(etcd, by, compares, operations, timeout_s=OUTCOME_TIMEOUT_S)
    except CoordinationError as error:
        raise StorageError(f"nothing in the cluster can be changed: {error}") from error


def _own(operations: Sequence[Operation], failed: Failed, by: Author) -> Succeeded | Failed:
    """Return Succeeded if the same transaction was applied before: a value of it is there, or all is deleted."""
    put = [failed.items[each.key] for each in operations if isinstance(each, Put) and each.key in failed.items]
    mine = [item.changed for item in put if author_of(item.value) == by]
    if mine:
        return Succeeded(max(mine))
    deletes_only = all(isinstance(each, Delete) for each in operations)
    is_gone = not any(each.key in failed.items for each in operations)
    return Succeeded(failed.revision) if deletes_only and is_gone else failed
