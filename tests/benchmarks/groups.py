"""Consumer groups at the coordinator: many members that commit, many that join, and many groups at a start."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from multiprocessing import get_context
from statistics import quantiles

from msgspec.msgpack import encode

from benchmarks import consume
from benchmarks.loading import Load, open_connection
from benchmarks.measurement import Run
from benchmarks.rows import READ_TOPIC, Bench, Benchmark
from benchmarks.transport import Connection
from warmlog import Admin, Consumer, Producer
from warmlog_protocol import messages as m

MEMBERS = 50
PARTITIONS_PER_MEMBER = 10
COMMITS_PER_S = 20_000
GROUPS = 10_000
PARTITIONS_PER_GROUP = 10
JOINING = 200
PARTITIONS_PER_JOINING = 5
TARGET_KEY = 3
"""The kind of the records of __groups that have a group's target."""
JOINS_PER_S = 20
SYSTEMS = 1000
"""Topics, each of one of so many departments:"""
DEPARTMENTS = 20
PRODUCED_PER_S = 100
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
    for kind, by_pattern in (("names", False), ("patterns", True)):
        yield Benchmark(
            f"group.join_beside_produce.{kind}",
            bench.settings(members=scale.joining, joins_per_s=JOINS_PER_S, record="sent alone"),
            lambda by_pattern=by_pattern: joins_beside_produce(
                bench.bootstrap, bench.own_topic(), scale.joining, by_pattern=by_pattern
            ),
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
        self.owned: list[m.TopicPartitions] = []

    async def join(self, topic: str) -> None:
        request = m.GroupHeartbeatRequest(self._group, self._id, 0, topics=[topic], max_wait_ms=1000)
        await self._beat(request)

    async def stay(self, *, topics: list[str] | None = None, pattern: str | None = None) -> None:
        """Join, and send heartbeats that wait for news."""
        await self._beat(m.GroupHeartbeatRequest(self._group, self._id, 0, topics=topics or [], pattern=pattern))
        while True:
            await self._beat(
                m.GroupHeartbeatRequest(self._group, self._id, self._epoch, owned=self.owned, max_wait_ms=10_000)
            )

    async def settle(self, partitions: int, unsettled: "set[_Member]", settled: asyncio.Event) -> None:
        """Leave `unsettled` with `partitions`, and send heartbeats until cancelled: others may take longer."""
        while True:
            if sum(len(each.partitions) for each in self.owned) == partitions:
                unsettled.discard(self)
                if not unsettled:
                    settled.set()
            await self._beat(
                m.GroupHeartbeatRequest(self._group, self._id, self._epoch, owned=self.owned, max_wait_ms=200)
            )

    async def _beat(self, request: m.GroupHeartbeatRequest) -> None:
        response = await self._connection.call(request, m.GroupHeartbeatResponse)
        self._epoch = response.member_epoch
        if response.assignment is not None:
            self.owned = response.assignment

    async def commit(self, count: int, seconds: list[float], *, interval_s: float = 0) -> None:
        """Send `count` requests, one after another; note how long each took.

        With `interval_s` each is due that long after the one before, and its time counts from when it was due.
        """
        wanted = [
            m.OffsetCommitPartition(each.topic_id, each.topic, number, 0, -1, "")
            for each in self.owned
            for number in each.partitions
        ]
        due_s = time.perf_counter() + random.random() * interval_s
        for sequence in range(1, count + 1):
            began_s = time.perf_counter()
            if interval_s:
                await asyncio.sleep(due_s - began_s)
                began_s, due_s = due_s, due_s + interval_s
            request = m.OffsetCommitRequest(self._group, wanted, self._id, self._epoch, "", sequence)
            response = await self._connection.call(request, m.OffsetCommitResponse)
            seconds.append(time.perf_counter() - began_s)
            assert not any(each.error_code for each in response.partitions)


async def _settle(members: list[_Member], partitions: int) -> None:
    """Return when each member has `partitions`."""
    unsettled, settled = {*members}, asyncio.Event()
    async with asyncio.TaskGroup() as staying:
        tasks = [staying.create_task(member.settle(partitions, unsettled, settled)) for member in members]
        await settled.wait()
        for task in tasks:
            task.cancel()


async def commits(bootstrap: str, topic: str, requests: int, *, per_s: int = 0) -> Run:
    """Commits of MEMBERS members of one group, each in its own connection; a record is one partition's commit.

    As many as are possible, each member with one request in flight; or `per_s` records, in an open loop.
    """
    await _topic(bootstrap, topic, MEMBERS * PARTITIONS_PER_MEMBER)
    async with AsyncExitStack() as exits:
        members = [_Member(await open_connection(bootstrap, exits), f"group-of-{topic}", n) for n in range(MEMBERS)]
        await asyncio.gather(*(member.join(topic) for member in members))
        await _settle(members, PARTITIONS_PER_MEMBER)
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
        await _settle(members, PARTITIONS_PER_JOINING)
        took_s = time.perf_counter() - began_s
    owned = [(each.topic_id, number) for member in members for each in member.owned for number in each.partitions]
    assert len(owned) == len({*owned}) == JOINING * PARTITIONS_PER_JOINING
    async with Admin(bootstrap) as admin:
        await admin.delete_topic(topic)
    return Run(JOINING, took_s, {"stable_s": took_s, "targets": await _targets(bootstrap, group)})


async def joins_beside_produce(bootstrap: str, prefix: str, members: int, *, by_pattern: bool) -> Run:
    """How long single produced records take while members join one group, JOINS_PER_S, and stay.

    Each has a subscription of its own to a department's topics: a pattern, or their names. The records are sent from
    another process, PRODUCED_PER_S, in an open loop. On return the group has all its topics' partitions.
    """
    names = [f"{prefix}.department-{n % DEPARTMENTS}.system-{n}.events.v1" for n in range(SYSTEMS)]
    seconds = members / JOINS_PER_S
    async with Admin(bootstrap) as admin:
        for name in names:
            await admin.create_topic(name, partitions=1)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        produced = asyncio.wrap_future(process.submit(_produce_singly, bootstrap, prefix, seconds))
        async with AsyncExitStack() as exits:
            joined = [_Member(await open_connection(bootstrap, exits), f"group-of-{prefix}", n) for n in range(members)]
            staying: list[asyncio.Task[None]] = []
            exits.callback(lambda: [task.cancel() for task in staying])
            began_s = time.perf_counter()
            for number, member in enumerate(joined):
                await asyncio.sleep(began_s + number / JOINS_PER_S - time.perf_counter())
                department = number % DEPARTMENTS
                named = None if by_pattern else [*names[department::DEPARTMENTS], f"never-{number}"]
                pattern = rf"{prefix}\.department-{department}\..*|never-{number}" if by_pattern else None
                staying.append(asyncio.create_task(member.stay(topics=named, pattern=pattern)))
            latencies_ms = await produced
            while sum(len(each.partitions) for member in joined for each in member.owned) < SYSTEMS:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            took_s = time.perf_counter() - began_s
    async with Admin(bootstrap) as admin:
        for name in [*names, prefix]:
            await admin.delete_topic(name)
    cuts = quantiles(latencies_ms, n=100)
    figures = {"p50_ms": cuts[49], "p99_ms": cuts[98], "longest_ms": max(latencies_ms), "stable_s": took_s}
    return Run(len(latencies_ms), took_s, figures)


def _produce_singly(bootstrap: str, topic: str, seconds: float) -> list[float]:
    """In a process of its own: send records for so long; how many milliseconds each took from when it was due."""

    async def send() -> list[float]:
        await _topic(bootstrap, topic, 1)
        latencies_ms: list[float] = []

        async def send_one(producer: Producer, due_s: float) -> None:
            await producer.send(topic, b"x" * 100)
            latencies_ms.append((time.perf_counter() - due_s) * 1000)

        async with Producer(bootstrap, linger_ms=0) as producer, asyncio.TaskGroup() as tasks:
            await producer.send(topic, b"x")
            began_s = time.perf_counter()
            for number in range(int(seconds * PRODUCED_PER_S)):
                due_s = began_s + number / PRODUCED_PER_S
                await asyncio.sleep(due_s - time.perf_counter())
                tasks.create_task(send_one(producer, due_s))
        return latencies_ms

    return asyncio.run(send())


async def _targets(bootstrap: str, group: str) -> int:
    """Count the target assignments of `group` in the coordinator's log."""
    key = encode([TARGET_KEY, group])
    async with Consumer(bootstrap, topics=["__groups"]) as consumer:
        return sum([batch.keys.count(key) async for batch in consumer.batches(until="latest")])


async def fill(bootstrap: str) -> None:
    """Let GROUPS groups commit PARTITIONS_PER_GROUP offsets each."""
    topic_id = await _topic(bootstrap, "bench-groups", PARTITIONS_PER_GROUP)
    wanted = [m.OffsetCommitPartition(topic_id, "bench-groups", n, 0) for n in range(PARTITIONS_PER_GROUP)]
    async with AsyncExitStack() as exits:
        connections = [await open_connection(bootstrap, exits) for _ in range(MEMBERS)]

        async def commit(connection: Connection, numbers: Sequence[int]) -> None:
            for number in numbers:
                request = m.OffsetCommitRequest(f"bench-group-{number}", wanted)
                response = await connection.call(request, m.OffsetCommitResponse)
                assert not any(each.error_code for each in response.partitions)

        await asyncio.gather(*(commit(c, range(n, GROUPS, MEMBERS)) for n, c in enumerate(connections)))


async def listed(connection: Connection) -> int:
    """Return the number of groups."""
    return len((await connection.call(m.ListGroupsRequest(), m.ListGroupsResponse)).groups)
