"""Consumer groups as Prometheus metric families: computed by each scrape, and not at all if nothing scrapes.

Lag is counted from the first record that is not read to the high watermark, and its age is that of this record: the
index is searched in the event loop, the header is read by a thread, and the batch if the group has read some of it.
What is found at an offset does not change, so the next scrape looks up only the offsets that have moved since. Markers
of transactions, aborted data and gaps are passed over: a group that commits records never commits what comes after the
last one. Until an offset is looked up, all offsets after it count.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions.state import Group
from warmlog_broker.handlers.context import Services
from warmlog_broker.metrics.samples import counter, counters, gauges, labelled
from warmlog_broker.replica.partition import Partition
from warmlog_broker.runtime.clock import now_ms
from warmlog_broker.runtime.tasks import in_turns
from warmlog_broker.storage.index.transaction_index import AbortedTxn
from warmlog_broker.storage.log.reader import FetchData
from warmlog_protocol.batch import read_batch
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

Pair = tuple[str, str]
"""The labels of a group and of a topic."""


class Unread(NamedTuple):
    """What a group has not read of a partition: from `offset` on."""

    topic_id: bytes
    partition: int
    offset: int


class FirstLeft(NamedTuple):
    """The first batch with records that a group has not read."""

    offset: int
    """From where on offsets count; the end of what was looked at if there is no such batch."""
    time_ms: int | None
    """The timestamp of its first record, or of all if the broker has set it; None if there is no such batch."""
    is_decided: bool
    """Whether it stays the first one: it belongs to no open transaction."""


class Lags:
    """The lag of groups by pair. Pairs beyond `limit` are added up as one."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._offsets: Counter[Pair] = Counter()
        self.unread: dict[Unread, Partition] = {}
        """The places at which what is left is wanted."""
        self._places: dict[Pair, list[Unread]] = {}

    def add(self, pair: Pair, partition: Partition, unread: Unread) -> None:
        """Count what is left to read in one partition."""
        if pair not in self._offsets and len(self._offsets) >= self._limit:
            pair = (OTHER_GROUPS, OTHER_GROUPS)
        left = max(partition.log.high_watermark - unread.offset, 0)
        self._offsets[pair] += left
        places = self._places.setdefault(pair, [])
        if left and pair[0] != OTHER_GROUPS:
            places.append(unread)
            self.unread[unread] = partition

    def records(self, found: Mapping[Unread, FirstLeft]) -> Iterator[tuple[Pair, int]]:
        """Yield how many offsets of each pair are left, without those before the first record."""
        for pair, left in self._offsets.items():
            passed = sum(found[place].offset - place.offset for place in self._places[pair] if place in found)
            yield pair, max(left - passed, 0)

    def seconds(self, found: Mapping[Unread, FirstLeft], now_ms: int) -> Iterator[tuple[Pair, float]]:
        """Yield the age of the oldest unread record of each pair; nothing for a pair of which no time is known."""
        for pair, places in self._places.items():
            known = [found[place].time_ms for place in places if place in found]
            if pair[0] != OTHER_GROUPS and (known or not places):
                oldest_ms = min((time_ms for time_ms in known if time_ms is not None), default=now_ms)
                yield pair, max(now_ms - oldest_ms, 0) / 1000


class GroupMetrics:
    """Collects the metrics of consumer groups, in the broker's event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._found: dict[Unread, FirstLeft] = {}
        """What the last scrape has looked up or reused."""
        self._passed: dict[Unread, int] = {}
        """The offset after what holds no records at a place."""

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
        found = self._found = await self._look_up(lags.unread)
        coordinator = self._services.coordinators.groups
        rebalances, targets = coordinator.classic.rebalances, coordinator.targets.count
        seconds = lags.seconds(found, now_ms())
        of_pairs = partial(labelled, GaugeMetricFamily, labels=["group", "topic"])
        return [
            gauges("warmlog_groups", "Groups by state", "state", states),
            gauges("warmlog_group_members", "Members", "group", members),
            counter("warmlog_group_target_assignments", "Targets of groups computed", targets),
            counters("warmlog_group_rebalances", "Rebalances of groups with classic members", "reason", rebalances),
            of_pairs("warmlog_group_lag_records", "Records not read", values=lags.records(found)),
            of_pairs("warmlog_group_lag_seconds", "Age of the oldest of them", values=seconds),
        ]

    def _add(self, lags: Lags, group: str, place: PartitionId, topic_name: str, offset: int) -> None:
        """Add the lag in one partition, unless its topic was deleted or it cannot be read."""
        topic = self._services.topics.find(topic_name)
        if topic is None or topic.topic_id != place.topic_id:
            return
        partition = topic.local.get(place.number)
        if partition is not None and partition.allows.read:
            first = max(offset, partition.log.log_start_offset)
            lags.add((group, topic_name), partition, Unread(place.topic_id, place.number, first))

    async def _look_up(self, unread: Mapping[Unread, Partition]) -> dict[Unread, FirstLeft]:
        """Return what is left at these places, as far as it can be found in LOOKUP_S."""
        loop = self._services.loop
        deadline_s = loop.time() + LOOKUP_S
        before = self._found
        found = {place: before[place] for place in unread if place in before and before[place].is_decided}
        wanted = [place for place in unread if place not in found]
        passed = self._passed = {place: self._passed.get(place, place.offset) for place in wanted}
        for rank in range(0, len(wanted), LOOKUPS_A_TURN):
            places = wanted[rank : rank + LOOKUPS_A_TURN]
            while places:
                read: dict[Unread, FetchData] = {}
                again = []
                for place in places:
                    data = _find(unread[place], passed[place])
                    if isinstance(data, FetchData):
                        read[place] = data
                    elif data is not None and data < unread[place].log.high_watermark:
                        passed[place] = data
                        again.append(place)
                    elif data is not None:
                        found[place] = FirstLeft(data, None, is_decided=False)
                decided = [
                    data.start.offset < unread[place].log.bounds.last_stable_offset for place, data in read.items()
                ]
                pairs = zip(read.values(), decided, strict=True)
                firsts = await loop.run_in_executor(self._services.cold_readers, _read_all, pairs)
                for place, first in zip(read, firsts, strict=True):
                    if isinstance(first, FirstLeft):
                        found[place] = first
                    elif first is not None:
                        passed[place] = first
                        again.append(place)
                places = again
                if loop.time() > deadline_s:
                    return found
        return found


def _committed(groups: Iterable[Group]) -> Iterator[tuple[str, PartitionId, str, int]]:
    """Yield group, place, topic and offset of all committed offsets. Groups may change between two turns."""
    for group in groups:
        for place, value in list(group.offsets.items()):
            yield group.name, place, value.topic, value.offset


def _find(partition: Partition, offset: int) -> FetchData | int | None:
    """Return the first batch from `offset` on; the offset at which to continue if it has no more; None if unknown."""
    reader = partition.log.reader
    if offset >= partition.log.high_watermark:
        return offset
    try:
        data = reader.read(offset, HEADER_BYTES, bound="committed")
        if not data.slices and data.next_offset == NO_OFFSET:  # an open transaction begins here
            data = reader.read(offset, HEADER_BYTES)
    except (WarmlogError, OSError):
        return None
    if data.slices:
        return data
    return None if data.next_offset == NO_OFFSET else data.next_offset


def _read_all(pairs: Iterable[tuple[FetchData, bool]]) -> list[FirstLeft | int | None]:
    return [_read(*pair) for pair in pairs]


def _read(data: FetchData, is_decided: bool) -> FirstLeft | int | None:
    """In a thread: what the first batch has left; the offset after it if that is nothing; None if it is unreadable."""
    piece, start_offset = data.slices[0], data.start.offset
    try:
        header = read_header(piece.slice(0, HEADER_BYTES).pread())
        if header.is_control or not header.record_count or _is_aborted(header, data.aborted):
            return header.next_offset
        # the time of the first record, or what the broker has set
        time_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms
        if header.base_offset < start_offset:  # the group has read some of it, or compaction has removed some
            batch = read_batch(piece.pread())
            offsets = batch.offsets()
            index = bisect_left(offsets, start_offset)
            if index == len(offsets):
                return header.next_offset
            start_offset, time_ms = offsets[index], batch.timestamps_ms()[index]
    except (CorruptBatch, OSError):
        return None
    return FirstLeft(max(start_offset, header.base_offset), time_ms, is_decided) if time_ms >= 0 else None


def _is_aborted(header: BatchHeader, aborted: Iterable[AbortedTxn]) -> bool:
    """Whether the batch, the first of a read, belongs to an aborted transaction."""
    return header.is_transactional and any(
        each.producer_id == header.producer_id and each.first_offset <= header.base_offset for each in aborted
    )
