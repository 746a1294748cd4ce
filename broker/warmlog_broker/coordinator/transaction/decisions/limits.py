"""What bounds transactional ids, and what a decision may need from outside."""

from collections.abc import Callable
from dataclasses import dataclass, field

from warmlog_broker.coordinator.framework.decision import holds_anything
from warmlog_protocol.errors import InvalidRequest, InvalidTransactionTimeout, InvalidTxnState, TooManyTransactionalIds

MAX_NAME_BYTES = 249
ID_BYTES = 2000
"""What a transactional id takes in memory, about; the next ones: a partition or group of its transaction, a member."""
PART_BYTES = 600
MEMBER_BYTES = 800
MAX_MEMBERS = 20_000
"""Of one job."""
MAX_PARTS = 30_000
"""The partitions and groups of one producer's transaction: one decision closes them, which must fit into a segment."""


class NeedsProducerId(Exception):
    """The decision needs a producer id that was never assigned: decide again, and give it one."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The broker's settings for transactions."""

    max_ids: int = 100_000
    """Of one `Transactions`."""
    max_timeout_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 3600 * 1000
    max_job_timeout_ms: int = 24 * 3600 * 1000
    job_expiration_ms: int = 90 * 24 * 3600 * 1000
    slot_expiration_ms: int = 3600 * 1000
    """A job that rests for this long has no slots any more: most are never used again, and had one for each task."""

    may_hold: Callable[[str, int], None] = holds_anything
    """See `Holdings.check`."""

    def check_room(self, count: int) -> None:
        """Raise TooManyTransactionalIds if there are `count` ids and one more is wanted."""
        if count >= self.max_ids:
            raise TooManyTransactionalIds("the broker has as many transactional ids as transaction.max.ids allows")


@dataclass(frozen=True, slots=True)
class Given:
    """What a decision uses beside the state."""

    now_ms: int
    """The time of day."""
    limits: Limits = field(default_factory=Limits)
    unused_id: int | None = None

    @property
    def fresh_id(self) -> int:
        """A producer id that was never assigned. NeedsProducerId if none was given."""
        if self.unused_id is None:
            raise NeedsProducerId
        return self.unused_id


def check_timeout(timeout_ms: int, maximum_ms: int) -> None:
    """Raise InvalidTransactionTimeout unless a transaction may stay open for `timeout_ms`."""
    if not 1 <= timeout_ms <= maximum_ms:
        raise InvalidTransactionTimeout(f"a transaction timeout of {timeout_ms} ms: 1 to {maximum_ms} expected")


def check_transactional_id(transactional_id: str) -> None:
    """Raise InvalidRequest if there can be no such transactional id."""
    size_bytes = len(transactional_id.encode())
    if not 0 < size_bytes <= MAX_NAME_BYTES:
        raise InvalidRequest(f"a transactional id of {size_bytes} bytes: 1 to {MAX_NAME_BYTES} expected")


def check_parts(transactional_id: str, count: int) -> None:
    """Raise InvalidTxnState if a transaction has `count` partitions and groups, and one more is wanted."""
    if count >= MAX_PARTS:
        raise InvalidTxnState(
            f"a transaction of {transactional_id!r} may have {MAX_PARTS} partitions and groups, and has as many"
        )
