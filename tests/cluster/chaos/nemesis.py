"""The faults: each begins, lasts for a while, and is over when it returns."""

import asyncio
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from itertools import chain
from random import Random

from broker_process import BrokerProcess
from cluster.chaos.machines import Machines
from cluster.chaos.settling import settled
from cluster_processes import ClusterProcesses
from faults.history.nemesis import cut_powers
from faults.history.target import Proxy
from faults.power import powered
from faults.tracing import tampering, why_not_traced

Fault = Callable[[ClusterProcesses, Machines, Random], Awaitable[None]]

SYNCS = "fsync,fdatasync,syncfs"


async def kill(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """SIGKILL of a broker; it comes back soon, or after the others have elected."""
    broker = _one(cluster, luck)
    await _in_thread(broker.kill)
    await asyncio.sleep(luck.choice((0.0, 1.0, 4.0)))
    await _in_thread(broker.start)


async def stop(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """A clean stop, and a start."""
    broker = _one(cluster, luck)
    await _in_thread(broker.terminate)
    await _in_thread(broker.start)


async def pause(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """SIGSTOP of a broker, for less or for more than its session lasts."""
    broker = _one(cluster, luck)
    os.kill(broker.pid, signal.SIGSTOP)
    await asyncio.sleep(luck.choice((0.3, 1.5, 5.0)))
    os.kill(broker.pid, signal.SIGCONT)


async def kill_all(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """All brokers at once, and all come back, one after the other."""
    brokers = list(cluster.brokers.values())
    for broker in brokers:
        assert broker.process is not None
        broker.process.kill()
    luck.shuffle(brokers)
    for broker in brokers:
        await _in_thread(broker.kill)
        await _in_thread(broker.start)


async def pause_etcd(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """etcd does not answer for a while, or for a minute."""
    await _without_etcd(cluster, luck.choice((1.0, 6.0, 60.0)))


async def kill_without_etcd(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """A broker dies while etcd does not answer: no leader can be elected before it does."""
    broker = _one(cluster, luck)
    await _without_etcd(cluster, luck.choice((0.5, 3.0)), dying=broker)
    await _in_thread(broker.start)


async def _without_etcd(cluster: ClusterProcesses, seconds: float, dying: BrokerProcess | None = None) -> None:
    for member in cluster.etcd.members:
        cluster.etcd.stop(member)
    if dying is not None:
        await _in_thread(dying.kill)
    await asyncio.sleep(seconds)
    for member in cluster.etcd.members:
        cluster.etcd.go_on(member)


async def kill_etcd_leader(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """SIGKILL of the member of etcd that leads the others; it comes back."""
    leader = await asyncio.to_thread(cluster.etcd.leader)
    await _in_thread(leader.kill)
    await asyncio.sleep(luck.choice((0.5, 4.0)))
    await asyncio.to_thread(cluster.etcd.start, leader)


async def cut_peers(cluster: ClusterProcesses, machines: Machines, luck: Random) -> None:
    """The others do not reach a broker, or two, which go on reaching them and etcd."""
    await _cut([machines.peers[node] for node in luck.sample(list(cluster.brokers), luck.choice((1, 2)))], luck)


async def cut_etcd(cluster: ClusterProcesses, machines: Machines, luck: Random) -> None:
    """A broker does not reach etcd, and goes on with the others."""
    await _cut(machines.etcd[luck.choice(list(cluster.brokers))], luck)


async def cut_off(cluster: ClusterProcesses, machines: Machines, luck: Random) -> None:
    """A broker does not reach etcd, and the others do not reach it."""
    node = luck.choice(list(cluster.brokers))
    await _cut([*machines.etcd[node], machines.peers[node]], luck)


async def delay(cluster: ClusterProcesses, machines: Machines, luck: Random) -> None:
    """All that goes to a broker and back takes longer, or what goes to etcd, or both."""
    node = luck.choice(list(cluster.brokers))
    ways = [machines.peers[node]], machines.etcd[node]
    proxies = [*chain(*luck.sample(ways, luck.choice((1, 2))))]
    delay_s, lasts_s = luck.choice((0.02, 0.3, 1.5)), luck.choice((1.0, 4.0))
    for proxy in proxies:
        proxy.delay_s = delay_s
    await asyncio.sleep(lasts_s)
    for proxy in proxies:
        proxy.delay_s = 0.0


async def fill_disk(_cluster: ClusterProcesses, machines: Machines, luck: Random) -> None:
    """A broker has next to no room for a while."""
    disk = luck.choice(list(machines.disks.values()))
    await asyncio.to_thread(disk.limit, free_bytes=luck.randrange(20_000))
    await asyncio.sleep(luck.choice((0.5, 4.0)))
    await asyncio.to_thread(disk.limit, free_bytes=None)


async def slow_disk(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """Each sync of a broker takes longer: in the end longer than a leader may take for one."""
    delay_s, lasts_s = luck.choice(((0.05, 3.0), (1.0, 4.0), (12.0, 6.0)))
    inject = f"{SYNCS}:delay_enter={int(delay_s * 1e6)}"
    with ExitStack() as stack:
        await asyncio.to_thread(stack.enter_context, tampering(_one(cluster, luck).pid, inject))
        await asyncio.sleep(lasts_s)
        await asyncio.to_thread(stack.close)


async def cut_power(cluster: ClusterProcesses, machines: Machines, luck: Random) -> None:
    """The power of a broker goes, in the middle of some operation of its disk."""
    node = luck.choice(list(cluster.brokers))
    await cut_powers([(machines.disks[node], cluster.brokers[node])], luck)


async def cut_all_power(cluster: ClusterProcesses, machines: Machines, luck: Random) -> None:
    """The power of all brokers goes at once."""
    nodes = luck.sample(list(cluster.brokers), len(cluster.brokers))
    await cut_powers([(machines.disks[node], cluster.brokers[node]) for node in nodes], luck)


async def lose_data(cluster: ClusterProcesses, _machines: Machines, luck: Random) -> None:
    """A broker's data directory is deleted, its operator lets it start anew, and the others fill it.

    All must be in sync before: else it might have the last copy but one.
    """
    assert not (found := await settled(cluster)), found
    node, broker = luck.choice(list(cluster.brokers.items()))
    await _in_thread(broker.kill)
    await asyncio.to_thread(shutil.rmtree, broker.data_dir)
    await cluster.replace(node)
    await _in_thread(broker.start)


async def move_clock(cluster: ClusterProcesses, machines: Machines, luck: Random) -> None:
    """A broker's clock jumps by up to an hour and a half, and stays there."""
    machines.move_clock(luck.choice(list(cluster.brokers)), luck.choice((-3000, 0, 3000)))


async def _cut(proxies: Sequence[Proxy], luck: Random) -> None:
    for proxy in proxies:
        await proxy.stop()
    await asyncio.sleep(luck.choice((0.3, 2.0, 6.0)))
    for proxy in proxies:
        await proxy.start()


def _one(cluster: ClusterProcesses, luck: Random) -> BrokerProcess:
    return luck.choice(list(cluster.brokers.values()))


async def _in_thread(call: Callable[[], object]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, call)


FAULTS: dict[str, Fault] = {
    "kill": kill,
    "stop": stop,
    "pause": pause,
    "kill-all": kill_all,
    "etcd": pause_etcd,
    "etcd-leader": kill_etcd_leader,
    "kill-without-etcd": kill_without_etcd,
    "cut-peers": cut_peers,
    "cut-etcd": cut_etcd,
    "cut-off": cut_off,
    "delay": delay,
    "full": fill_disk,
    "slow": slow_disk,
    "power": cut_power,
    "power-all": cut_all_power,
    "lost": lose_data,
    "clock": move_clock,
}
NEED_POWER_DISKS = frozenset({"full", "power", "power-all"})


def possible() -> list[str]:
    """The faults that there can be on this machine."""
    missing = NEED_POWER_DISKS if powered.why_not() else frozenset()
    return [name for name in FAULTS if name not in missing and (name != "slow" or not why_not_traced())]
