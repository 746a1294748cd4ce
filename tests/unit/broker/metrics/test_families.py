"""What a scrape finds: the lag of groups, from offsets and high watermarks in memory, and counters of topics."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from warmlog_broker.coordinator.framework.decision import PartitionId
from warmlog_broker.coordinator.group.decisions.records import OffsetValue
from warmlog_broker.coordinator.group.decisions.state import Group
from warmlog_broker.metrics import group_families
from warmlog_broker.metrics.families import OTHER_TOPICS, TopicCounters
from warmlog_broker.metrics.group_families import LOOKUPS_A_TURN, OTHER_GROUPS, FirstLeft, GroupMetrics, Lags, Unread
from warmlog_broker.storage.log.reader import FetchData
from warmlog_broker.storage.segment.segments import LogOffsetMetadata

TOPIC_ID = b"t" * 16
PARTITIONS = LOOKUPS_A_TURN + 5
END = 100
NOW_MS = 1_000_000
PLACE = Unread(TOPIC_ID, 0, 7)


def _read(data: FetchData, is_decided: bool) -> FirstLeft:
    """A batch of records whose time in seconds is its offset."""
    return FirstLeft(data.start.offset, data.start.offset * 1000, is_decided)


class Broker:
    """A topic of PARTITIONS partitions with END records each, whose record at offset n is from n seconds after 0."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked_up: list[int] = []
        self.has_gap = False
        self.group = Group("etl")
        bounds = SimpleNamespace(last_stable_offset=END)
        log = SimpleNamespace(log_start_offset=0, high_watermark=END, bounds=bounds)
        partition = SimpleNamespace(allows=SimpleNamespace(read=True), log=log)
        topic = SimpleNamespace(topic_id=TOPIC_ID, local=dict.fromkeys(range(PARTITIONS), partition))
        monkeypatch.setattr(group_families, "_find", self._find)
        monkeypatch.setattr(group_families, "_read", _read)
        monkeypatch.setattr(group_families, "now_ms", lambda: NOW_MS)
        self.services: Any = SimpleNamespace(
            config=SimpleNamespace(metrics_max_groups=10),
            topics=SimpleNamespace(find={"orders": topic}.get),
            coordinators=SimpleNamespace(
                groups=SimpleNamespace(
                    active_groups=lambda: [self.group],
                    targets=SimpleNamespace(count=0),
                    classic=SimpleNamespace(rebalances={}),
                )
            ),
            cold_readers=ThreadPoolExecutor(1),
        )

    def commit(self, partition: int, offset: int) -> None:
        self.group.offsets[PartitionId(TOPIC_ID, partition)] = OffsetValue(offset, -1, "", "orders", 0)

    def _find(self, _partition: Any, offset: int) -> FetchData | int:
        self.looked_up.append(offset)
        return END if self.has_gap else FetchData(LogOffsetMetadata(offset), [], 0, False)


async def scrape(metrics: GroupMetrics) -> tuple[float, float]:
    """The lag of the only group, in records and in seconds."""
    families = {family.name: family.samples for family in await metrics.collect()}
    (records,), (seconds,) = families["warmlog_group_lag_records"], families["warmlog_group_lag_seconds"]
    return records.value, seconds.value


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    broker = Broker(monkeypatch)
    broker.services.loop = asyncio.get_running_loop()
    with broker.services.cold_readers:
        yield broker


async def test_a_scrape_looks_up_only_offsets_that_have_moved(broker: Broker) -> None:
    metrics = GroupMetrics(broker.services)
    for number in range(PARTITIONS):
        broker.commit(number, 40)
    assert await scrape(metrics) == (60 * PARTITIONS, 960)
    assert len(broker.looked_up) == PARTITIONS
    assert await scrape(metrics) == (60 * PARTITIONS, 960)
    broker.commit(3, 50)
    assert await scrape(metrics) == (60 * PARTITIONS - 10, 960)
    assert broker.looked_up[PARTITIONS:] == [50]


async def test_what_compaction_removed_has_no_age_and_is_looked_up_again(broker: Broker) -> None:
    metrics = GroupMetrics(broker.services)
    broker.commit(0, 90)
    broker.has_gap = True
    assert await scrape(metrics) == (0, 0)
    broker.has_gap = False
    assert await scrape(metrics) == (10, 910)


async def test_what_is_not_looked_up_in_time_is_left_to_the_next_scrape(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = GroupMetrics(broker.services)
    for number in range(PARTITIONS):
        broker.commit(number, 40)
    monkeypatch.setattr(group_families, "LOOKUP_S", 0.0)
    await scrape(metrics)
    assert len(broker.looked_up) == LOOKUPS_A_TURN
    await scrape(metrics)
    assert len(broker.looked_up) == PARTITIONS


def test_pairs_beyond_the_limit_are_added_up_without_an_age() -> None:
    lags = Lags(1)
    partition: Any = SimpleNamespace(log=SimpleNamespace(high_watermark=12))
    for group in ("a", "b", "c"):
        lags.add((group, "orders"), partition, PLACE)
    assert dict(lags.records({})) == {("a", "orders"): 5, (OTHER_GROUPS, OTHER_GROUPS): 10}
    found = {PLACE: FirstLeft(9, 0, is_decided=True)}
    assert dict(lags.records(found)) == {("a", "orders"): 3, (OTHER_GROUPS, OTHER_GROUPS): 10}
    assert dict(lags.seconds(found, NOW_MS)) == {("a", "orders"): 1000}
    assert dict(lags.seconds({}, NOW_MS)) == {}, "its time is not known"


def test_what_a_topic_gets_before_its_first_scrape_is_counted_under_other_topics_by_the_next() -> None:
    counters = TopicCounters()
    assert counters.by_label({"new": 5}, {}) == {}
    assert counters.by_label({"new": 7}, {"new": OTHER_TOPICS}) == {OTHER_TOPICS: 7}
