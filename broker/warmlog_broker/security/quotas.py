"""The quotas, which are facts of the cluster: what clients have used, and how long they have to wait.

As in Kafka, a request that exceeds a quota is carried out, and its connection is not read until the rate is kept again;
the response says for how long. With no quota set, `is_set` is False and nothing here is called.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import NamedTuple

from warmlog_broker.metadata.metadata_log import ClusterState, QuotaAltered
from warmlog_broker.metadata.store import ClusterStore, Version, retried
from warmlog_broker.security.quota_rules import QuotaEntity, applied_limit, changed_limits, list_of_quotas
from warmlog_protocol.messages import USER_PREFIX, ClientQuota, QuotaKey

MAX_CLIENTS = 10_000
"""Pairs of user and client id whose buckets are kept, half a KiB each. Clients choose their ids."""
MAX_MEASURED_USERS = 1000
"""Users with metrics of their own; those of the others are added up."""
OTHER_USERS = "~other"
MAX_HEARTBEAT_DELAY_S = 0.2
"""Members of groups would lose their partitions by longer ones: the shortest session is of 2 s."""

BURST_S = 1.0
"""What a taker may save, as the time in which the rate gives it. Longer than a delay is rounded up by event loops."""

_log = logging.getLogger(__name__)


class TokenBucket:
    """A rate, and the debt of those who exceed it; full at first. Pure: the time is in seconds of any clock.

    What is taken is never refused: it may leave a debt, and the taker is told how long the rate needs to repay it. If
    it waits that long before it takes more, the rate is kept over any period, but for what BURST_S allows and the last
    amount.
    """

    __slots__ = ("_balance", "_capacity", "_rate", "_updated_s")

    def __init__(self, rate: float, now_s: float) -> None:
        """`rate` is in units a second."""
        self._rate = rate
        self._balance = self._capacity = max(1.0, rate * BURST_S)
        self._updated_s = now_s

    def take(self, amount: float, now_s: float, max_delay_s: float) -> float:
        """Take `amount`; return the seconds in which the debt is repaid, 0 if there is none.

        A debt beyond `max_delay_s` is cancelled.
        """
        self._balance = max(self._balance_at(now_s) - amount, -self._rate * max_delay_s)
        self._updated_s = max(now_s, self._updated_s)
        return max(0.0, -self._balance / self._rate)

    def is_full(self, now_s: float) -> bool:
        """Return whether it is as a new one would be."""
        return self._balance_at(now_s) >= self._capacity

    def _balance_at(self, now_s: float) -> float:
        elapsed_s = max(0.0, now_s - self._updated_s)
        return min(self._capacity, self._balance + elapsed_s * self._rate)


class _Buckets(NamedTuple):
    """The buckets of one client; None for what has no limit."""

    produced: TokenBucket | None
    fetched: TokenBucket | None
    requests: TokenBucket | None


class Quotas:
    """What each client may still do."""

    def __init__(self, store: ClusterStore, clock: Callable[[], float], max_throttle_ms: int) -> None:
        """`clock` is in seconds. No delay is longer than `max_throttle_ms`."""
        self.is_set = bool(store.state.quotas)
        """Whether there is any quota."""
        self.throttled: Counter[tuple[str, str]] = Counter()
        """How many requests exceeded a limit, by user and QuotaKey."""
        self.throttled_seconds: defaultdict[tuple[str, str], float] = defaultdict(float)
        """The delays of these."""
        self._store = store
        self._clock = clock
        self._max_throttle_s = max_throttle_ms / 1000
        self._clients: dict[tuple[str, str], _Buckets] = {}
        """By principal and client id."""
        self._buckets: dict[tuple[QuotaKey, QuotaEntity], TokenBucket] = {}
        """By what shares them."""
        self._measured: set[str] = set()

    def charge_request(
        self, principal: str, client_id: str, payload_bytes: int, *, is_heartbeat: bool = False
    ) -> float:
        """Count a request and the batches in it; return for how many seconds its connection is not to be read."""
        buckets = self._buckets_of(principal, client_id)
        delay_s = 0.0
        if buckets.requests is not None:
            delay_s = self._take(buckets.requests, 1, principal, QuotaKey.REQUEST_RATE)
        if buckets.produced is not None and payload_bytes:
            produced_s = self._take(buckets.produced, payload_bytes, principal, QuotaKey.PRODUCER_BYTE_RATE)
            delay_s = max(delay_s, produced_s)
        return min(delay_s, MAX_HEARTBEAT_DELAY_S) if is_heartbeat else delay_s

    def charge_fetch(self, principal: str, client_id: str, size_bytes: int) -> float:
        """Count the batches of a response; return as `charge_request`."""
        fetched = self._buckets_of(principal, client_id).fetched
        return 0.0 if fetched is None else self._take(fetched, size_bytes, principal, QuotaKey.CONSUMER_BYTE_RATE)

    def debt_s(self, principal: str, client_id: str) -> float:
        """Return for how many seconds a new connection is not to be read: its client has exceeded a rate on others."""
        now_s = self._clock()
        buckets = [bucket for bucket in self._buckets_of(principal, client_id) if bucket is not None]
        return max((bucket.take(0, now_s, self._max_throttle_s) for bucket in buckets), default=0.0)

    def connection_limit(self, principal: str) -> int | None:
        """Return how many connections a principal may have; None if it has no limit."""
        applied = applied_limit(self._store.state.quotas, QuotaKey.CONNECTIONS, _user_of(principal), "")
        return None if applied is None else applied.value

    def listed(self) -> list[ClientQuota]:
        """Return all quotas, by user and client id."""
        return list_of_quotas(self._store.state.quotas)

    async def alter(self, wanted: ClientQuota, by: str) -> None:
        """Change one quota durably, and at once. InvalidRequest; `by` is the principal, for the log."""

        async def attempt(version: Version) -> QuotaAltered:
            entry = quota_entry(self._store.state, wanted)
            await self._store.commit([entry], expected=version)
            return entry

        entry = await retried(self._store, attempt)
        self.quotas_changed()
        text = ", ".join(f"{key}={value}" for key, value in sorted(entry.limits.items())) or "removed"
        _log.info("the quota of %s was changed by %s: %s", QuotaEntity(wanted.user, wanted.client_id), by, text)

    def quotas_changed(self) -> None:
        """Limit by the quotas that the store has now, which another broker may have changed."""
        self.is_set = bool(self._store.state.quotas)
        self._clients.clear()
        self._buckets.clear()

    def _buckets_of(self, principal: str, client_id: str) -> _Buckets:
        client = principal, client_id
        found = self._clients.get(client)
        if found is None:
            if len(self._clients) >= MAX_CLIENTS:  # forget all clients, and the buckets that are as new ones
                now_s = self._clock()
                self._clients.clear()
                self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now_s)}
            user = _user_of(principal)
            rates = (QuotaKey.PRODUCER_BYTE_RATE, QuotaKey.CONSUMER_BYTE_RATE, QuotaKey.REQUEST_RATE)
            found = self._clients[client] = _Buckets(*(self._bucket(rate, user, client_id) for rate in rates))
        return found

    def _bucket(self, key: QuotaKey, user: str, client_id: str) -> TokenBucket | None:
        """Return what counts for a limit of a client; None if there is no limit."""
        applied = applied_limit(self._store.state.quotas, key, user, client_id)
        if applied is None:
            return None
        shared_by = key, applied.shared_by
        if shared_by not in self._buckets and len(self._buckets) >= len(QuotaKey) * MAX_CLIENTS:
            shared_by = key, applied.quota  # too many clients at once: the further ones share one limit
        if shared_by not in self._buckets:
            self._buckets[shared_by] = TokenBucket(applied.value, self._clock())
        return self._buckets[shared_by]

    def _take(self, bucket: TokenBucket, amount: int, principal: str, key: QuotaKey) -> float:
        delay_s = bucket.take(amount, self._clock(), self._max_throttle_s)
        if delay_s:
            label = self._label(principal), key.value
            self.throttled[label] += 1
            self.throttled_seconds[label] += delay_s
        return delay_s

    def _label(self, principal: str) -> str:
        if principal not in self._measured:
            if len(self._measured) >= MAX_MEASURED_USERS:
                return OTHER_USERS
            self._measured.add(principal)
        return _user_of(principal)


def quota_entry(state: ClusterState, wanted: ClientQuota) -> QuotaAltered:
    """Return the entry that makes a change; InvalidRequest if it is not allowed."""
    return QuotaAltered(wanted.user, wanted.client_id, changed_limits(state.quotas, wanted))


def _user_of(principal: str) -> str:
    return principal.removeprefix(USER_PREFIX)
