"""What a broker of a cluster knows of it, as Prometheus metric families. A broker that is alone has none of these."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from warmlog_broker.cluster.figures import Figures
from warmlog_broker.metrics.samples import counters, gauge, histogram


def cluster_families(figures: Figures) -> Iterator[Metric]:
    led, (replicas, leaderless) = figures.led(), figures.replica_counts()
    for name, text, value in (
        ("brokers", "Brokers that are registered", figures.broker_count),
        ("replicas", "Partitions with a replica here", replicas),
        ("leaderless_partitions", "Those of them without a leader", leaderless),
        ("missing_records", "That replicas here lack of what their leaders have", figures.missing_records()),
        ("leaders", "Partitions that this broker leads", led.partitions),
        ("under_replicated_partitions", "Led here, and not all replicas are in sync", led.under_replicated),
        ("under_min_isr_partitions", "Led here, and too few are in sync for acks=all", led.under_min_isr),
        ("replica_lag_records", "Of the replica that lags most behind this leader", led.lag_records),
        ("replica_lag_seconds", "Of the replica that lags most behind this leader", led.lag_ms / 1000),
        ("etcd_gone_back", "1 once etcd has lost what it had", figures.is_frozen),
    ):
        yield gauge(f"warmlog_cluster_{name}", text, value)
    yield counters("warmlog_cluster_changes", "Of partitions that this broker leads", "kind", figures.changes)
    yield histogram("warmlog_cluster_etcd_seconds", "Calls to etcd", ["call", "outcome"], figures.calls)
