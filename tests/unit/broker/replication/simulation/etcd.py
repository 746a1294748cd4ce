"""A store as etcd is one: transactions, revisions, watches that lag, leases that end when they should not."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

Key = Hashable
TOPIC = "topic"


def record_key(topic_id: str) -> Key:
    return ("record", topic_id)


def broker_key(node: int) -> Key:
    return ("broker", node)


def node_key(node: int) -> Key:
    return ("node", node)


class Item(NamedTuple):
    """A value with the revisions at which its key was created and last changed."""

    value: Any
    created: int
    changed: int


ABSENT = Item(None, 0, 0)


class Change(NamedTuple):
    """A key after a revision."""

    revision: int
    key: Key
    item: Item


class Txn(NamedTuple):
    """Puts, or deletions (None), if keys have these revisions: of their last change, or of their creation."""

    puts: Mapping[Key, Any]
    changed: Mapping[Key, int] = {}
    created: Mapping[Key, int] = {}


class FakeEtcd:
    """The store. Its calls take no time: the world decides when they are applied, and who hears of that."""

    def __init__(self) -> None:
        self.revision = 1
        self.items: dict[Key, Item] = {}
        self.history: list[Change] = []
        self.compacted = 0
        """Changes up to this revision are not there any more."""
        self.leases: dict[Key, int] = {}
        """When a key is deleted unless its lease is renewed."""

    def get(self, key: Key) -> Item:
        return self.items.get(key, ABSENT)

    def apply(self, txn: Txn) -> bool:
        """Return whether it was applied."""
        if any(self.get(key).changed != revision for key, revision in txn.changed.items()):
            return False
        if any(self.get(key).created != revision for key, revision in txn.created.items()):
            return False
        self.revision += 1
        for key, value in txn.puts.items():
            self._put(key, value)
        return True

    def _put(self, key: Key, value: Any) -> None:
        if value is None:
            self.items.pop(key, None)
            self.leases.pop(key, None)
            item = ABSENT
        else:
            item = Item(value, self.get(key).created or self.revision, self.revision)
            self.items[key] = item
        self.history.append(Change(self.revision, key, item))

    def since(self, revision: int) -> Iterable[Change] | None:
        """Return the changes after a revision; None if they are not there any more."""
        if revision < self.compacted:
            return None
        return [change for change in self.history if change.revision > revision]

    def compact(self) -> None:
        self.compacted = self.revision
        self.history.clear()

    def expired(self, now_ms: int) -> list[Key]:
        return [key for key, until_ms in self.leases.items() if until_ms <= now_ms]
