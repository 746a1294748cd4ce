"""What a broker counts of its cluster, for its metrics."""

from collections import Counter, defaultdict

from msgspec import Struct

from warmlog_broker.cluster.data_path.replicas import Replicas
from warmlog_broker.cluster.view import View
from warmlog_broker.replication.record import PartitionRecord
from warmlog_broker.runtime.counters import SECONDS, Histogram

Calls = defaultdict[tuple[str, str], Histogram]
"""The seconds of calls to etcd, by the call and whether it was answered."""


class Led(Struct):
    """The partitions that a broker leads, and what their followers lag."""

    partitions: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    lag_records: int = 0
    """Of the replica that lags most."""
    lag_ms: int = 0

    def add(self, record: PartitionRecord) -> None:
        self.partitions += 1
        self.under_replicated += set(record.isr) != set(record.replicas)
        self.under_min_isr += len(record.isr) < record.required


class Figures:
    def __init__(self, view: View, replicas: Replicas) -> None:
        self.calls: Calls = defaultdict(lambda: Histogram(SECONDS))
        self.changes: Counter[str] = Counter({"elected": 0, "in_sync": 0})
        """Of records of partitions that this broker leads afterwards."""
        self._view = view
        self._replicas = replicas

    def called(self, call: str, seconds: float, is_answered: bool) -> None:
        """Count a call to etcd."""
        self.calls[call, "answered" if is_answered else "failed"].observe(seconds)

    def changed(self, before: PartitionRecord | None, after: PartitionRecord) -> None:
        """Count what has become of a record."""
        if before is None or after.leader != self._view.node:
            return
        self.changes["elected"] += before.leader != after.leader
        self.changes["in_sync"] += set(before.isr) != set(after.isr)

    @property
    def is_frozen(self) -> bool:
        return bool(self._view.frozen)

    @property
    def broker_count(self) -> int:
        return len(self._view.brokers)

    def replica_counts(self) -> tuple[int, int]:
        """Return of how many partitions this broker has a replica, and how many of these have no leader."""
        own = [seen.record for seen in self._view.records.values() if self._view.node in seen.record.replicas]
        return len(own), sum(record.leader not in self._view.brokers for record in own)

    def missing_records(self) -> int:
        """Return how many records replicas here lack of what their leaders have committed."""
        return sum(driver.missing_records for driver in self._replicas)

    def led(self) -> Led:
        """Return what this broker leads now."""
        led, now_ms = Led(), self._replicas.now_ms()
        for driver in self._replicas:
            leading = driver.replica.leading
            if leading is None:
                continue
            led.add(driver.replica.record)
            for follower in leading.followers.values():
                lag_records = max(0, driver.replica.log.end - follower.flushed)
                led.lag_records = max(led.lag_records, lag_records)
                if lag_records:
                    led.lag_ms = max(led.lag_ms, now_ms - max(follower.caught_up_ms, leading.began_ms))
        return led
