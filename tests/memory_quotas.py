"""Quotas without a disk, at a time that the test sets."""

from collections.abc import Callable, Sequence

from warmlog_broker.metadata.metadata_log import ClusterState, Entry
from warmlog_broker.metadata.store import Version
from warmlog_broker.security.quotas import Quotas
from warmlog_protocol.messages import ClientQuota, QuotaLimit


class _MemoryStore:
    def __init__(self) -> None:
        self.state = ClusterState()
        self.version: Version = 0

    async def commit(self, changes: Sequence[Entry], *, expected: Version | None = None) -> None:
        for change in changes:
            self.state.apply(change)


def memory_quotas(clock: Callable[[], float] = lambda: 0.0, max_throttle_ms: int = 10_000) -> Quotas:
    return Quotas(_MemoryStore(), clock, max_throttle_ms)


def quota(user: str | None = None, client_id: str | None = None, /, **limits: int) -> ClientQuota:
    return ClientQuota(user, client_id, [QuotaLimit(key, value) for key, value in limits.items()])
