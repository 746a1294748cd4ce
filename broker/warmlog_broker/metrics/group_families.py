"""Consumer groups as Prometheus metric families: computed by each scrape, and not at all if nothing scrapes.

Lag is counted from committed offsets to high watermarks, both of which are in memory. Its age is that of the batch with
the first record that is not read: the index is searched in the event loop, the header is read by a thread. The
timestamp at an offset does not change, so the next scrape looks up only the offsets that have moved since. Markers of
transactions are passed over: a group that commits batches never commits the one after its last batch.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions.state import Group
from warmlog_broker.handlers.context import Services
from warmlog_broker.replica.partition import Partition
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.storage.segment.file_records import FileSlice
from warmlog_protocol.batch.header import HEADER_BYTES, NO_OFFSET, BatchHeader, read_header
from warmlog_protocol.errors import CorruptBatch, WarmlogError

OTHER_GROUPS = "~other"
"""The group and the topic of what is beyond `metrics.max.groups`. A group may have this name: its lag is added then."""
STATES = ("empty", "assigning", "reconciling", "stable", "preparing", "completing")
OFFSETS_A_TURN = 500
"""Committed offsets that are looked at in one turn of the event loop."""
LOOKUPS_A_TURN = 20
"""Each takes some 50 us."""
LOOKUP_S = 1.0
"""The longest that a scrape looks up timestamps, well below the timeout of a response; the next one goes on."""

NOTHING_LEFT = None
"""In place of a timestamp: compaction has removed everything up to the high watermark, as it is now."""

Pair = tuple[str, str]
"""The labels of a group and of a topic."""


class Unread(NamedTuple):
    """What a group has not read of a partition: from `offset` on."""

    topic_id: bytes
    partition: int
    offset: int


class Lags:
    """The lag of groups by pair. Pairs beyond `limit` are added up as one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.records: Counter[Pair] = Counter()
        self.unread: dict[Unread, Partition] = {}
        """The places of which the age is wanted."""
        self._places: dict[Pair, list[Unread]] = {}

    def add(self, pair: Pair, partition: Partition, unread: Unread, records: int) -> None:
        """Count what is left to read in one partition."""
        if pair not in self.records and len(self.records) >= self._limit:
            pair = (OTHER_GROUPS, OTHER_GROUPS)
        self.records[pair] += records
        places = self._places.setdefault(pair, [])
        if records and pair[0] != OTHER_GROUPS:
            places.append(unread)
            self.unread[unread] = partition

    def seconds(self, times_ms: Mapping[Unread, int | None], now_ms: int) -> Iterator[tuple[Pair, float]]:
        """Yield the age of the oldest unread record of each pair; nothing for a pair of which no time is known."""
        for pair, places in self._places.items():
            known = [times_ms[place] for place in places if place in times_ms]
            if pair[0] != OTHER_GROUPS and (known or not places):
                oldest_ms = min((time_ms for time_ms in known if time_ms is not NOTHING_LEFT), default=now_ms)
                yield pair, max(now_ms - oldest_ms, 0) / 1000


class GroupMetrics:
    """Collects the metrics of consumer groups, in the broker's event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._times_ms: dict[Unread, int | None] = {}
        """What the last scrape has looked up or reused."""
        self._passed: dict[Unread, int] = {}
        """The offset after the markers at a place."""

    async def collect(self) -> list[Metric]:
        """Return all families. Takes several turns of the event loop if there are many groups."""
        groups = sorted(self._services.coordinators.groups.active_groups(), key=lambda group: group.name)
        limit = self._services.config.metrics_max_groups
        states = dict.fromkeys(STATES, 0)
        members: Counter[str] = Counter()
        async for rank, group in in_turns(enumerate(groups), OFFSETS_A_TURN):
            states[group.state] += 1
            members[group.name if rank < limit else OTHER_GROUPS] += group.member_count
        lags = Lags(limit)
        async for name, place, topic, offset in in_turns(_committed(groups), OFFSETS_A_TURN):
            self._add(lags, name, place, topic, offset)
        times_ms = self._times_ms = await self._look_up(lags.unread)
        coordinator = self._services.coordinators.groups
        rebalances = (((reason,), count) for reason, count in coordinator.classic.rebalances.items())
        targets = CounterMetricFamily("warmlog_group_target_assignments", "Targets of groups computed")
        targets.add_metric([], coordinator.targets.count)
        seconds = lags.seconds(times_ms, now_ms())
        gauges = partial(labelled, GaugeMetricFamily)
        return [
            gauges("warmlog_groups", "Groups by state", ["state"], (((state,), n) for state, n in states.items())),
            gauges("warmlog_group_members", "Members", ["group"], (((name,), n) for name, n in members.items())),
            targets,
            labelled(
                CounterMetricFamily,
                "warmlog_group_rebalances",
                "Rebalances of groups with classic members",
                ["reason"],
                rebalances,
            ),
            gauges("warmlog_group_lag_records", "Records not read", ["group", "topic"], lags.records.items()),
            gauges("warmlog_group_lag_seconds", "Age of the oldest of them", ["group", "topic"], seconds),
        ]

    def _add(self, lags: Lags, group: str, place: PartitionId, topic_name: str, offset: int) -> None:
        """Add the lag in one partition, unless its topic was deleted or it cannot be read."""
        topic = self._services.topics.find(topic_name)
        if topic is None or topic.topic_id != place.topic_id:
            return
        partition = topic.local.get(place.number)
        if partition is not None and partition.allows.read:
            first = max(offset, partition.log.log_start_offset)
            unread = Unread(place.topic_id, place.number, first)
            lags.add((group, topic_name), partition, unread, max(partition.log.high_watermark - first, 0))

    async def _look_up(self, unread: Mapping[Unread, Partition]) -> dict[Unread, int | None]:
        """Return the timestamps at these places, as far as they can be found in LOOKUP_S."""
        loop = self._services.loop
        deadline_s = loop.time() + LOOKUP_S
        before = self._times_ms
        times_ms = {place: before[place] for place in unread if before.get(place) is not NOTHING_LEFT}
        wanted = [place for place in unread if place not in times_ms]
        passed = self._passed = {place: self._passed.get(place, place.offset) for place in wanted}
        for first in range(0, len(wanted), LOOKUPS_A_TURN):
            offsets = {place: passed[place] for place in wanted[first : first + LOOKUPS_A_TURN]}
            while offsets:
                slices: dict[Unread, FileSlice] = {}
                for place, offset in offsets.items():
                    found = _find(unread[place], offset)
                    if isinstance(found, FileSlice):
                        slices[place] = found
                    elif found is not None:
                        times_ms[place] = NOTHING_LEFT
                read = await loop.run_in_executor(self._services.cold_readers, _read_headers, slices.values())
                headers = {place: header for place, header in zip(slices, read, strict=True) if header is not None}
                offsets = {place: header.next_offset for place, header in headers.items() if header.is_control}
                passed.update(offsets)
                for place, header in headers.items():  # the time of the first record, or what the broker has set
                    time_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
                    if place not in offsets and time_ms >= 0:
                        times_ms[place] = time_ms
                if loop.time() > deadline_s:
                    return times_ms
        return times_ms


def _committed(groups: Iterable[Group]) -> Iterator[tuple[str, PartitionId, str, int]]:
    """Yield group, place, topic and offset of all committed offsets. Groups may change between two turns."""
    for group in groups:
        for place, value in list(group.offsets.items()):
            yield group.name, place, value.topic, value.offset


def _find(partition: Partition, offset: int) -> FileSlice | int | None:
    """Return the first batch from `offset` on; the offset at which to continue if it has no more; None if unknown."""
    if offset >= partition.log.high_watermark:
        return offset
    try:
        data = partition.log.reader.read(offset, HEADER_BYTES)
    except (WarmlogError, OSError):
        return None
    if data.slices:
        return data.slices[0]
    return None if data.next_offset == NO_OFFSET else data.next_offset


def _read_headers(slices: Collection[FileSlice]) -> list[BatchHeader | None]:
    """In a thread: return the headers at these places; None for one that cannot be read."""
    found: list[BatchHeader | None] = []
    for piece in slices:
        try:
            found.append(read_header(piece.slice(0, HEADER_BYTES).pread()))
        except (CorruptBatch, OSError):
            found.append(None)
    return found


def labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    labels: list[str],
    values: Iterable[tuple[tuple[str, ...], float]],
) -> Metric:
    """Return a family of `kind` with a sample for each of `values`, which are given with the values of `labels`."""
    family = kind(name, text, labels=labels)
    for label_values, value in values:
        family.add_metric(label_values, float(value))
    return family
