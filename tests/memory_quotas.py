"""Quotas without a disk, at a time that the test sets."""

from collections.abc import Callable, Sequence
from typing import cast

from warmlog_broker.metadata.metadata_log import Entry, MetadataState
from warmlog_broker.metadata.store import Metadata
from warmlog_broker.security.quotas import Quotas
from warmlog_protocol.messages import ClientQuota, QuotaLimit


class _MemoryMetadata:
    def __init__(self) -> None:
        self.state = MetadataState()

    async def commit(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.state.apply(entry)


def memory_quotas(clock: Callable[[], float] = lambda: 0.0, max_throttle_ms: int = 10_000) -> Quotas:
    return Quotas(cast("Metadata", _MemoryMetadata()), clock, max_throttle_ms)


def quota(user: str | None = None, client_id: str | None = None, /, **limits: int) -> ClientQuota:
    return ClientQuota(user, client_id, [QuotaLimit(key, value) for key, value in limits.items()])
