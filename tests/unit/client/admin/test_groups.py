"""What Admin makes of a coordinator's answers, against a broker and a coordinator in memory."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

import warmlog
from fake_broker import FakeBroker, topic_id
from fake_groups import COMMITTED_AT_MS, FakeGroups, member
from warmlog.points import Point, PointKind
from warmlog_protocol.batch import encode_batch
from warmlog_protocol.errors import ErrorCode
from warmlog_protocol.messages import ListOffsetsRequest, TopicPartitions

NOW_MS = 2_000_000_000_000
GROUP = "etl"


class Cluster:
    """A broker with topic `orders`, partitions of 100, 10 and 0 records that are a second apart, and `flights`."""

    def __init__(self) -> None:
        self.broker = FakeBroker(orders=3, flights=1)
        self.groups = FakeGroups(topic_id)
        self.broker.further_handlers = self.groups.handlers
        for partition, count in ((0, 100), (1, 10)):
            for first in range(0, count, 5):
                times_ms = [NOW_MS - (count - offset) * 1000 for offset in range(first, first + 5)]
                self.broker.add_batch("orders", partition, encode_batch([b"x"] * 5, timestamps_ms=times_ms))


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    monkeypatch.setattr(time, "time_ns", lambda: NOW_MS * 1_000_000)
    cluster = Cluster()
    async with cluster.broker:
        yield cluster


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[warmlog.Admin]:
    async with warmlog.Admin(cluster.broker.address, request_timeout_ms=1000, retry_backoff_ms=5) as admin:
        yield admin


async def test_groups_are_listed_and_described_with_their_members(cluster: Cluster, admin: warmlog.Admin) -> None:
    assert await admin.list_groups() == []
    cluster.groups.commit("nightly", "orders", 0, 5)
    parts = TopicPartitions(topic_id("orders"), "orders", [2, 0])
    cluster.groups.members[GROUP] = [member("m-1", parts, instance_id="worker-1")]
    assert await admin.list_groups() == [
        warmlog.GroupListing(GROUP, "stable", 1),
        warmlog.GroupListing("nightly", "empty", 0),
    ]
    described = await admin.describe_group(GROUP)
    assert (described.name, described.state, described.group_epoch, described.assignor) == (
        GROUP,
        "stable",
        7,
        "uniform",
    )
    (only,) = described.members
    assert (only.member_id, only.instance_id, only.host, only.member_epoch) == ("m-1", "worker-1", "10.0.0.7", 3)
    assert (only.assigned, only.session_timeout_ms) == ([("orders", 0), ("orders", 2)], 45_000)
    with pytest.raises(warmlog.GroupIdNotFound, match="there is no group 'none'"):
        await admin.describe_group("none")


async def test_a_coordinator_that_is_loading_is_asked_again_until_the_timeout(
    cluster: Cluster, admin: warmlog.Admin
) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 5)
    cluster.groups.loading = 3
    assert (await admin.describe_group(GROUP)).state == "empty"
    cluster.groups.loading = 10**6
    with pytest.raises(warmlog.CoordinatorLoadInProgress, match="it is loading"):
        await admin.describe_group(GROUP)


async def test_offsets_of_a_topic_that_was_recreated_are_left_out(cluster: Cluster, admin: warmlog.Admin) -> None:
    cluster.groups.commit(GROUP, "orders", 1, 7)
    cluster.groups.commit(GROUP, "orders", 0, 900, topic_id=b"an earlier topic")
    cluster.groups.commit(GROUP, "deleted", 0, 3)
    (only,) = (await admin.committed_offsets(GROUP)).values()
    assert (only.topic, only.partition, only.topic_id, only.offset) == ("orders", 1, UUID(bytes=topic_id("orders")), 7)
    assert (only.metadata, only.leader_epoch, only.committed_at_ms) == ("", -1, COMMITTED_AT_MS)
    assert await admin.committed_offsets("none") == {}


async def test_lag_is_the_unread_records_and_the_age_of_the_first_of_them(
    cluster: Cluster, admin: warmlog.Admin
) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 43)
    cluster.groups.commit(GROUP, "orders", 1, 10)
    cluster.groups.commit(GROUP, "orders", 2, 0)
    cluster.groups.commit("other", "orders", 0, 90)
    lags = await admin.group_lags()
    assert {tp: (lag.records, lag.seconds) for tp, lag in lags[GROUP].items()} == {
        ("orders", 0): (57, 57.0),
        ("orders", 1): (0, 0.0),
        ("orders", 2): (0, 0.0),
    }
    other = lags["other"]["orders", 0]
    assert (other.committed, other.log_start_offset, other.high_watermark) == (90, 0, 100)
    assert (other.records, other.seconds) == (10, 10.0)


async def test_records_that_retention_deleted_are_not_left_to_read(cluster: Cluster, admin: warmlog.Admin) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 10)
    cluster.broker.topics["orders"][0].log_start_offset = 60
    lag = (await admin.group_lags([GROUP]))[GROUP]["orders", 0]
    assert (lag.committed, lag.log_start_offset, lag.records, lag.seconds) == (10, 60, 40, 40.0)


async def test_a_gap_in_the_log_is_passed_over_for_the_time_of_the_next_record(
    cluster: Cluster, admin: warmlog.Admin
) -> None:
    """Compaction removed the last records of a batch: the batch that is fetched has none at or after the offset."""
    log = cluster.broker.topics["flights"][0]
    for first, deltas in ((0, [0, 1]), (10, [0])):
        times_ms = [NOW_MS - 100_000 + 1000 * (first + delta) for delta in deltas]
        data = encode_batch([b"x"] * len(deltas), timestamps_ms=times_ms, base_offset=first, offset_deltas=deltas)
        log.batches.append((first, data))
    log.next_offset = 11
    cluster.groups.commit(GROUP, "flights", 0, 2)
    lag = (await admin.group_lags([GROUP]))[GROUP]["flights", 0]
    assert (lag.records, lag.seconds) == (1, 90.0)


async def test_figures_that_cannot_be_known_are_none_and_say_why(cluster: Cluster, admin: warmlog.Admin) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 43)
    cluster.broker.fetch_error = lambda _: warmlog.StorageError("the disk has failed")
    lag = (await admin.group_lags([GROUP]))[GROUP]["orders", 0]
    assert (lag.records, lag.seconds, lag.error) == (57, None, None), "a record without a readable time has no age"


async def test_without_its_age_lag_is_counted_and_nothing_is_fetched(cluster: Cluster, admin: warmlog.Admin) -> None:
    fetched: list[Any] = []
    cluster.broker.fetch_error = fetched.append
    cluster.groups.commit(GROUP, "orders", 0, 43)
    cluster.groups.commit(GROUP, "orders", 2, 0)
    lags = (await admin.group_lags(with_age=False))[GROUP]
    assert {tp: (lag.records, lag.seconds) for tp, lag in lags.items()} == {
        ("orders", 0): (57, None),
        ("orders", 2): (0, 0.0),
    }
    assert fetched == []


async def test_a_partition_is_asked_about_once_for_all_groups(cluster: Cluster, admin: warmlog.Admin) -> None:
    asked: list[Any] = []

    def note(message: Any) -> None:
        asked.append(message)

    cluster.broker.refusal = note
    cluster.broker.fetch_error = note
    for name in ("a", "b", "c"):
        cluster.groups.commit(name, "orders", 0, 43)
    assert len(await admin.group_lags()) == 3
    assert sum(isinstance(each, ListOffsetsRequest) for each in asked) == 2
    assert sum(not hasattr(each, "partitions") and hasattr(each, "fetch_offset") for each in asked) == 1


@pytest.mark.parametrize(
    ("where", "offsets"),
    [
        ("earliest", (0, 0, 0)),
        ("latest", (100, 10, 0)),
        (42, (42, 10, 0)),
        ("+5", (55, 10, None)),
        ("-20", (30, 0, None)),
        ("-30s", (70, 0, 0)),
        (datetime.fromtimestamp((NOW_MS - 5_000) / 1000, UTC), (95, 5, 0)),
        ("1960-01-01", (0, 0, 0)),
        ("2100-01-01", (100, 10, 0)),
        (Point(PointKind.TAIL, 10), (90, 0, 0)),
        ({("orders", 0): "-1", "orders-1": 3}, (49, 3, None)),
    ],
    ids=str,
)
async def test_a_reset_goes_to_points_and_shifts_within_the_log(
    cluster: Cluster, admin: warmlog.Admin, where: Any, offsets: tuple[int | None, ...]
) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 50)
    cluster.groups.commit(GROUP, "orders", 1, 9)
    resets = await admin.reset_offsets(GROUP, where)
    expected = {("orders", number): offset for number, offset in enumerate(offsets) if offset is not None}
    assert {tp: reset.offset for tp, reset in resets.items()} == expected
    assert cluster.groups.commits == [], "a dry run"
    assert await admin.reset_offsets(GROUP, where, dry_run=False) == resets
    assert {tp: offset for tp, offset in cluster.groups.committed(GROUP).items() if tp in expected} == expected
    (request,) = cluster.groups.commits
    assert {each.topic_id for each in request.partitions} == {topic_id("orders")}


async def test_a_reset_says_what_is_skipped_and_what_repeated(cluster: Cluster, admin: warmlog.Admin) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 50)
    cluster.broker.topics["orders"][0].log_start_offset = 20
    for where, skipped, repeated in (("latest", 50, 0), ("earliest", 0, 30), ("+0", 0, 0)):
        reset = (await admin.reset_offsets(GROUP, where, ["orders-0"]))["orders", 0]
        assert (reset.committed, reset.skipped, reset.repeated) == (50, skipped, repeated)
    cluster.groups.commit(GROUP, "orders", 0, 5)
    reset = (await admin.reset_offsets(GROUP, 30, ["orders-0"]))["orders", 0]
    assert (reset.skipped, reset.repeated) == (10, 0), "what is gone from the log could not be read anyway"


async def test_a_reset_of_named_partitions_creates_a_group(cluster: Cluster, admin: warmlog.Admin) -> None:
    with pytest.raises(warmlog.GroupIdNotFound, match="'new' has no committed offsets: name the partitions"):
        await admin.reset_offsets("new", "earliest")
    resets = await admin.reset_offsets("new", "latest", [("orders", 0)], dry_run=False)
    assert [(each.committed, each.offset, each.skipped, each.repeated) for each in resets.values()] == [
        (None, 100, 0, 0)
    ]
    assert cluster.groups.committed("new") == {("orders", 0): 100}
    for partition, text in ((("orders", 3), "has partitions 0 to 2, not 3"), (("none", 0), "'none' does not exist")):
        with pytest.raises(warmlog.UnknownTopicOrPartition, match=text):
            await admin.reset_offsets("new", "latest", [partition])


async def test_a_group_with_members_is_neither_reset_nor_deleted_but_named(
    cluster: Cluster, admin: warmlog.Admin
) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 50)
    cluster.groups.members[GROUP] = [member("m-1", instance_id="worker-1"), *(member(f"m-{n}") for n in range(2, 8))]
    named = (
        r"group 'etl' has 7 members: worker-1 \(app at 10.0.0.7\), m-2 \(app at 10.0.0.7\), .*, and 2 more; stop them"
    )
    for call in (admin.reset_offsets(GROUP, "latest"), admin.delete_groups([GROUP])):
        with pytest.raises(warmlog.NonEmptyGroup, match=named):
            await call
    cluster.groups.members[GROUP] = []
    cluster.groups.joins_before_commit = member("late")
    with pytest.raises(warmlog.NonEmptyGroup, match="has 1 member: late "):
        await admin.reset_offsets(GROUP, "latest", dry_run=False)
    assert cluster.groups.committed(GROUP) == {("orders", 0): 50}


async def test_a_partition_that_cannot_be_committed_is_an_error(cluster: Cluster, admin: warmlog.Admin) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 50)
    cluster.groups.refused["orders", 1] = ErrorCode.UNKNOWN_TOPIC_ID
    with pytest.raises(warmlog.UnknownTopicId):
        await admin.reset_offsets(GROUP, "latest", dry_run=False)


async def test_groups_are_deleted_all_or_none(cluster: Cluster, admin: warmlog.Admin) -> None:
    for name in ("a", "b"):
        cluster.groups.commit(name, "orders", 0, 50)
    with pytest.raises(warmlog.GroupIdNotFound):
        await admin.delete_groups(["a", "none"])
    assert {each.name for each in await admin.list_groups()} == {"a", "b"}
    await admin.delete_groups(["a", "b", "a"])
    assert await admin.list_groups() == []


async def test_a_deletion_whose_first_response_was_lost_is_no_error(cluster: Cluster, admin: warmlog.Admin) -> None:
    cluster.groups.commit(GROUP, "orders", 0, 50)
    cluster.groups.forgets_deletion = True
    await admin.delete_groups([GROUP])


async def test_committed_offsets_are_deleted_unless_a_member_subscribes(cluster: Cluster, admin: warmlog.Admin) -> None:
    for partition in (0, 1):
        cluster.groups.commit(GROUP, "orders", partition, 5)
    await admin.delete_offsets(GROUP, ["orders-0", ("orders", 2)])
    assert cluster.groups.committed(GROUP) == {("orders", 1): 5}
    cluster.groups.refused["orders", 1] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    with pytest.raises(warmlog.GroupSubscribedToTopic):
        await admin.delete_offsets(GROUP, ["orders-1"])


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda admin: admin.describe_group(7), TypeError, "the group's name must be a str, not 7"),
        (lambda admin: admin.delete_groups("etl"), TypeError, r"names must be a list of str, such as \['etl'\]"),
        (lambda admin: admin.group_lags("etl"), TypeError, "names must be a list of str"),
        (lambda admin: admin.delete_offsets("etl", "orders-0"), TypeError, "partitions must be a list such as"),
        (lambda admin: admin.delete_offsets("etl", ["orders"]), TypeError, "partitions has 'orders'"),
        (lambda admin: admin.reset_offsets("etl", "latest", "orders-0"), TypeError, "partitions must be a list"),
        (
            lambda admin: admin.reset_offsets("etl", "soon"),
            ValueError,
            r"where: 'soon': earliest, latest, an offset, a shift like \+100",
        ),
        (lambda admin: admin.delete_offsets("etl", [("orders", 2**70)]), TypeError, "is expected for a partition"),
        (lambda admin: admin.delete_offsets("etl", [f"orders-{2**32}"]), TypeError, "is expected for a partition"),
        (lambda admin: admin.describe_group("\udcff"), ValueError, r"the group's name must be text that UTF-8 can enc"),
        (lambda admin: admin.reset_offsets("etl", -5), ValueError, "where: offset -5"),
        (lambda admin: admin.reset_offsets("etl", "+9223372036854775808"), ValueError, "more than any offset"),
        (lambda admin: admin.reset_offsets("etl", {"orders": 5}), ValueError, "where has 'orders'"),
    ],
)
async def test_what_cannot_be_asked_is_refused_before_a_broker_is_asked(call: Any, kind: Any, text: str) -> None:
    with pytest.raises(kind, match=text):
        await call(warmlog.Admin("127.0.0.1:1"))


async def test_a_mapping_and_partitions_that_differ_are_refused(admin: warmlog.Admin) -> None:
    with pytest.raises(ValueError, match="where and partitions differ in orders-1: leave out partitions"):
        await admin.reset_offsets(GROUP, {"orders-0": 5}, ["orders-0", "orders-1"])
