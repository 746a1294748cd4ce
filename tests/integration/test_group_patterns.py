"""Patterns of subscriptions in a real broker: what they cost others, and what stays of them after a restart."""

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

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
        for _ in range(20):
            for member in (first, second):
                member.beat(max_wait_ms=200)
                member.take()
            if len(first.partitions) == len(second.partitions) == 1:
                break
        broker.restart()
        for member in (first, second):
            member.reconnect()
        time.sleep(0.5)
        with WireClient(broker.address) as client:
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
