"""Consumer groups at the coordinator: many members that commit, many that join, and many groups at a start."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from statistics import quantiles

from msgspec.msgpack import encode

from benchmarks import consume
from benchmarks.loading import Load, open_connection
from benchmarks.measurement import Run
from benchmarks.rows import READ_TOPIC, Bench, Benchmark
from benchmarks.transport import Connection
from warmlog import Admin, Consumer
from warmlog_broker.coordinator.group.records import TargetKey
from warmlog_protocol.messages import (
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    TopicPartitions,
)

MEMBERS = 50
PARTITIONS_PER_MEMBER = 10
COMMITS_PER_S = 20_000
GROUPS = 10_000
PARTITIONS_PER_GROUP = 10
JOINING = 200
PARTITIONS_PER_JOINING = 5
PAIRS = 4


def benchmarks(bench: Bench) -> Iterator[Benchmark]:
    scale = bench.scale
    client = bench.settings(**bench.client)
    for name, read, records in (
        ("group.consume.objects", consume.read_batches, scale.read_records),
        ("group.consume.records", consume.read_records, scale.single_records),
    ):
        yield Benchmark(
            name,
            client | {"group": "its only member; automatic commits", "pairs": PAIRS},
            lambda read=read, records=records: with_group(
                bench.bootstrap, READ_TOPIC, records, read, bench.own_topic()
            ),
            reads=True,
        )
    yield Benchmark(
        "group.join",
        bench.settings(members=JOINING, record="a member that has its share"),
        lambda: join(bench.bootstrap, bench.own_topic()),
    )
    yield Benchmark(
        "group.commit",
        client | {"members": MEMBERS, "record": "the commit of one partition, ten in a request"},
        lambda: commits(bench.bootstrap, bench.own_topic(), scale.group_requests),
    )
    yield Benchmark(
        "group.commit_latency",
        client | {"members": MEMBERS, "open_loop_per_s": COMMITS_PER_S},
        lambda: commits(bench.bootstrap, bench.own_topic(), scale.group_requests, per_s=COMMITS_PER_S),
    )
    committed = GROUPS * PARTITIONS_PER_GROUP
    yield Benchmark(
        "group.load",
        bench.settings(groups=GROUPS, record="a committed offset, ten of each group"),
        Load(bench.directory / "groups", fill, listed, expected=GROUPS, records=committed).run,
    )


async def with_group(
    bootstrap: str, topic: str, records: int, read: Callable[[Consumer, int], Awaitable[None]], group: str
) -> Run:
    """`read` without a group and as a member of a new one, in turns: `of_plain` is the rate with over that without.

    Time begins when the consumer may fetch: joining a group is not part of it, commits are.
    """
    seconds = {"": 0.0, group: 0.0}
    for turn in range(2 * PAIRS):
        name = "" if turn % 4 in (0, 3) else group
        began_s = 0.0

        def begin(_: object = None) -> None:
            nonlocal began_s
            began_s = time.perf_counter()

        if name:
            consumer = Consumer(bootstrap, topics=[topic], start="earliest", group=f"{group}-{turn}", on_assigned=begin)
        else:
            consumer = Consumer(bootstrap, topics=[topic], start="earliest")
        async with consumer:
            begin()
            await read(consumer, records)
            seconds[name] += time.perf_counter() - began_s
    return Run(PAIRS * records, seconds[group], {"of_plain": seconds[""] / seconds[group]})


async def _topic(bootstrap: str, name: str, partitions: int) -> bytes:
    async with Admin(bootstrap) as admin:
        return (await admin.create_topic(name, partitions=partitions)).bytes


class _Member:
    """A member that owns its share of the partitions, and commits all of them in each request."""

    def __init__(self, connection: Connection, group: str, number: int) -> None:
        self._connection = connection
        self._group = group
        self._id = f"member-{number}"
        self._epoch = 0
        self.owned: list[TopicPartitions] = []

    async def join(self, topic: str) -> None:
        request = GroupHeartbeatRequest(self._group, self._id, 0, topics=[topic], max_wait_ms=1000)
        await self._beat(request)

    async def settle(self, partitions: int) -> None:
        while sum(len(each.partitions) for each in self.owned) != partitions:
            await self._beat(
                GroupHeartbeatRequest(self._group, self._id, self._epoch, owned=self.owned, max_wait_ms=200)
            )

    async def _beat(self, request: GroupHeartbeatRequest) -> None:
        response = await self._connection.call(request, GroupHeartbeatResponse)
        self._epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = response.assignment

    async def commit(self, count: int, seconds: list[float], *, interval_s: float = 0) -> None:
        """Send `count` requests, one after another; note how long each took.

        With `interval_s` each is due that long after the one before, and its time counts from when it was due.
        """
        wanted = [
            OffsetCommitPartition(each.topic_id, each.topic, number, 0, -1, "")
            for each in self.owned
            for number in each.partitions
        ]
        due_s = time.perf_counter() + random.random() * interval_s
        for sequence in range(1, count + 1):
            began_s = time.perf_counter()
            if interval_s:
                await asyncio.sleep(due_s - began_s)
                began_s, due_s = due_s, due_s + interval_s
            request = OffsetCommitRequest(self._group, wanted, self._id, self._epoch, "", sequence)
            response = await self._connection.call(request, OffsetCommitResponse)
            seconds.append(time.perf_counter() - began_s)
            assert not any(each.error_code for each in response.partitions)


async def commits(bootstrap: str, topic: str, requests: int, *, per_s: int = 0) -> Run:
    """Commits of MEMBERS members of one group, each in its own connection; a record is one partition's commit.

    As many as are possible, each member with one request in flight; or `per_s` records, in an open loop.
    """
    await _topic(bootstrap, topic, MEMBERS * PARTITIONS_PER_MEMBER)
    async with AsyncExitStack() as exits:
        members = [_Member(await open_connection(bootstrap, exits), f"group-of-{topic}", n) for n in range(MEMBERS)]
        await asyncio.gather(*(member.join(topic) for member in members))
        await asyncio.gather(*(member.settle(PARTITIONS_PER_MEMBER) for member in members))
        seconds: list[float] = []
        count = requests // MEMBERS
        interval_s = MEMBERS * PARTITIONS_PER_MEMBER / per_s if per_s else 0
        began_s = time.perf_counter()
        await asyncio.gather(*(member.commit(count, seconds, interval_s=interval_s) for member in members))
        took_s = time.perf_counter() - began_s
    async with Admin(bootstrap) as admin:
        await admin.delete_topic(topic)
    cuts = quantiles(seconds, n=100)
    figures = {"requests_per_s": len(seconds) / took_s, "p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000}
    return Run(len(seconds) * PARTITIONS_PER_MEMBER, took_s, figures)


async def join(bootstrap: str, topic: str) -> Run:
    """JOINING members that start at once, until each has its share; `targets` counts the target assignments."""
    await _topic(bootstrap, topic, JOINING * PARTITIONS_PER_JOINING)
    group = f"group-of-{topic}"
    async with AsyncExitStack() as exits:
        members = [_Member(await open_connection(bootstrap, exits), group, n) for n in range(JOINING)]
        began_s = time.perf_counter()
        await asyncio.gather(*(member.join(topic) for member in members))
        await asyncio.gather(*(member.settle(PARTITIONS_PER_JOINING) for member in members))
        took_s = time.perf_counter() - began_s
    owned = [(each.topic_id, number) for member in members for each in member.owned for number in each.partitions]
    assert len(owned) == len({*owned}) == JOINING * PARTITIONS_PER_JOINING
    async with Admin(bootstrap) as admin:
        await admin.delete_topic(topic)
    return Run(JOINING, took_s, {"stable_s": took_s, "targets": await _targets(bootstrap, group)})


async def _targets(bootstrap: str, group: str) -> int:
    """Count the target assignments of `group` in the coordinator's log."""
    key = encode(TargetKey(group))
    async with Consumer(bootstrap, topics=["__groups"]) as consumer:
        return sum([batch.keys.count(key) async for batch in consumer.batches(until="latest")])


async def fill(bootstrap: str) -> None:
    """Let GROUPS groups commit PARTITIONS_PER_GROUP offsets each."""
    topic_id = await _topic(bootstrap, "bench-groups", PARTITIONS_PER_GROUP)
    wanted = [OffsetCommitPartition(topic_id, "bench-groups", n, 0) for n in range(PARTITIONS_PER_GROUP)]
    async with AsyncExitStack() as exits:
        connections = [await open_connection(bootstrap, exits) for _ in range(MEMBERS)]

        async def commit(connection: Connection, numbers: Sequence[int]) -> None:
            for number in numbers:
                request = OffsetCommitRequest(f"bench-group-{number}", wanted)
                response = await connection.call(request, OffsetCommitResponse)
                assert not any(each.error_code for each in response.partitions)

        await asyncio.gather(*(commit(c, range(n, GROUPS, MEMBERS)) for n, c in enumerate(connections)))


async def listed(connection: Connection) -> int:
    """Return the number of groups."""
    return len((await connection.call(ListGroupsRequest(), ListGroupsResponse)).groups)
