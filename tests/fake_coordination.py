"""The six calls of etcd over the store of the simulation, in this process."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

from unit.broker.replication.simulation.etcd import ABSENT, FakeEtcd, Txn
from unit.broker.replication.simulation.etcd import Item as StoredItem
from warmlog_broker.etcd.coordination import (
    Change,
    ChangedAt,
    Compacted,
    Compare,
    CreatedAt,
    Failed,
    Item,
    LeaseEnded,
    Listing,
    Operation,
    Outcome,
    Put,
    Revision,
    Succeeded,
    Unavailable,
    Unknown,
    WentBack,
    prefix_end,
)


class FakeCoordination:
    """One store, for all brokers of a test. It is away while `is_away`, and loses answers as a test asks for."""

    def __init__(self) -> None:
        self.store = FakeEtcd()
        self.is_away = False
        self.lose_outcomes = 0
        """So many transactions from now on are applied, and their outcome is unknown."""
        self.transactions: list[tuple[tuple[Compare, ...], tuple[Operation, ...]]] = []
        """All that arrived."""
        self._changed = asyncio.Event()
        self._leases: dict[int, tuple[int, float, set[str]]] = {}
        """By id: its seconds, when it ends, and its keys."""
        self._next_lease = 1

    def _check(self) -> None:
        self._end_leases()
        if self.is_away:
            raise Unavailable("etcd is away")

    async def txn(
        self, compares: Sequence[Compare], operations: Sequence[Operation], read: Sequence[str] = ()
    ) -> Outcome:
        await asyncio.sleep(0)
        self._end_leases()
        if self.is_away:
            return Unknown("etcd is away")
        self.transactions.append((tuple(compares), tuple(operations)))
        changed = {each.key: each.revision for each in compares if isinstance(each, ChangedAt)}
        created = {each.key: each.revision for each in compares if isinstance(each, CreatedAt)}
        puts: dict[object, bytes | None] = {}
        for each in operations:
            if isinstance(each, Put):
                puts[each.key] = each.value
            else:
                puts |= dict.fromkeys(self._keys(each.key, each.end))
        for each in operations:
            if isinstance(each, Put) and each.lease and each.lease not in self._leases:
                raise LeaseEnded(f"lease {each.lease}")
        before = self.store.revision
        if not self.store.apply(Txn(puts, changed, created)):
            return Failed(before, {key: item for key in read if (item := self._item(key)) is not None})
        if not puts:
            self.store.revision = before
        self._lease_keys(operations)
        self._wake()
        if self.lose_outcomes:
            self.lose_outcomes -= 1
            return Unknown("the answer was lost")
        return Succeeded(self.store.revision)

    def _lease_keys(self, operations: Sequence[Operation]) -> None:
        for each in operations:
            for _, _, keys in self._leases.values():
                keys.difference_update([each.key])
            if isinstance(each, Put) and each.lease:
                self._leases[each.lease][2].add(each.key)

    def _keys(self, key: str, end: str | None) -> list[str]:
        known = [str(each) for each in self.store.items]
        return sorted(each for each in known if (each == key if end is None else key <= each < end))

    def _item(self, key: str) -> Item | None:
        return _item(key, self.store.get(key))

    async def range(self, key: str, end: str | None = None) -> Listing:
        await asyncio.sleep(0)
        self._check()
        items = [item for each in self._keys(key, end) if (item := self._item(each)) is not None]
        return Listing(items, self.store.revision)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Revision]:
        if after > self.store.revision:
            raise WentBack(f"revision {self.store.revision}, after {after}")
        while True:
            woken = self._changed
            self._end_leases()
            if not self.is_away:
                if (changes := self.store.since(after)) is None:
                    raise Compacted(f"revision {after} is compacted")
                by_revision: dict[int, list[Change]] = {}
                for each in changes:
                    key = str(each.key)
                    if prefix <= key < prefix_end(prefix):
                        by_revision.setdefault(each.revision, []).append(Change(key, _item(key, each.item)))
                for after, found in by_revision.items():
                    yield Revision(after, found)
            try:
                async with asyncio.timeout(0.05):
                    await woken.wait()
            except TimeoutError:
                pass

    async def grant(self, ttl_s: int) -> int:
        await asyncio.sleep(0)
        self._check()
        lease, self._next_lease = self._next_lease, self._next_lease + 1
        self._leases[lease] = (ttl_s, time.monotonic() + ttl_s, set())
        return lease

    async def keep_alive(self, lease: int) -> int:
        await asyncio.sleep(0)
        self._check()
        if lease not in self._leases:
            return 0
        ttl_s, _, keys = self._leases[lease]
        self._leases[lease] = (ttl_s, time.monotonic() + ttl_s, keys)
        return ttl_s

    async def revoke(self, lease: int) -> None:
        await asyncio.sleep(0)
        self._check()
        self.end(lease)

    def end(self, lease: int) -> None:
        """End a lease now, whatever its time."""
        _, _, keys = self._leases.pop(lease, (0, 0.0, set[str]()))
        if gone := {key: None for key in sorted(keys) if self.store.get(key) != ABSENT}:
            self.store.apply(Txn(gone))
            self._wake()

    def _end_leases(self) -> None:
        for lease in [lease for lease, (_, end, _) in self._leases.items() if end <= time.monotonic()]:
            self.end(lease)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _item(key: str, stored: StoredItem) -> Item | None:
    return None if stored == ABSENT else Item(key, stored.value, stored.created, stored.changed)
