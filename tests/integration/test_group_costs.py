"""Groups of a real broker: what patterns cost others, how few assignments joins cause, how soon partitions move."""

import asyncio
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path

import pytest

import warmlog
from benchmarks import groups
from broker_process import BrokerProcess
from group_member import GroupMember, commit, described
from waiting import wait_until
from warmlog_protocol.errors import CoordinatorLoadInProgress, InvalidRegularExpression, PolicyViolation
from warmlog_protocol.messages import GroupHeartbeatRequest, ListGroupsRequest
from wire_client import WireClient

QUICK = {"group_initial_rebalance_delay_ms": 50}
MIB = 1 << 20


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


@contextmanager
def asking(address: str) -> Iterator[list[float]]:
    """Ask the broker all the time meanwhile; the list has how many seconds each response took."""
    seconds: list[float] = []
    is_over = threading.Event()

    def ask() -> None:
        with WireClient(address) as client:
            while not is_over.wait(0.005):
                began_s = time.perf_counter()
                client.call(ListGroupsRequest())
                seconds.append(time.perf_counter() - began_s)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield seconds
    finally:
        is_over.set()
        thread.join()


def test_a_pattern_takes_neither_the_memory_nor_the_time_of_the_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        for number in range(10):
            client.create_topic("a" * (200 - number))
        before_bytes = peak_bytes(broker.pid)
        with asking(broker.address) as seconds:
            for number in range(8):
                pattern = "(" + "|" * (200 - number) + "a){499}"
                with pytest.raises(InvalidRegularExpression, match="too large"):
                    client.call(GroupHeartbeatRequest(f"g{number}", "m", 0, topics=[], pattern=pattern))
        assert max(seconds) < 1
        assert peak_bytes(broker.pid) - before_bytes < 50 * MIB


def test_many_members_with_slow_patterns_stop_nobody_else(tmp_path: Path) -> None:
    luck = random.Random(1)
    with BrokerProcess(tmp_path, **QUICK) as broker, WireClient(broker.address) as client:
        for _ in range(100):
            client.create_topic("".join(luck.choices("abcdefgh", k=200)))
        with asking(broker.address) as seconds:
            for number in range(30):
                pattern = f"(a|b|c|d|e|f|g|h)*a(a|b|c|d|e|f|g|h){{60}}.*x{number}"
                client.call(GroupHeartbeatRequest("g", f"m{number}", 0, topics=[], pattern=pattern))
        assert max(seconds) < 1
        wait_until(lambda: described(client, "g").state in ("reconciling", "stable"))


def test_members_keep_what_their_pattern_gave_to_them_over_a_restart(tmp_path: Path) -> None:
    with ExitStack() as exits, BrokerProcess(tmp_path, **QUICK) as broker:
        with WireClient(broker.address) as client:
            for name in ("orders.eu", "orders.us", "users"):
                client.create_topic(name)
        first, second = (
            exits.enter_context(GroupMember(broker.address, "g", pattern=pattern)).join()
            for pattern in ("orders[.].*", "(orders|none)[.](eu|us)")
        )
        for _ in range(100):
            for member in (first, second):
                member.beat(max_wait_ms=200)
                member.take()
            if len(first.partitions) == len(second.partitions) == 1:
                break
        broker.restart()
        for member in (first, second):
            member.reconnect()
        with WireClient(broker.address) as client:
            wait_until(lambda: is_loaded(client))
            time.sleep(0.5)
            before = described(client, "g")
            for member in (first, second):
                owned = member.partitions
                assert member.beat().assignment is None or member.take().partitions == owned
            assert (described(client, "g").group_epoch, before.state) == (before.group_epoch, "stable")
            client.create_topic("orders.fr")
        first.settle(2)


def test_what_clients_store_is_bounded_in_bytes_and_what_is_there_goes_on(tmp_path: Path) -> None:
    with (
        BrokerProcess(tmp_path, **QUICK, coordinator_max_bytes=2 * MIB) as broker,
        WireClient(broker.address) as client,
    ):
        topic_id = client.create_topic("t")
        commit(client, "kept", topic_id, (0, 0), metadata="m" * 4000)
        names = [f"{number:0240}" for number in range(1000)]
        refused = 0
        for number in range(20):
            try:
                client.call(GroupHeartbeatRequest(f"g{number}", "m", 0, topics=names))
            except PolicyViolation:
                refused += 1
        assert 10 < refused < 20
        assert not commit(client, "kept", topic_id, (0, 0), metadata="n" * 4000)[0].error_code
        broker.restart()
        with WireClient(broker.address) as again:
            wait_until(lambda: is_loaded(again))
            with pytest.raises(PolicyViolation):
                again.call(GroupHeartbeatRequest("other", "m", 0, topics=names))


def is_loaded(client: WireClient) -> bool:
    try:
        client.call(ListGroupsRequest())
    except CoordinatorLoadInProgress:
        return False
    return True


def test_two_hundred_members_that_start_at_once_cause_few_assignments(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        run = asyncio.run(groups.join(broker.address, "joined"))
        broker.terminate()
    assert run.records == groups.JOINING == 200
    assert 1 <= run.figures["targets"] <= 5


MEMBERS = 5
PARTITIONS = 20
PATIENCE_S = 40


class Ownership:
    """When each partition had no owner; and that none has two."""

    def __init__(self) -> None:
        self.owners: dict[int, str] = {}
        self.without_s: defaultdict[int, float] = defaultdict(float)
        self.taken = 0
        self._given_up_at: dict[int, float] = {}

    def member(self, address: str, name: str) -> warmlog.Consumer:
        def assigned(partitions: list[tuple[str, int]]) -> None:
            for _, partition in partitions:
                assert self.owners.setdefault(partition, name) == name
                self.without_s[partition] += time.monotonic() - self._given_up_at.get(partition, time.monotonic())
                self.taken += 1

        def revoked(partitions: list[tuple[str, int]]) -> None:
            for _, partition in partitions:
                assert self.owners.pop(partition) == name
                self._given_up_at[partition] = time.monotonic()

        return warmlog.Consumer(address, topics=["t"], group="etl", on_assigned=assigned, on_revoked=revoked)

    async def until_balanced(self, members: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.owners) < PARTITIONS or len({*self.owners.values()}) < members:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_partition_is_without_an_owner_for_a_moment_only(tmp_path: Path, tell: Callable[[str], None]) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        async with warmlog.Admin(broker.address) as admin:
            await admin.create_topic("t", partitions=PARTITIONS)
        ownership = Ownership()

        async def live(name: str, ends: asyncio.Event) -> None:
            async with ownership.member(broker.address, name) as member:
                reading = asyncio.ensure_future(anext(member.batches()))
                await ends.wait()
                reading.cancel()

        async with AsyncExitStack() as stack, asyncio.TaskGroup() as lives:
            ends = [asyncio.Event() for _ in range(MEMBERS)]
            stack.callback(lambda: [end.set() for end in ends])
            running = [lives.create_task(live(f"{number}", end)) for number, end in enumerate(ends)]
            await ownership.until_balanced(MEMBERS)
            at_first = ownership.taken
            for number in range(MEMBERS):
                ends[number].set()
                await running[number]
                await ownership.until_balanced(MEMBERS - 1)
                ends[number] = asyncio.Event()
                running[number] = lives.create_task(live(f"{number} again", ends[number]))
                await ownership.until_balanced(MEMBERS)
            moves, longest_s = ownership.taken - at_first, max(ownership.without_s.values())
            for end in ends:
                end.set()
        broker.terminate()
    tell(
        f"{MEMBERS} restarts moved {moves} partitions; none was without an owner for more than {longest_s:.2f} s in all"
    )
    assert moves >= PARTITIONS
