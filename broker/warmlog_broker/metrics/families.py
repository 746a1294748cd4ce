"""The broker's counters and gauges as Prometheus metric families.

Names, labels and meanings are documented in docs/reference/metrics.md; a test compares them. Series for topics are
limited to `metrics.max.topics`: those of further topics are added up under the topic OTHER_TOPICS.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from warmlog_broker.coordinator.transaction.decisions.records import End, Status
from warmlog_broker.handlers.context import Services
from warmlog_broker.maintenance.housekeeping import Housekeeping
from warmlog_broker.maintenance.log_check import LogCheck
from warmlog_broker.maintenance.log_cleaner import LogCleaner
from warmlog_broker.metrics.group_families import GroupMetrics
from warmlog_broker.metrics.samples import counter, counters, gauge, gauges, histogram, labelled
from warmlog_broker.network.memory_pool import MemoryPool
from warmlog_broker.replica.partition_state import PartitionState
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.runtime.version import broker_version
from warmlog_broker.topics.topics import Topic
from warmlog_protocol.errors import ApiError

if TYPE_CHECKING:
    from warmlog_broker.cluster.figures import Figures

OTHER_TOPICS = "~other"
"""No topic can have this name."""
IDS_A_TURN = 500
"""Transactional ids that are looked at in one turn of the event loop."""
TOPICS_A_TURN = 50
"""Topics that are looked at in one turn of the event loop."""


class TopicSizes:
    """Sums over the partitions of topics, by the topic's label."""

    def __init__(self) -> None:
        self.partitions: Counter[str] = Counter()
        self.records: Counter[str] = Counter()
        self.size_bytes: Counter[str] = Counter()
        self.states: Counter[PartitionState] = Counter(dict.fromkeys(PartitionState, 0))
        del self.states[PartitionState.DELETED]
        self.write_caching = 0

    def add(self, topic: Topic, label: str) -> None:
        self.write_caching += topic.config.write_caching
        self.partitions[label] += len(topic.local)
        self.records[label] += 0
        self.size_bytes[label] += 0
        for partition in topic.local.values():
            self.states[partition.state] += 1
            if partition.allows.read:
                self.records[label] += partition.log.log_end_offset - partition.log.log_start_offset
                self.size_bytes[label] += partition.log.size_bytes


class TopicCounters:
    """One counter by topic, as it is published: that of OTHER_TOPICS never falls, whichever topics come and go."""

    def __init__(self) -> None:
        self._before: dict[str, int] = {}
        """The counts of the last scrape."""
        self._others = 0

    def by_label(self, counted: Mapping[str, int], labels: Mapping[str, str]) -> dict[str, int]:
        """Return the counts of topics with a label of their own, and what the others have had while they had none."""
        values = {}
        for name, count in counted.items():
            label = labels.get(name)  # None if the topic was created meanwhile: the next scrape counts it
            if label == OTHER_TOPICS:
                before = self._before.get(name, 0)
                self._others += count - before if count >= before else count  # less: another topic of this name
            elif label is not None:
                values[label] = count
        self._before = {name: count for name, count in counted.items() if name in labels}
        return values | {OTHER_TOPICS: self._others} if self._others else values


class BrokerMetrics:
    """Collects the metrics of a serving broker, in its event loop."""

    def __init__(
        self,
        services: Services,
        *,
        certificate_expiry: Callable[[], datetime | None],
        request_memory: MemoryPool,
        housekeeping: Housekeeping,
        log_cleaner: LogCleaner,
        log_check: LogCheck,
        cluster: "Figures | None" = None,
    ) -> None:
        """`cluster` has the figures of this broker in its cluster; None if it is alone."""
        self._services = services
        self._cluster = cluster
        self._certificate_expiry = certificate_expiry
        self._request_memory = request_memory
        self._housekeeping = housekeeping
        self._log_cleaner = log_cleaner
        self._log_check = log_check
        self._groups = GroupMetrics(services)
        self._batches, self._records, self._bytes, self._fetched = (TopicCounters() for _ in range(4))

    async def collect(self) -> list[Metric]:
        """Return all families. Takes several turns of the event loop if there are many topics."""
        families = [*self._broker(), *self._requests(), *self._memory(), *self._conversions(), *self._disks()]
        families += [*await self._topics(), *await self._groups.collect()]
        if self._cluster is not None:
            from warmlog_broker.metrics.cluster_families import cluster_families

            families += cluster_families(self._cluster)
        return families + await transaction_families(self._services)

    def _broker(self) -> Iterator[Metric]:
        services = self._services
        info = GaugeMetricFamily("warmlog_info", "1, labelled with what this broker is", labels=["version", "node_id"])
        info.add_metric([broker_version(), str(services.config.node_id)], 1)
        yield info
        expiry = GaugeMetricFamily("warmlog_tls_certificate_expiry_timestamp_seconds", "When the certificate expires")
        if (expires_at := self._certificate_expiry()) is not None:
            expiry.add_metric([], expires_at.timestamp())
        yield expiry
        delay = {(): services.counters.loop_delay_seconds}
        yield histogram("warmlog_event_loop_delay_seconds", "How late the event loop runs its tick", [], delay)

    def _requests(self) -> Iterator[Metric]:
        counted, quotas, connections = self._services.counters, self._services.quotas, self._services.connections
        api = ["protocol", "api"]
        seconds = counted.request_seconds
        yield histogram("warmlog_request_seconds", "From a complete request to its response", api, seconds)
        for name, text, labels, values in (
            ("warmlog_request_errors", "Errors of requests and of their items", [*api, "error"], counted.errors),
            ("warmlog_requests_denied", "Requests and items without a right", [*api, "reason"], counted.denied),
            ("warmlog_throttled_requests", "Requests that exceeded a quota", ["user", "quota"], quotas.throttled),
            ("warmlog_throttle_seconds", "Delays because of quotas", ["user", "quota"], quotas.throttled_seconds),
        ):
            yield labelled(CounterMetricFamily, name, text, labels, values.items())
        yield gauge("warmlog_connections", "Open connections", len(connections))
        yield gauge("warmlog_connections_limit", "The most that may be open", connections.limit)
        in_flight = sum(connection.requests_in_flight for connection in connections)
        yield gauge("warmlog_requests_in_flight", "Requests that have started and not ended", in_flight)
        yield gauge("warmlog_waiting_fetches", "Fetches that wait for data", len(self._services.delayed_fetches))

    def _memory(self) -> Iterator[Metric]:
        requests, responses = self._request_memory, self._services.response_memory
        yield gauge("warmlog_request_memory_bytes", "Memory of requests in flight", requests.claimed_bytes)
        yield gauge("warmlog_request_memory_limit_bytes", "queued.max.request.bytes", requests.limit_bytes)
        yield gauge("warmlog_request_memory_short", "1 while requests wait for memory", requests.is_short)
        yield gauge("warmlog_response_memory_bytes", "Memory of unread responses", responses.held_bytes)
        yield gauge("warmlog_response_memory_limit_bytes", "queued.max.response.bytes", responses.limit_bytes)

    def _conversions(self) -> Iterator[Metric]:
        counted = self._services.counters.conversions
        yield counter("warmlog_kafka_converted_batches", "Batches made rows for clients of Kafka", counted.batches)
        yield counter("warmlog_kafka_conversion_seconds", "The time that this took", counted.seconds)
        yield counter("warmlog_kafka_converted_cache_hits", "Batches that were converted before", counted.hits)
        yield gauge("warmlog_kafka_converted_cache_bytes", "Batches that are kept as rows", counted.kept_bytes)

    def _disks(self) -> Iterator[Metric]:
        served = {str(directory.path): directory for directory in self._services.directories}
        up = {path: directory.is_live for path, directory in served.items()}
        up |= {str(directory.path): False for directory in self._services.directories.offline}
        yield gauges("warmlog_directory_up", "0 once a data directory has failed", "directory", up)
        free = {path: each.room.free_bytes for path, each in served.items()}
        yield gauges("warmlog_directory_free_bytes", "Free space on its disk", "directory", free)
        reserve = {path: each.room.reserve_bytes for path, each in served.items()}
        yield gauges("warmlog_directory_reserve_bytes", "Below it, records are refused", "directory", reserve)
        seconds = {(path,): each.flusher.flush_seconds for path, each in served.items()}
        yield histogram("warmlog_flush_seconds", "The syncs of one group commit", ["directory"], seconds)
        partitions = {(path,): each.flusher.flush_partitions for path, each in served.items()}
        yield histogram("warmlog_flush_partitions", "Partitions in one group commit", ["directory"], partitions)
        yield counter("warmlog_deleted_segments", "Segments deleted by retention", self._housekeeping.deleted_segments)
        yield counter("warmlog_deleted_bytes", "Size of the logs of these", self._housekeeping.deleted_bytes)
        cleaner = self._log_cleaner
        yield counter("warmlog_compactions", "Compaction passes completed", cleaner.pass_count)
        yield counter("warmlog_compaction_read_bytes", "Read by compaction", cleaner.stats.read_bytes)
        yield counter("warmlog_compaction_written_bytes", "Written by compaction", cleaner.stats.written_bytes)
        yield gauge("warmlog_compaction_backlog_bytes", "Dirty bytes of compacted logs", cleaner.backlog_bytes)
        yield gauge("warmlog_uncompactable_partitions", "Given up by compaction", len(cleaner.given_up))
        check = self._log_check
        yield gauge("warmlog_unchecked_bytes", "To be checked after an unclean start", check.unchecked_bytes)
        yield gauge("warmlog_damaged_ranges", "Ranges of logs that are known to be damaged", check.damage_count)

    async def _topics(self) -> list[Metric]:
        counted = self._services.counters
        topics = sorted(self._services.topics, key=lambda topic: topic.name)
        limit = self._services.config.metrics_max_topics
        labels = {topic.name: topic.name if rank < limit else OTHER_TOPICS for rank, topic in enumerate(topics)}
        sizes = TopicSizes()
        async for topic in in_turns(topics, TOPICS_A_TURN):
            sizes.add(topic, labels[topic.name])
        states = {state.name.lower(): count for state, count in sizes.states.items()}
        batches = self._batches.by_label(counted.appended_batches, labels)
        appended = self._records.by_label(counted.appended_records, labels)
        size_bytes = self._bytes.by_label(counted.appended_bytes, labels)
        fetched = self._fetched.by_label(counted.fetched_bytes, labels)
        return [
            gauges("warmlog_partitions", "Partitions by state", "state", states),
            gauge("warmlog_write_caching_topics", "Topics whose acknowledged records may be lost", sizes.write_caching),
            gauges("warmlog_topic_partitions", "Partitions of a topic", "topic", sizes.partitions),
            gauges("warmlog_topic_records", "From log start to log end", "topic", sizes.records),
            gauges("warmlog_topic_size_bytes", "Log files of a topic", "topic", sizes.size_bytes),
            counters("warmlog_topic_appended_batches", "Batches appended", "topic", batches),
            counters("warmlog_topic_appended_records", "Records appended", "topic", appended),
            counters("warmlog_topic_appended_bytes", "Bytes appended", "topic", size_bytes),
            counters("warmlog_topic_fetched_bytes", "Bytes sent to readers", "topic", fetched),
        ]


async def transaction_families(services: Services) -> list[Metric]:
    """Transactions, without labels that grow with their number; the gauges have no samples while that is loaded."""
    transactions = services.coordinators.transactions
    ended = {end.name.lower(): transactions.ended[end] for end in End if end is not End.INITIALISED}
    states: dict[str, float] = {}
    age_s: list[tuple[tuple[()], float]] = []
    with suppress(ApiError):
        found = transactions.transactions()
        states = {status.name.lower(): 0 for status in Status}
        now = began_ms = now_ms()
        async for each in in_turns(found, IDS_A_TURN):
            states[each.value.status.name.lower()] += 1
            if each.value.began_ms >= 0:
                began_ms = min(began_ms, each.value.began_ms)
        age_s = [((), max(now - began_ms, 0) / 1000)]
    return [
        gauges("warmlog_transactional_ids", "Transactional ids by state", "state", states),
        labelled(
            GaugeMetricFamily, "warmlog_transaction_oldest_seconds", "Age of the oldest open transaction", [], age_s
        ),
        counters("warmlog_transactions_ended", "Transactions that have ended", "end", ended),
    ]


def starting(done: int, total: int) -> list[Metric]:
    """The metrics of a broker that checks its partitions before it serves."""
    return [
        gauge("warmlog_recovery_partitions", "Partitions to open at the start", total),
        gauge("warmlog_recovery_partitions_done", "Those that are open", done),
    ]
