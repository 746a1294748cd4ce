"""The six calls of etcd that a cluster needs, with their outcomes and errors.

Keys are text, values are bytes. Each change of etcd has a revision, a number that only rises; a transaction changes all
of its keys at one. All reads are linearizable. Every call has a deadline, after which it raises `Unavailable`; a
transaction is `Unknown` then: it may have been applied, and may still be. A read does not settle that: only an outcome
of another transaction with the same compares does.

::

    WarmlogError
    └── CoordinationError
        ├── Unavailable     no etcd answered in time: try again
        ├── Refused         etcd will not do it: wrong password, no right, a request that is too large
        ├── LeaseEnded      the lease of a key is not there any more
        ├── Compacted       the changes that a watch asks for are not there any more: list again
        └── WentBack        etcd is older than what was read of it: it was restored, or another one is at this address
"""

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from warmlog_protocol.errors import WarmlogError


class CoordinationError(WarmlogError):
    """A call to etcd failed."""


class Unavailable(CoordinationError):
    """No etcd answered within the deadline."""


class Refused(CoordinationError):
    """etcd refuses the call, and will until its configuration or this broker's is changed."""


class LeaseEnded(CoordinationError):
    """A key cannot be set with this lease: it has ended."""


class Compacted(CoordinationError):
    """The history of etcd begins after the revision that a watch asks for."""


class WentBack(CoordinationError):
    """etcd has a lower revision than before: what it says now may contradict what it said."""


class Item(NamedTuple):
    """A value, with the revisions at which its key was created and last changed."""

    key: str
    value: bytes
    created: int
    changed: int


class ChangedAt(NamedTuple):
    """The key was last changed at this revision; 0: it does not exist."""

    key: str
    revision: int


class CreatedAt(NamedTuple):
    """The key was created at this revision; 0: it does not exist."""

    key: str
    revision: int


Compare = ChangedAt | CreatedAt


class Put(NamedTuple):
    """Set the value of a key, which is deleted when the lease ends; 0: without a lease."""

    key: str
    value: bytes
    lease: int = 0


class Delete(NamedTuple):
    """Delete the key, or with `end` all keys from `key` on that are before it. Keys that do not exist are no error."""

    key: str
    end: str | None = None


Operation = Put | Delete


class Succeeded(NamedTuple):
    """All compares held, and all operations were applied at this revision."""

    revision: int


class Failed(NamedTuple):
    """A compare did not hold, and nothing was applied. At this revision, `items` were those of the keys to read."""

    revision: int
    items: dict[str, Item]


class Unknown(NamedTuple):
    """No answer: the transaction was applied, or was not, or will be."""

    reason: str


Outcome = Succeeded | Failed | Unknown


class Listing(NamedTuple):
    """The items of a range in the order of their keys, as of one revision."""

    items: list[Item]
    revision: int


class Change(NamedTuple):
    """What became of a key; `item` is None if it was deleted."""

    key: str
    item: Item | None


class Revision(NamedTuple):
    """All changes that one revision made to the watched keys."""

    revision: int
    changes: Sequence[Change]


def prefix_end(prefix: str) -> str:
    """Return the first key after all that begin with `prefix`."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


class Coordination(Protocol):
    """etcd, or what stands for it in a test."""

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Operation], read: Sequence[str] = ()
    ) -> Outcome:
        """Apply `operations` if all `compares` hold, else read the keys in `read`.

        Raises Refused, LeaseEnded, WentBack.
        """
        ...

    async def range(self, key: str, end: str | None = None) -> Listing:
        """Return the item of `key`, or with `end` those of all keys from `key` on that are before it.

        Raises Unavailable, Refused, WentBack.
        """
        ...

    def watch(self, prefix: str, after: int) -> AsyncIterator[Revision]:
        """Yield each revision after `after` that changed keys which begin with `prefix`, once and in order.

        It goes on at another endpoint when one fails, and never ends by itself. Raises Compacted, WentBack, Refused.
        """
        ...

    async def grant(self, ttl_s: int) -> int:
        """Return the id of a new lease. etcd may give it a longer time. Raises Unavailable, Refused."""
        ...

    async def keep_alive(self, lease: int) -> int:
        """Return the seconds until the lease ends from now on; 0: it has ended. Raises Unavailable, Refused."""
        ...

    async def revoke(self, lease: int) -> None:
        """End a lease: its keys are deleted. One that has ended is no error. Raises Unavailable, Refused."""
        ...
